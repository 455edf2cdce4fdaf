#include "tessera/ops/experts/capacity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

// Sets the choices of one block that exceed the capacity to -1. choices, weights: [tokens * k].
template <typename A>
void drop_in_block(std::int32_t* choices, const A* weights, std::int64_t count, const LocalExperts& local,
                   std::int64_t capacity) {
  std::vector<std::vector<std::int64_t>> by_expert(static_cast<std::size_t>(local.count));
  for (std::int64_t i = 0; i < count; ++i)
    if (const std::int64_t expert = choices[i] - local.first; expert >= 0 && expert < local.count)
      by_expert[static_cast<std::size_t>(expert)].push_back(i);
  const auto is_before = [&](std::int64_t a, std::int64_t b) {
    const bool a_is_number = !std::isnan(weights[a]), b_is_number = !std::isnan(weights[b]);
    if (a_is_number != b_is_number) return a_is_number;
    return a_is_number && weights[a] > weights[b];
  };
  for (std::vector<std::int64_t>& own : by_expert) {
    if (static_cast<std::int64_t>(own.size()) <= capacity) continue;
    std::ranges::stable_sort(own, is_before);
    for (auto dropped = own.begin() + capacity; dropped != own.end(); ++dropped) choices[*dropped] = -1;
  }
}

}  // namespace

std::int64_t capacity_of(double factor, std::int64_t tokens, std::int64_t k, std::int64_t experts) {
  // Without this tolerance, 1.1 * 100 / 10 would be rounded up to 12, because 1.1 has no exact binary representation.
  constexpr double kTolerance = 1e-12;
  const double rows =
      factor * static_cast<double>(tokens) * static_cast<double>(k) / static_cast<double>(experts) * (1 - kTolerance);
  const auto all = static_cast<double>(tokens);  // a token chooses an expert at most once
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(std::min(rows, all))));
}

at::Tensor within_capacity(const at::Tensor& experts, const at::Tensor& weights, const LocalExperts& local,
                           std::int64_t blocks, std::int64_t capacity) {
  const at::Tensor choices = dense(experts, 2, "choices of experts");
  const at::Tensor own_weights = dense_like(weights, choices.sizes(), weights.scalar_type(), "routing weights");
  const std::int64_t tokens = choices.size(0), k = choices.size(1);
  TESSERA_CHECK(blocks >= 1 && tokens % blocks == 0, "{} tokens in {} blocks, expected blocks of equal length", tokens,
                blocks);
  at::Tensor kept = make(choices.sizes(), at::kInt, choices.device());
  if (is_dry(choices)) {
    report(memory_work("expert capacity", bytes_of({choices, own_weights, kept})));
    return kept;
  }
  kept.copy_(choices);
  if (on_cuda(choices)) {
    cuda_only<cuda::drop_beyond_capacity>({.type = to_dtype(own_weights.scalar_type()),
                                           .length = tokens / blocks,
                                           .blocks = blocks,
                                           .k = k,
                                           .first = local.first,
                                           .local = local.count,
                                           .capacity = capacity,
                                           .choices = choices.const_data_ptr<std::int32_t>(),
                                           .weights = own_weights.const_data_ptr(),
                                           .kept = kept.mutable_data_ptr<std::int32_t>()},
                                          stream_of(choices));
    return kept;
  }
  const std::int64_t length = tokens / blocks * k;
  dispatch_accumulator(to_dtype(own_weights.scalar_type()), [&](auto element) {
    using A = decltype(element);
    for (std::int64_t block = 0; block < blocks; ++block)
      drop_in_block(kept.mutable_data_ptr<std::int32_t>() + block * length,
                    static_cast<const A*>(own_weights.const_data_ptr()) + block * length, length, local, capacity);
  });
  return kept;
}

}  // namespace tessera::ops
