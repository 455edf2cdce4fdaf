// The line that suggests --cuda-graph on.
#pragma once
#include <cstdint>
#include <string>

namespace tessera::telemetry {

// The times of some steps of one rank, and whether a graph is possible.
struct HostShare {
  double waiting_seconds = 0;  // seconds in which the GPU waited for its host (StepStatistics::waiting_seconds)
  double step_seconds = 0;     // seconds of the steps
  bool accepts_graph = false;  // whether --cuda-graph on is accepted with the other settings
  bool has_graph = false;      // whether --cuda-graph is on
};

// Returns a line that names --cuda-graph on, without an end of line. Returns "" if the GPU waited for at most half of
// the time, or if a graph is not possible or already used.
std::string graph_hint(const HostShare& share);

// Decides once in a run whether to print the line.
class GraphHint {
 public:
  // The measured steps come after the first steps, in which kernels are loaded and the schedule is made.
  static constexpr std::int64_t kFirstMeasured = 10, kSteps = 20;

  GraphHint(bool accepts_graph, bool has_graph) : share_{.accepts_graph = accepts_graph, .has_graph = has_graph} {}

  // Returns whether the step must measure the waits for the host. `number` counts the steps of this process, from 0.
  bool is_measured(std::int64_t number) const;
  // Adds the times of a finished step. Returns graph_hint() after step number kSteps - 1, and "" after other steps.
  std::string add(std::int64_t number, double waiting_seconds, double step_seconds);

 private:
  HostShare share_;
};

}  // namespace tessera::telemetry
