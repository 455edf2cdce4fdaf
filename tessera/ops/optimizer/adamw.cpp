#include "tessera/ops/optimizer/adamw.h"

#include <cmath>
#include <cstring>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const AdamW& options) : options_(options) {}

  std::string_view name() const override { return "adamw"; }
  std::vector<StatePlane> planes(quant::DType master) const override {
    TESSERA_CHECK(!options_.has_bf16_moments || master == quant::DType::fp32,
                  "adamw: moments in bf16 for masters in {}, expected fp32", name_of(master));
    const quant::DType type = options_.has_bf16_moments ? quant::DType::bf16 : master;
    return {{"exp_avg", type}, {"exp_avg_sq", type}};
  }
  std::size_t scalar_bytes() const override { return sizeof(StepScalars); }
  void scalars(const GroupRates& rates, std::int64_t number, std::byte* to) const override {
    AdamW options = options_;
    if (rates.decay) options.weight_decay = *rates.decay;
    const StepScalars scalars = step_scalars(options, rates.lr, number);
    std::memcpy(to, &scalars, sizeof scalars);
  }
  void update(std::span<const UpdateShard> shards, const std::byte* scalars, const Clip* clip,
              base::CudaStream stream) const override {
    if (stream)
      return base::cuda_only<cuda::adamw>(shards, reinterpret_cast<const StepScalars*>(scalars), clip, stream,
                                          options_.has_bf16_moments);
    for (const UpdateShard& shard : shards)
      adamw(scalars_of<StepScalars>(scalars, shard.group), shard, *clip, options_.has_bf16_moments);
  }

 private:
  AdamW options_;
};

}  // namespace

std::shared_ptr<const UpdateRule> make_rule(const AdamW& options) {
  return std::make_shared<AdamWRule>(options);
}

StepScalars step_scalars(const AdamW& options, double lr, std::int64_t number) {
  TESSERA_CHECK(number >= 1, "adamw: update {}: expected 1 or more", number);
  const double correction1 = 1 - std::pow(options.beta1, static_cast<double>(number));
  const double correction2 = 1 - std::pow(options.beta2, static_cast<double>(number));
  return {.decay = 1 - lr * options.weight_decay,
          .beta1_rest = 1 - options.beta1,
          .beta2 = options.beta2,
          .beta2_rest = 1 - options.beta2,
          .step_size = lr / correction1,
          .root_correction2 = std::sqrt(correction2),
          .eps = options.eps,
          .number = number};
}

}  // namespace tessera::ops
