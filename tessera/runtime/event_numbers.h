// Numbers the events of a step: the ordinal of an event is the number of equal events before it in the same microbatch
// (schedule/events.h).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::runtime {

class EventNumbers {
 public:
  void begin_step(schedule::StepKind kind);
  void begin_microbatch();
  void end_microbatch() { in_microbatch_ = false; }
  // Events after this belong to the optimizer.
  void end_step() { others_.clear(); }

  schedule::StepKind kind() const { return kind_; }
  int microbatch() const { return microbatch_; }  // number of the last microbatch begun, from 0
  bool in_microbatch() const { return in_microbatch_; }

  // Returns the event of a parameter that this call would record. Does not count it.
  schedule::Event next(schedule::EventKind kind, schedule::Pass pass, schedule::ParameterId id) const;
  // Counts the event.
  void happened(const schedule::Event& event);
  // Returns an event without a parameter, and counts it.
  schedule::Event other(schedule::EventKind kind, const std::string& group, const std::string& op, std::int64_t bytes,
                        schedule::Pass pass);

 private:
  using Counts = std::array<int, 24>;  // by event kind (8) and pass (3)
  static std::size_t place(schedule::EventKind kind, schedule::Pass pass) {
    return static_cast<std::size_t>(kind) * 3 + static_cast<std::size_t>(pass);
  }

  schedule::StepKind kind_ = schedule::StepKind::train;
  int microbatch_ = -1;
  bool in_microbatch_ = false;
  std::vector<Counts> counts_;  // by parameter
  std::unordered_map<std::string, int> others_;
};

}  // namespace tessera::runtime
