// Writes the timeline of a measured step for Perfetto: the spans of all ranks' lanes.
#pragma once
#include <nlohmann/json.hpp>

#include "tessera/runtime/runtime.h"

namespace tessera::telemetry {

// Collective over the world. Called after a step whose timeline was recorded (Runtime::record_timeline). Returns the
// content of the file on rank 0 and null on the other ranks. The format is that of trace_events.h. The times of a rank
// are relative to the start of its own step, and the earliest span of all ranks is at 0. An instant event marks the
// start of each rank's step, because gathers for the step may begin earlier. The args of a span are its received bytes,
// the names of its weights, its microbatch and its pass. For compute and waits, the args contain the next event.
nlohmann::ordered_json gather_step_timeline(runtime::Runtime& runtime);

}  // namespace tessera::telemetry
