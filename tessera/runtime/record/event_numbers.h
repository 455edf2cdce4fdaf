// Numbers the events of a step. The ordinal of an event is the number of earlier events in its microbatch with equal
// fields (schedule/events.h).
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
  // Later events belong to the optimizer.
  void end_step() { others_.clear(); }

  schedule::StepKind kind() const { return kind_; }
  int microbatch() const { return microbatch_; }  // number of the last microbatch begun, from 0
  bool in_microbatch() const { return in_microbatch_; }

  // Returns the next event of a parameter with its ordinal. Does not count the event.
  schedule::Event next(schedule::EventKind kind, schedule::Pass pass, schedule::ParameterId id) const;
  // Counts the event, so that the next event with equal fields gets the next ordinal.
  void happened(const schedule::Event& event);
  // Returns an event without a parameter, with its ordinal, and counts the event.
  schedule::Event other(schedule::EventKind kind, const std::string& group, const std::string& op, std::int64_t bytes,
                        schedule::Pass pass);

 private:
  using Counts = std::array<int, 27>;  // by event kind (9) and pass (3)
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
