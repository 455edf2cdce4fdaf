#include "tessera/runtime/record/event_numbers.h"

#include "tessera/base/error.h"

namespace tessera::runtime {

void EventNumbers::begin_step(schedule::StepKind kind) {
  kind_ = kind;
  microbatch_ = -1;
  open_.clear();
}

void EventNumbers::begin_microbatch(int microbatch) {
  TESSERA_CHECK(microbatch == microbatch_ + 1, "microbatch {} begins, expected microbatch {}", microbatch,
                microbatch_ + 1);
  microbatch_ = microbatch;
  open_[microbatch];
}

void EventNumbers::check_open(int microbatch) const {
  TESSERA_CHECK(open_.contains(microbatch), "microbatch {} is not open", microbatch);
}

EventNumbers::Counters& EventNumbers::counters(int microbatch) {
  if (microbatch == -1 && open_.empty()) return outside_;
  check_open(microbatch);
  return open_.at(microbatch);
}

schedule::Event EventNumbers::next(schedule::EventKind kind, schedule::PassId pass, schedule::ParameterId id) {
  const std::vector<Counts>& counts = counters(pass.microbatch).parameters;
  const auto index = static_cast<std::size_t>(id);
  return {.kind = kind,
          .step = kind_,
          .microbatch = pass.microbatch,
          .pass = pass.pass,
          .parameter = id,
          .ordinal = index < counts.size() ? counts[index][place(kind, pass.pass)] : 0};
}

void EventNumbers::happened(const schedule::Event& event) {
  if (event.parameter < 0) return;
  std::vector<Counts>& counts = counters(event.microbatch).parameters;
  const auto index = static_cast<std::size_t>(event.parameter);
  if (index >= counts.size()) counts.resize(index + 1);
  ++counts[index][place(event.kind, event.pass)];
}

schedule::Event EventNumbers::other(schedule::EventKind kind, const std::string& group, const std::string& op,
                                    std::int64_t bytes, schedule::PassId pass) {
  std::string key(name_of(kind));
  key.append("/").append(group).append("/").append(op).append("/").append(name_of(pass.pass));
  return {.kind = kind,
          .step = kind_,
          .microbatch = pass.microbatch,
          .pass = pass.pass,
          .ordinal = counters(pass.microbatch).others[key]++,
          .group = group,
          .op = op,
          .bytes = bytes};
}

}  // namespace tessera::runtime
