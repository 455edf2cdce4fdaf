#include "tests/train/momentum_sgd.h"

#include <ATen/ATen.h>

#include <cstring>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/tensor.h"

namespace tessera::train::testing {
namespace {

class MomentumSgd final : public ops::UpdateRule {
 public:
  MomentumSgd(double momentum, double weight_decay) : momentum_(momentum), weight_decay_(weight_decay) {}

  std::string_view name() const override { return "momentum_sgd"; }
  std::vector<ops::StatePlane> planes(quant::DType) const override { return {{"momentum", quant::DType::bf16}}; }
  std::size_t scalar_bytes() const override { return sizeof(Scalars); }
  void scalars(const ops::GroupRates& rates, std::int64_t number, std::byte* to) const override {
    TESSERA_CHECK(number >= 1, "update {}: expected 1 or more", number);
    const Scalars scalars{.lr = rates.lr, .decay = rates.decay.value_or(weight_decay_)};
    std::memcpy(to, &scalars, sizeof scalars);
  }
  void update(std::span<const ops::UpdateShard> shards, const std::byte* scalars, const ops::Clip* clip,
              base::CudaStream stream) const override {
    const at::Device device = stream ? at::Device(at::kCUDA, at::DeviceIndex{-1}) : at::Device(at::kCPU);
    const auto number = [&](const void* address, quant::DType type) {
      return ops::view_of(const_cast<void*>(address), {1}, type, device);
    };
    const at::Tensor factor = number(&clip->factor, quant::DType::fp64);
    const at::Tensor applies = number(&clip->applies, quant::DType::i32).ne(0);
    if (stream) TESSERA_CHECK(ops::stream_of(factor) == stream, "the stream is not the current stream");
    for (const ops::UpdateShard& shard : shards) {
      check_shard(shard, 1);
      if (shard.count == 0) continue;
      const auto* of_group = reinterpret_cast<const Scalars*>(scalars) + shard.group;
      const at::Tensor lr = number(&of_group->lr, quant::DType::fp64);
      update(shard, {lr, number(&of_group->decay, quant::DType::fp64), factor, applies}, stream);
    }
  }

 private:
  struct Scalars {
    double lr = 0, decay = 0;
  };
  struct Numbers {
    at::Tensor lr, decay, factor, applies;
  };
  void update(const ops::UpdateShard& shard, const Numbers& numbers, base::CudaStream stream) const {
    const auto& [lr, decay, factor, applies] = numbers;
    const auto view = [&](const void* data, quant::DType type) {
      return ops::view_of(const_cast<void*>(data), {shard.count}, type, numbers.lr.device());
    };
    at::Tensor master;
    if (shard.is_split) {
      master = at::empty({shard.count}, at::TensorOptions(lr.device()).dtype(at::kFloat));
      ops::join_masters(split_parts(shard), shard.count, master.mutable_data_ptr<float>(), stream);
    } else {
      master = view(shard.master, shard.master_type);
    }
    const at::Tensor plane = view(shard.planes[0], quant::DType::bf16);
    const at::ScalarType type = master.scalar_type();
    const at::Tensor gradient = view(shard.gradient, shard.gradient_type).to(type) * factor.to(type);
    const at::Tensor momentum = plane.to(type) * momentum_ + gradient;
    const at::Tensor kept = 1 - lr.to(type) * decay.to(type);
    at::Tensor updated = master * kept - lr.to(type) * momentum;
    if (are_representable(shard)) {
      const at::Tensor bits = updated.view(at::kInt);
      updated = (bits - bits.bitwise_and(0x1FFFF).eq(0x8000).to(at::kInt)).view(at::kFloat);
    }
    master.copy_(at::where(applies, updated, master));
    plane.copy_(at::where(applies, momentum.to(at::kBFloat16), plane));
    if (shard.is_split) {
      ops::split_masters(master.const_data_ptr<float>(), shard.count, split_parts(shard), stream);
    } else if (shard.weight != nullptr && shard.weight != shard.master) {
      const at::Tensor weight = view(shard.weight, shard.weight_type);
      weight.copy_(at::where(applies, master.to(weight.scalar_type()), weight));
    }
    if (shard.amax != nullptr) raise_amaxes(shard, master);
  }
  static void raise_amaxes(const ops::UpdateShard& shard, const at::Tensor& master) {
    const std::int64_t elements = shard.amax_elements == 0 ? shard.amax_offset + shard.count : shard.amax_elements;
    const std::int64_t matrices = (shard.amax_offset + shard.count + elements - 1) / elements;
    at::Tensor amaxes = ops::view_of(shard.amax, {matrices}, quant::DType::fp32, master.device());
    const at::Tensor matrix =
        at::arange(shard.count, master.options().dtype(at::kLong)).add(shard.amax_offset).floor_divide(elements);
    const at::Tensor magnitudes = master.to(at::kBFloat16).to(at::kFloat).abs();
    amaxes.scatter_reduce_(0, matrix, at::where(magnitudes.isnan(), 0, magnitudes), "amax");
  }

  double momentum_, weight_decay_;
};

}  // namespace

std::shared_ptr<const ops::UpdateRule> momentum_sgd(double momentum, double weight_decay) {
  return std::make_shared<MomentumSgd>(momentum, weight_decay);
}

}  // namespace tessera::train::testing
