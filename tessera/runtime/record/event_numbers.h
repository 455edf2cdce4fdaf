// Numbers the events of a step. The ordinal of an event is the number of earlier events in its microbatch with equal
// fields (schedule/events.h). Several microbatches may be open, and each has its own ordinals.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::runtime {

class EventNumbers {
 public:
  void begin_step(schedule::StepKind kind);
  void begin_microbatch(int microbatch);  // throws Error unless the number is the next one
  void end_microbatch(int microbatch) { open_.erase(microbatch); }
  // Later events belong to the optimizer.
  void end_step() { outside_ = {}; }

  schedule::StepKind kind() const { return kind_; }
  int microbatch() const { return microbatch_; }  // number of the last microbatch begun, from 0
  bool in_microbatch() const { return !open_.empty(); }
  void check_open(int microbatch) const;  // throws Error if the microbatch is not open

  // Returns the next event of a parameter with its ordinal. Does not count the event.
  schedule::Event next(schedule::EventKind kind, schedule::PassId pass, schedule::ParameterId id);
  // Counts the event, so that the next event with equal fields gets the next ordinal.
  void happened(const schedule::Event& event);
  // Returns an event without a parameter, with its ordinal, and counts the event.
  schedule::Event other(schedule::EventKind kind, const std::string& group, const std::string& op, std::int64_t bytes,
                        schedule::PassId pass);

 private:
  using Counts = std::array<int, 27>;  // by event kind (9) and pass (3)
  struct Counters {
    std::vector<Counts> parameters;
    std::unordered_map<std::string, int> others;
  };
  static std::size_t place(schedule::EventKind kind, schedule::Pass pass) {
    return static_cast<std::size_t>(kind) * 3 + static_cast<std::size_t>(pass);
  }
  // Returns the counters of an open microbatch. If no microbatch is open, -1 gives the counters of the optimizer.
  Counters& counters(int microbatch);

  schedule::StepKind kind_ = schedule::StepKind::train;
  int microbatch_ = -1;
  std::map<int, Counters> open_;  // by microbatch
  Counters outside_;
};

}  // namespace tessera::runtime
