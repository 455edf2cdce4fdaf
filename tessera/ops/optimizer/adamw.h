// AdamW (Loshchilov & Hutter 2019). The formula is that of torch.optim.AdamW: decoupled decay, bias correction, eps
// outside the square root.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "tessera/ops/optimizer/update_rule.h"

namespace tessera::ops {

struct AdamW {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  // True: the moments are stored in bf16. An update computes with its new moments in fp32 and then rounds them
  // stochastically (state_rounding.h).
  bool has_bf16_moments = false;
};

// Returns the rule with the state planes exp_avg and exp_avg_sq, in the type of the master or in bf16. Moments in bf16
// need masters in fp32; planes() throws Error for other masters.
std::shared_ptr<const UpdateRule> make_rule(const AdamW& options);

// The numbers that change from update to update. They are computed in fp64, as in torch. The kernel rounds each number
// once to the arithmetic type.
struct StepScalars {
  double decay = 1, beta1_rest = 0, beta2 = 0, beta2_rest = 0, step_size = 0, root_correction2 = 1, eps = 0;
  std::int64_t number = 0;  // of the update
};
// Throws Error if `number` is below 1.
StepScalars step_scalars(const AdamW& options, double lr, std::int64_t number);

// UpdateRule::update of the rule on the host, for one shard with the scalars of its group.
void adamw(const StepScalars& scalars, const UpdateShard& shard, const Clip& clip = {}, bool has_bf16_moments = false);

namespace cuda {
// UpdateRule::update of the rule on a device, with as few launches as the types allow. `scalars` are those of the
// groups of the shards. If `clip` is null, the clip factor is 1.
void adamw(std::span<const UpdateShard> shards, const StepScalars* scalars, const Clip* clip, base::CudaStream stream,
           bool has_bf16_moments);
}  // namespace cuda

}  // namespace tessera::ops
