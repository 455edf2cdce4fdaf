#include "tessera/ops/experts/selection.h"

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/experts/experts_device.h"
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

Selection select_rows(const at::Tensor& experts, const LocalExperts& local, std::int64_t blocks) {
  const at::Tensor choices = dense(experts, 2, "choices of experts");
  require_host(choices, "select_rows");
  const std::int64_t tokens = choices.size(0), k = choices.size(1);
  TESSERA_CHECK(blocks >= 1 && tokens % blocks == 0, "{} tokens in {} blocks, expected blocks of equal length", tokens,
                blocks);
  Selection selection{.local = local.count,
                      .blocks = blocks,
                      .group_tokens = tokens,
                      .k = k,
                      .room = tokens * std::min(k, local.count)};
  selection.expected = std::min(selection.room, (tokens * k * local.count + local.all - 1) / local.all);
  const at::Device device = choices.device();
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
