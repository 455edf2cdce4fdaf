// Whether a run on GPUs can launch its steps as a graph (--cuda-graph). All functions are pure.
#pragma once
#include "tessera/settings/config.h"

namespace tessera::settings {

// Throws InputError if --cuda-graph is combined with settings that a
// graph does not support.
void check_graph(const TrainConfig& config);
// Returns whether --cuda-graph on is accepted with the other settings. Throws nothing.
bool accepts_graph(const TrainConfig& config);

}  // namespace tessera::settings
