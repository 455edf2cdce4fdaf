// Types for the capture of the work of lanes into a graph, which is launched later.
#pragma once
#include <memory>

namespace tessera::base {

// Identifies one graph during its capture. All lanes that are captured into the graph share the object (Lane::capture).
// Fences recorded during the capture belong to the graph. Only the graph's lanes can wait for these fences, because
// every launch of the graph passes the fences again. The graph's lanes can wait for a fence from before the capture
// only if that fence is done. A Signal allows waits between a graph and work outside of the graph.
struct Capture {};

// A point in the work of a lane that the lane passes repeatedly. Both a graph and work outside of the graph can wait
// for a signal (Lane::record). A signal belongs to one lane and is used by one thread. The signal must outlive the
// graphs that use it.
class Signal {
 public:
  std::shared_ptr<void> kept;
};

}  // namespace tessera::base
