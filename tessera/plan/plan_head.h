// The first lines of the output of `tessera plan`: mesh, batch, memory, step, tokens/s, and the number formats.
#pragma once
#include <cstdint>
#include <string>

#include "tessera/plan/step_plan.h"

namespace tessera::plan {

// The figures of a planned step. In a mesh with unused places: of the replica that needs the most memory, and of the
// slowest replica.
struct PlanFigures {
  MemoryUse memory;
  double seconds = 0;  // duration of a step
  double mfu = 0;
  std::int64_t microbatches = 1;
};

// Returns the lines. The line of the memory states both the bytes that a rank needs and the bytes that it may use.
std::string head_text(const StepPlanRequest& request, const PlanFigures& figures);

// Returns ", predicted with rates that nobody measured: links.between_nodes (50 GB/s)", with the keys of
// unmeasured_keys(). Returns "" without such keys.
std::string unmeasured_text(const StepPlanRequest& request);

// Returns for example "1.50 GB".
std::string bytes_text(std::int64_t bytes);

}  // namespace tessera::plan
