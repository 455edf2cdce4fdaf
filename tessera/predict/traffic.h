// Counts the bytes that ranks receive in a planned step.
#pragma once
#include "tessera/predict/planned_step.h"
#include "tessera/shard/rank_layout.h"

namespace tessera::predict {

// Sets the members busiest_rank, all_ranks and roles of `step`, whose schedule is set. `dry` is the dry step of the
// plan's trace.
void count_traffic(const shard::RankLayout& layout, const DryStep& dry, StepPlan& step);

}  // namespace tessera::predict
