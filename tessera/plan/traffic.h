// Counts the bytes that ranks receive in a planned step.
#pragma once
#include "tessera/plan/step_plan.h"
#include "tessera/shard/rank_layout.h"

namespace tessera::plan {

// Sets the members busiest_rank, all_ranks and roles of `step`, whose schedule is set. `dry` is the dry step of the
// plan's trace.
void count_traffic(const shard::RankLayout& layout, const predict::DryStep& dry, StepPlan& step);

}  // namespace tessera::plan
