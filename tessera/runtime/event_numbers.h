// Numbers a step's events: how often each has happened in its microbatch (schedule/events.h). One definition for steps
// that run and for dry ones.
#pragma once
#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/runtime/program.h"
#include "tessera/schedule/events.h"

namespace tessera::runtime {

// What a collective of the program is in the trace, and what it moves between the ranks of its group.
struct CollectiveTraffic {
  const char* op = "";
  std::int64_t given = 0;     // bytes that this rank brings: of the event
  std::int64_t received = 0;  // bytes that this rank receives
  quant::Format format = quant::Format::bf16;
};
CollectiveTraffic traffic_of(const ProgramCollective& collective, const shard::ComputeGroup& group);

class EventNumbers {
 public:
  void begin_step(schedule::StepKind kind);
  void begin_microbatch();
  void end_microbatch() { in_microbatch_ = false; }
  // Of what comes behind the microbatches.
  void end_step() { others_.clear(); }

  schedule::StepKind kind() const { return kind_; }
  int microbatch() const { return microbatch_; }  // the last begun, from 0
  bool in_microbatch() const { return in_microbatch_; }

  // The event of a parameter that would be recorded now.
  schedule::Event next(schedule::EventKind kind, schedule::Pass pass, schedule::ParameterId id) const;
  // It has happened.
  void happened(const schedule::Event& event);
  // An event without a parameter, which happens.
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
