#include "tessera/ops/router/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

// Counts the rows of each expert and block, and returns the first row of each, followed by the total.
std::vector<std::int64_t> first_rows(const std::int32_t* experts, std::int64_t tokens, std::int64_t k,
                                     const LocalExperts& local, std::int64_t blocks) {
  std::vector<std::int64_t> first(static_cast<std::size_t>(local.count * blocks) + 1, 0);
  const std::int64_t length = tokens / blocks;
  for (std::int64_t token = 0; token < tokens; ++token)
    for (std::int64_t slot = 0; slot < k; ++slot) {
      const std::int64_t expert = experts[token * k + slot];
      TESSERA_CHECK(expert >= -1 && expert < local.all, "token {} chooses expert {} of {}", token, expert, local.all);
      if (expert < local.first || expert >= local.first + local.count) continue;
      ++first[static_cast<std::size_t>((expert - local.first) * blocks + token / length) + 1];
    }
  for (std::size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
  return first;
}

void select_on_device(const at::Tensor& choices, const LocalExperts& local, const RowRoom& room, Selection& selection) {
  TESSERA_CHECK(local.count <= kMaxDeviceExperts, "select_rows: {} local experts, expected at most {} on a GPU",
                local.count, kMaxDeviceExperts);
  TESSERA_CHECK(selection.room <= std::numeric_limits<std::int32_t>::max(),
                "select_rows: {} rows, expected fewer than 2^31 on a GPU", selection.room);
  const at::Device device = choices.device();
  selection.rows_by_slot = make(choices.sizes(), at::kInt, device);
  selection.rows_in_order = make(choices.sizes(), at::kInt, device);
  selection.row_tokens = make({selection.room}, at::kInt, device);
  selection.ends = make({local.count}, at::kInt, device);
  selection.block_ends =
      selection.blocks == 1 ? selection.ends : make({local.count * selection.blocks}, at::kInt, device);
  at::Tensor scratch = make({cuda_only<cuda::select_rows_scratch>(choices.size(0), local.count)}, at::kInt, device);
  cuda_only<cuda::select_rows>({.tokens = choices.size(0),
                                .k = choices.size(1),
                                .first = local.first,
                                .local = local.count,
                                .room = selection.room,
                                .expected = selection.expected,
                                .overflows = room.overflows,
                                .needed = room.needed,
                                .choices = choices.const_data_ptr<std::int32_t>(),
                                .counts = scratch.mutable_data_ptr<std::int32_t>(),
                                .rows_by_slot = selection.rows_by_slot.mutable_data_ptr<std::int32_t>(),
                                .rows_in_order = selection.rows_in_order.mutable_data_ptr<std::int32_t>(),
                                .row_tokens = selection.row_tokens.mutable_data_ptr<std::int32_t>(),
                                .ends = selection.ends.mutable_data_ptr<std::int32_t>(),
                                .blocks = selection.blocks,
                                .block_ends = selection.block_ends.mutable_data_ptr<std::int32_t>()},
                               stream_of(choices));
}

}  // namespace

std::pair<std::int64_t, std::int64_t> Selection::rows_of(std::int64_t expert, std::int64_t block) const {
  const std::int64_t* first = offsets.const_data_ptr<std::int64_t>() + expert * blocks + block;
  return {first[0], first[1]};
}

std::pair<std::int64_t, std::int64_t> Selection::rows_of(std::int64_t expert) const {
  const std::int64_t* first = offsets.const_data_ptr<std::int64_t>() + expert * blocks;
  return {first[0], first[blocks]};
}

std::int64_t Selection::rows() const {
  return offsets.const_data_ptr<std::int64_t>()[local * blocks];
}

std::int64_t expected_rows(std::int64_t tokens, std::int64_t k, const LocalExperts& local) {
  return std::min(tokens * std::min(k, local.count), (tokens * k * local.count + local.all - 1) / local.all);
}

std::int64_t allocated_rows(std::int64_t tokens, std::int64_t k, const LocalExperts& local, double factor) {
  const std::int64_t most = tokens * std::min(k, local.count);
  if (factor == 0) return most;
  const double rows = std::ceil(factor * static_cast<double>(expected_rows(tokens, k, local)));
  return rows < static_cast<double>(most) ? static_cast<std::int64_t>(rows) : most;
}

Selection select_rows(const at::Tensor& experts, const LocalExperts& local, std::int64_t blocks, const RowRoom& room) {
  const at::Tensor choices = dense(experts, 2, "choices of experts");
  const std::int64_t tokens = choices.size(0), k = choices.size(1);
  TESSERA_CHECK(blocks >= 1 && tokens % blocks == 0, "{} tokens in {} blocks, expected blocks of equal length", tokens,
                blocks);
  const bool is_limited = on_cuda(choices) || is_dry(choices);
  Selection selection{.first = local.first,
                      .local = local.count,
                      .blocks = blocks,
                      .group_tokens = tokens,
                      .k = k,
                      .room = allocated_rows(tokens, k, local, is_limited ? room.factor : 0),
                      .expected = expected_rows(tokens, k, local)};
  const at::Device device = choices.device();
  if (on_cuda(choices)) {
    select_on_device(choices, local, room, selection);
    return selection;
  }
  selection.tokens = make({selection.room}, at::kLong, device);
  selection.slots = make({selection.room}, at::kLong, device);
  selection.offsets = make({local.count * blocks + 1}, at::kLong, device);
  if (is_dry(choices)) {
    report(memory_work("select rows", bytes_of({choices}) + selection.expected * 16));
    return selection;
  }
  const auto* chosen = choices.const_data_ptr<std::int32_t>();
  std::vector<std::int64_t> next = first_rows(chosen, tokens, k, local, blocks);
  std::ranges::copy(next, selection.offsets.mutable_data_ptr<std::int64_t>());
  auto* row_tokens = selection.tokens.mutable_data_ptr<std::int64_t>();
  auto* row_slots = selection.slots.mutable_data_ptr<std::int64_t>();
  const std::int64_t length = tokens / blocks;
  for (std::int64_t token = 0; token < tokens; ++token)
    for (std::int64_t slot = 0; slot < k; ++slot) {
      const std::int64_t expert = chosen[token * k + slot] - local.first;
      if (expert < 0 || expert >= local.count) continue;
      const std::int64_t row = next[static_cast<std::size_t>(expert * blocks + token / length)]++;
      row_tokens[row] = token;
      row_slots[row] = slot;
    }
  return selection;
}

}  // namespace tessera::ops
