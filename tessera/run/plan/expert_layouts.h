// Compares the ways to shard experts over the ranks of a replica, for `tessera plan`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

// The times of an average sparse layer and one microbatch, on the busiest rank, for one way to shard experts.
struct ExpertLayout {
  std::int64_t etp = 1, ep = 1, egtp = 1;
  double products_seconds =
      0;  // matrix products of experts; with ep above 1, multiplied by StepPlanRequest::expert_load
  double weights_seconds = 0;  // gathers of weights in each pass, and reductions of their gradients
  double tokens_seconds = 0;   // dispatch and combine

  // Returns the time of weights that the products do not hide. Transfers of weights run during the products; compute
  // waits for tokens.
  double exposed_weights_seconds() const;
  double total_seconds() const { return products_seconds + exposed_weights_seconds() + tokens_seconds; }
};

// Returns every ep and egtp that shards each expert matrix over the whole replica at the request's etp, by ep. Empty
// for a model without experts. Runs a dry step for each.
std::vector<ExpertLayout> expert_layouts(const StepPlanRequest& request);

// Returns the index of the layout with the shortest total; of equals, the one with the smallest ep.
std::size_t best_layout(const std::vector<ExpertLayout>& layouts);
// Returns a sentence that compares the best layout with the others.
std::string reason_for(const std::vector<ExpertLayout>& layouts);

}  // namespace tessera::run
