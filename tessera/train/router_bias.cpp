#include "tessera/train/router_bias.h"

#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/experts/router_loss.h"
#include "tessera/ops/experts/bias_update.h"

namespace tessera::train {

RouterBiasUpdate::RouterBiasUpdate(runtime::Runtime& runtime, models::RouterBiases biases, double rate)
    : runtime_(runtime), biases_(std::move(biases)), rate_(rate) {
  if (rate_ == 0) biases_.ids.clear();
  if (!biases_.ids.empty() && runtime.parallel().is_asynchronous())
    throw InputError("--expert-bias-rate: got {}, expected 0: router biases change on CPUs only in this version",
                     rate_);
}

// Returns the counts that this rank adds to the sum over the world. All tp ranks know the counts of a microbatch, but
// only the first tp rank adds them.
std::vector<std::int64_t> RouterBiasUpdate::counts_of(const std::vector<at::Tensor>& losses) const {
  const std::size_t elements = biases_.ids.size() * static_cast<std::size_t>(biases_.experts);
  std::vector<std::int64_t> counts(elements, 0);
  if (runtime_.parallel().compute_group().rank != 0) return counts;
  constexpr std::size_t kFirst = 1 + nn::kRouterSums;
  for (const at::Tensor& values : losses) {
    TESSERA_CHECK(static_cast<std::size_t>(values.numel()) == kFirst + elements,
                  "{} values of a microbatch, expected {} for {} routers with biases", values.numel(),
                  kFirst + elements, biases_.ids.size());
    const double* own = values.const_data_ptr<double>() + kFirst;
    for (std::size_t i = 0; i < elements; ++i) counts[i] += static_cast<std::int64_t>(own[i]);
  }
  return counts;
}

void RouterBiasUpdate::update(const std::vector<at::Tensor>& losses, const ops::Clip* clip) {
  if (biases_.ids.empty()) return;
  std::vector<std::int64_t> counts = counts_of(losses);
  runtime_.program().reduce_counts(counts);
  if (clip->applies == 0) return;
  const auto experts = static_cast<std::size_t>(biases_.experts);
  for (std::size_t layer = 0; layer < biases_.ids.size(); ++layer) {
    shard::ShardedParameter& bias = runtime_.parameter(biases_.ids[layer]);
    for (const layout::Piece& piece : bias.local_state.pieces)
      ops::update_router_bias(bias.state_weight() + bias.types.accumulator_bytes(piece.offset), bias.types.accumulator,
                              piece.box.col, piece.box.cols, std::span(counts).subspan(layer * experts, experts),
                              rate_);
  }
  runtime_.program().publish(biases_.ids);
}

}  // namespace tessera::train
