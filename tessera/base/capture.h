// Work of lanes that goes into a graph, to be launched later, instead of to the device.
#pragma once

namespace tessera::base {

// One such graph while it is made: what its lanes have in common (Lane::capture). Fences recorded meanwhile belong to
// it: its lanes can wait for them and nobody else can, since the device passes them at every launch. Of fences from
// before, its lanes take those that are done.
struct Capture {};

}  // namespace tessera::base
