// A measured step for Perfetto: what every rank's lanes did in the last step that its runtime recorded.
#pragma once
#include <nlohmann/json.hpp>

#include "tessera/runtime/runtime.h"

namespace tessera::run {

// Collective over the world, after a step that was recorded (Runtime::record_timeline). On rank 0 the file's content,
// on the others null. As trace_events.h has it, the first span of any rank at 0; an instant event says where a rank's
// step begins, since gathers for it may begin before. Every rank's times are from its own beginning of the step.
// args: bytes (received), the weights' names, microbatch and pass; of compute and waits the event that comes next.
nlohmann::ordered_json gather_step_timeline(runtime::Runtime& runtime);

}  // namespace tessera::run
