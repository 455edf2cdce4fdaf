#include "tessera/runtime/record/event_numbers.h"

#include <algorithm>

namespace tessera::runtime {

void EventNumbers::begin_step(schedule::StepKind kind) {
  kind_ = kind;
  microbatch_ = -1;
  in_microbatch_ = false;
}

void EventNumbers::begin_microbatch() {
  ++microbatch_;
  in_microbatch_ = true;
  others_.clear();
  std::ranges::fill(counts_, Counts{});
}

schedule::Event EventNumbers::next(schedule::EventKind kind, schedule::Pass pass, schedule::ParameterId id) const {
  const auto index = static_cast<std::size_t>(id);
  return {.kind = kind,
          .step = kind_,
          .microbatch = in_microbatch_ ? microbatch_ : -1,
          .pass = pass,
          .parameter = id,
          .ordinal = index < counts_.size() ? counts_[index][place(kind, pass)] : 0};
}

void EventNumbers::happened(const schedule::Event& event) {
  if (event.parameter < 0) return;
  const auto index = static_cast<std::size_t>(event.parameter);
  if (index >= counts_.size()) counts_.resize(index + 1);
  ++counts_[index][place(event.kind, event.pass)];
}

schedule::Event EventNumbers::other(schedule::EventKind kind, const std::string& group, const std::string& op,
                                    std::int64_t bytes, schedule::Pass pass) {
  std::string key(name_of(kind));
  key.append("/").append(group).append("/").append(op).append("/").append(name_of(pass));
  return {.kind = kind,
          .step = kind_,
          .microbatch = in_microbatch_ ? microbatch_ : -1,
          .pass = pass,
          .ordinal = others_[key]++,
          .group = group,
          .op = op,
          .bytes = bytes};
}

}  // namespace tessera::runtime
