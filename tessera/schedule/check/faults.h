// Collects the faults that the checker finds and formats the names of events, units, residencies, copies
// and reductions.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

class CheckFaults {
 public:
  static constexpr std::size_t kMaxFaults = 10;

  CheckFaults(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule)
      : trace_(trace), schedule_(schedule) {
    for (const ParameterSize& size : sizes) names_.push_back(size.name);
  }

  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (!full()) found_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool full() const { return found_.size() >= kMaxFaults; }
  bool none() const { return found_.empty(); }
  std::vector<std::string> take() { return std::move(found_); }

  std::string event(int index) const {
    return fmt::format("event {} ({})", index, to_string(trace_[static_cast<std::size_t>(index)], names_));
  }
  std::string parameter(ParameterId id) const {
    const auto index = static_cast<std::size_t>(id);
    return index < names_.size() ? fmt::format("'{}'", names_[index]) : fmt::format("parameter {}", id);
  }
  std::string unit(const Unit& members) const {
    std::vector<std::string> names;
    for (const ParameterId id : members) names.push_back(parameter(id));
    return fmt::format("[{}]", fmt::join(names, ", "));
  }
  std::string residency(int index) const {
    const Residency& it = schedule_.residencies[static_cast<std::size_t>(index)];
    const std::string unpacked =
        schedule_.unpacks(it.unit) ? fmt::format(", unpacked to {}", it.unpacked_offset) : std::string();
    return fmt::format("residency {} of {} (issue {}, free {}, wait {}, last {}, offset {}{})", index,
                       unit(schedule_.gather_units[static_cast<std::size_t>(it.unit)]), it.issue, it.free, it.wait,
                       it.last, it.offset, unpacked);
  }
  std::string copy(int index) const {
    const ColumnwiseCopy& it = schedule_.copies[static_cast<std::size_t>(index)];
    return fmt::format("columnwise copy {} of {} (make {}, last {}, offset {})", index,
                       unit(schedule_.gather_units[static_cast<std::size_t>(it.unit)]), it.make, it.last, it.offset);
  }
  std::string reduction(int index) const {
    const Reduction& it = schedule_.reductions[static_cast<std::size_t>(index)];
    return fmt::format("reduction {} of {} in microbatch {} (first {}, issue {}, finish {}, offset {})", index,
                       unit(schedule_.reduce_units[static_cast<std::size_t>(it.unit)]), it.microbatch, it.first,
                       it.issue, it.finish, it.offset);
  }

 private:
  const Trace& trace_;
  const Schedule& schedule_;
  std::vector<std::string> names_;
  std::vector<std::string> found_;
};

}  // namespace tessera::schedule
