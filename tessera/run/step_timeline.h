// A measured step for Perfetto: the activities of all ranks' lanes in the last step that the runtime recorded.
#pragma once
#include <nlohmann/json.hpp>

#include "tessera/runtime/runtime.h"

namespace tessera::run {

// Collective over the world; called after a recorded step (Runtime::record_timeline). Returns the content of the file
// on rank 0 and null on the other ranks. The format is that of trace_events.h, with the earliest span of all ranks at
// 0. An instant event marks the start of each rank's step, because gathers for the step may begin earlier. Times of a
// rank are relative to the start of its own step. args: bytes received, the weights' names, microbatch and pass; for
// compute and waits, the next event.
nlohmann::ordered_json gather_step_timeline(runtime::Runtime& runtime);

}  // namespace tessera::run
