#include "tessera/ops/optimizer/matrices/muon.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

using base::cuda_only;

class MuonRule final : public MatrixRule {
 public:
  explicit MuonRule(const Muon& options) : options_(options) {}

  std::string_view name() const override { return "muon"; }
  std::vector<StatePlane> planes(quant::DType master) const override {
    TESSERA_CHECK(!options_.has_bf16_momentum || master == quant::DType::fp32,
                  "muon: a momentum in bf16 for masters in {}, expected fp32", name_of(master));
    return {{"momentum", options_.has_bf16_momentum ? quant::DType::bf16 : master}};
  }
  std::size_t scalar_bytes() const override { return sizeof(MuonScalars); }
  void scalars(const GroupRates& rates, std::int64_t number, std::byte* to) const override {
    Muon options = options_;
    if (rates.decay) options.weight_decay = *rates.decay;
    const MuonScalars scalars = muon_scalars(options, rates.lr, number);
    std::memcpy(to, &scalars, sizeof scalars);
  }
  void directions(std::span<const DirectionShard> shards, const std::byte* scalars, const Clip* clip,
                  base::CudaStream stream) const override {
    if (stream != nullptr)
      return cuda_only<cuda::muon_directions>(shards, reinterpret_cast<const MuonScalars*>(scalars), clip, stream,
                                              options_.has_bf16_momentum);
    for (const DirectionShard& shard : shards)
      muon_directions(scalars_of<MuonScalars>(scalars, shard.group), shard, *clip, options_.has_bf16_momentum);
  }
  std::int64_t scratch_bytes(const MatrixBatch& batch) const override { return newton_schulz_scratch(batch); }
  void iterate(const MatrixBatch& batch, base::CudaStream stream) const override {
    if (stream != nullptr)
      newton_schulz_on_device(batch, options_.steps, stream);
    else
      newton_schulz(batch, options_.steps);
  }
  void update(std::span<const UpdateShard> shards, const std::byte* scalars, const Clip* clip,
              base::CudaStream stream) const override {
    if (stream != nullptr)
      return cuda_only<cuda::muon_update>(shards, reinterpret_cast<const MuonScalars*>(scalars), clip, stream);
    for (const UpdateShard& shard : shards) muon_update(scalars_of<MuonScalars>(scalars, shard.group), shard, *clip);
  }
  double factor(std::int64_t rows, std::int64_t cols) const override { return muon_scale(options_.scale, rows, cols); }
  double flops(std::int64_t rows, std::int64_t cols) const override {
    return newton_schulz_flops(rows, cols, options_.steps);
  }

 private:
  Muon options_;
};

}  // namespace

void check_shard(const DirectionShard& shard) {
  TESSERA_CHECK(shard.count >= 0, "directions: count {}: expected 0 or more", shard.count);
  TESSERA_CHECK((shard.gradient && shard.plane && shard.direction) || shard.count == 0,
                "directions: the gradient, the state plane or the direction is null for {} elements", shard.count);
}

double muon_scale(MuonScale scale, std::int64_t rows, std::int64_t cols) {
  const auto a = static_cast<double>(rows), b = static_cast<double>(cols);
  return scale == MuonScale::moonshot ? 0.2 * std::sqrt(std::max(a, b)) : std::sqrt(std::max(1.0, a / b));
}

std::shared_ptr<const MatrixRule> make_matrix_rule(const Muon& options) {
  return std::make_shared<MuonRule>(options);
}

MuonScalars muon_scalars(const Muon& options, double lr, std::int64_t number) {
  TESSERA_CHECK(number >= 1, "muon: update {}: expected 1 or more", number);
  return {.decay = 1 - lr * options.weight_decay,
          .rate = lr,
          .momentum = options.momentum,
          .momentum_rest = 1 - options.momentum,
          .nesterov = options.nesterov ? 1 : 0,
          .number = number};
}

}  // namespace tessera::ops
