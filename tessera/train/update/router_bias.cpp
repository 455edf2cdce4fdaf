#include "tessera/train/update/router_bias.h"

#include <utility>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/nn/experts/router_loss.h"
#include "tessera/ops/aten_types.h"
#include "tessera/runtime/update_calls.h"

namespace tessera::train {

RouterBiasUpdate::RouterBiasUpdate(runtime::Runtime& runtime, models::RouterBiases biases, double rate)
    : runtime_(runtime), biases_(std::move(biases)), rate_(rate) {
  if (rate_ == 0) biases_.ids.clear();
  const std::size_t elements = biases_.ids.size() * static_cast<std::size_t>(biases_.experts);
  counts_ = base::Buffer(elements * sizeof(std::int64_t), runtime.parallel().device);
}

// All tp ranks know the counts of a microbatch, but only the first tp rank adds them.
void RouterBiasUpdate::count_own(const std::vector<at::Tensor>& losses) {
  constexpr std::int64_t kFirst = 1 + nn::kRouterSums;
  const std::int64_t elements = static_cast<std::int64_t>(biases_.ids.size()) * biases_.experts;
  const shard::ParallelGroups& parallel = runtime_.parallel();
  at::Tensor counts = ops::view_of(counts_.data(), {elements}, quant::DType::i64, ops::to_device(parallel.device));
  counts.zero_();
  if (parallel.compute_group().rank != 0) return;
  for (const at::Tensor& values : losses) {
    TESSERA_CHECK(values.numel() == kFirst + elements,
                  "{} values of a microbatch, expected {} for {} routers with biases", values.numel(),
                  kFirst + elements, biases_.ids.size());
    counts.add_(values.narrow(0, kFirst, elements).to(at::kLong));
  }
}

std::vector<ops::RouterBiasPart> RouterBiasUpdate::local_parts() {
  std::vector<ops::RouterBiasPart> parts;
  const std::int64_t* counts = counts_.as<std::int64_t>().data();
  for (const schedule::ParameterId id : biases_.ids) {
    shard::ShardedParameter& bias = runtime_.parameter(id);
    for (const layout::Piece& piece : bias.local_state.pieces)
      parts.push_back({.bias = bias.state_weight() + bias.types.accumulator_bytes(piece.offset),
                       .first = piece.box.col,
                       .count = piece.box.cols,
                       .counts = counts});
    counts += biases_.experts;
  }
  return parts;
}

void RouterBiasUpdate::update(const std::vector<at::Tensor>& losses, const ops::Clip* clip) {
  if (biases_.ids.empty()) return;
  count_own(losses);
  const ops::RouterBiasRule rule{
      .type = runtime_.parameter(biases_.ids.front()).types.accumulator, .experts = biases_.experts, .rate = rate_};
  update_biases(runtime_.program(), biases_.ids, counts_.as<std::int64_t>(), [&] {
    const base::CudaStream stream = runtime_.parallel().compute->stream();
    if (stream != nullptr)
      base::cuda_only<ops::cuda::update_router_biases>(local_parts(), rule, clip, stream);
    else if (clip->applies != 0)
      ops::update_router_biases(local_parts(), rule);
    return stream != nullptr || clip->applies != 0;
  });
}

}  // namespace tessera::train
