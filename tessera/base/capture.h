// Capture of lanes' work into a graph, which is launched later.
#pragma once
#include <memory>

namespace tessera::base {

// Identifies one graph during its capture. All lanes that are captured into the graph share the object (Lane::capture).
// Fences recorded during the capture belong to the graph. Only the graph's lanes can wait for these fences, because the
// device passes them at every launch. The graph's lanes can wait for an earlier fence only if it is already done. A
// Signal allows waits between a graph and work outside of the graph.
struct Capture {};

// A point that a lane passes repeatedly. Both a graph and work outside of the graph can wait for a signal
// (Lane::record). The lane sets `kept` at the first record. A signal belongs to one lane, is used by one thread, and
// must outlive the graphs that use it.
class Signal {
 public:
  std::shared_ptr<void> kept;
};

}  // namespace tessera::base
