// The expected time of a graph of a training step. The graph's time limit depends on this time.
#pragma once
#include <algorithm>
#include <optional>

namespace tessera::train {

class GraphTime {
 public:
  // Returns the number of the newest graph: 1 for the first graph, and 0 if no graph was captured yet.
  int graph() const { return graph_; }
  // Called when a new graph is captured. Launches of earlier graphs no longer count.
  void captured() {
    ++graph_;
    shortest_.reset();
  }
  // Adds the time of a step that has ended. `graph` is the number of the graph that the step launched. It is 0 if the
  // step launched no graph.
  void add(double seconds, int graph) {
    longest_ = std::max(longest_, seconds);
    if (graph > 0 && graph == graph_) shortest_ = std::min(shortest_.value_or(seconds), seconds);
  }
  // Returns the shortest time of a step that launched the newest graph. All launches do the same work, and longer steps
  // also contain a capture or other work of the host. Before the first such step ends, returns the longest time of all
  // steps.
  double seconds() const { return shortest_.value_or(longest_); }

 private:
  int graph_ = 0;
  std::optional<double> shortest_;
  double longest_ = 0;
};

}  // namespace tessera::train
