// Compares the degrees (etp, ep, egtp) with which experts can be sharded over the ranks of a replica, for `tessera
// plan`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/step_plan.h"

namespace tessera::plan {

// One choice of degrees, with the predicted times of an average sparse layer for one microbatch on the busiest rank.
struct ExpertLayout {
  std::int64_t etp = 1, ep = 1, egtp = 1;
  // Time of the experts' matrix products, multiplied by StepPlanRequest::expert_load, but at most by ep.
  double products_seconds = 0;
  double weights_seconds = 0;  // time of the weights' gathers in each pass, and of the reductions of their gradients
  double tokens_seconds = 0;   // time of dispatch and combine

  // Returns the part of weights_seconds that compute waits for. Transfers of weights overlap with the products.
  // Dispatch and combine do not.
  double exposed_weights_seconds() const;
  double total_seconds() const { return products_seconds + exposed_weights_seconds() + tokens_seconds; }
};

// Returns all choices of ep and egtp that, with the request's etp, shard each expert matrix over the whole replica. The
// choices are ordered by ep. Empty for a model without experts. Runs a dry step for each choice.
std::vector<ExpertLayout> expert_layouts(const StepPlanRequest& request);

// Returns the index of the layout with the shortest total time. If several layouts have this time, returns the one with
// the smallest ep.
std::size_t best_layout(const std::vector<ExpertLayout>& layouts);
// Returns a sentence that compares the best layout with the others.
std::string reason_for(const std::vector<ExpertLayout>& layouts);

}  // namespace tessera::plan
