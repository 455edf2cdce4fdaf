// Work of lanes that goes into a graph, to be launched later, instead of to the device.
#pragma once
#include <memory>

namespace tessera::base {

// One such graph while it is made: what its lanes have in common (Lane::capture). Fences recorded meanwhile belong to
// it: its lanes can wait for them and nobody else can, since the device passes them at every launch. Of fences from
// before, its lanes take those that are done. Both borders can be crossed by way of a Signal.
struct Capture {};

// A point that a lane passes again and again, which a graph and what runs outside of it both know (Lane::record). What
// it holds, the lane makes at its first record; it outlives the graphs that know it. One lane's; one thread.
class Signal {
 public:
  std::shared_ptr<void> kept;
};

}  // namespace tessera::base
