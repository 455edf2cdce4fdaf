#include "tests/ops/experts_values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>

#include "tessera/ops/tensor.h"

namespace tessera::ops::test {

std::vector<Kind> cpu_kinds() {
  std::vector<Kind> kinds = every_kind();
  std::erase_if(kinds, [](const Kind& kind) { return kind.device != at::kCPU; });
  return kinds;
}

at::Tensor choices_tensor(const std::vector<std::int32_t>& experts, std::int64_t k) {
  at::Tensor choices = make({static_cast<std::int64_t>(experts.size()) / k, k}, at::kInt);
  std::ranges::copy(experts, choices.mutable_data_ptr<std::int32_t>());
  return choices;
}

at::Tensor random_choices(std::int64_t tokens, std::int64_t k, std::int64_t experts, std::uint64_t seed) {
  const Values scores = random_values(tokens * experts, seed);
  std::vector<std::int32_t> choices;
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [&](std::int32_t e) { return scores[static_cast<std::size_t>(token * experts + e)]; });
    choices.insert(choices.end(), order.begin(), order.begin() + k);
  }
  return choices_tensor(choices, k);
}

std::vector<ExpertsCase> experts_cases() {
  return {{.length = 5, .blocks = 3, .k = 2, .local = {.first = 2, .count = 3, .all = 7}},
          {.length = 1, .blocks = 1, .k = 1, .local = {.first = 0, .count = 1, .all = 1}},
          {.length = 1, .blocks = 1, .k = 7, .local = {.first = 0, .count = 7, .all = 7}},
          {.length = 6, .blocks = 2, .k = 7, .local = {.first = 3, .count = 2, .all = 7}},
          {.length = 3, .blocks = 2, .k = 1, .local = {.first = 4, .count = 8, .all = 16}},
          {.length = 37, .blocks = 2, .k = 3, .local = {.first = 0, .count = 4, .all = 8}},
          {.length = 0, .blocks = 2, .k = 2, .local = {.first = 1, .count = 2, .all = 4}},
          {.length = 4, .blocks = 2, .k = 3, .local = {.first = 8, .count = 0, .all = 8}}};
}

std::ostream& operator<<(std::ostream& out, const ExpertsCase& it) {
  return out << it.blocks << " blocks of " << it.length << " tokens, " << it.k << " choices, experts " << it.local.first
             << " + " << it.local.count << " of " << it.local.all;
}

std::vector<ReferenceRow> reference_rows(const at::Tensor& choices, const LocalExperts& local, std::int64_t blocks) {
  const std::int64_t tokens = choices.size(0), k = choices.size(1), length = tokens / blocks;
  const auto* experts = choices.const_data_ptr<std::int32_t>();
  std::vector<ReferenceRow> rows;
  for (std::int64_t expert = 0; expert < local.count; ++expert)
    for (std::int64_t block = 0; block < blocks; ++block)
      for (std::int64_t token = block * length; token < (block + 1) * length; ++token)
        for (std::int64_t slot = 0; slot < k; ++slot)
          if (experts[token * k + slot] == local.first + expert) rows.push_back({expert, block, token, slot});
  return rows;
}

std::vector<ReferenceRow> rows_of(const Selection& selection) {
  std::vector<ReferenceRow> rows;
  for (std::int64_t expert = 0; expert < selection.local; ++expert)
    for (std::int64_t block = 0; block < selection.blocks; ++block) {
      const auto [begin, end] = selection.rows_of(expert, block);
      for (std::int64_t row = begin; row < end; ++row)
        rows.push_back({expert, block, selection.tokens.const_data_ptr<std::int64_t>()[row],
                        selection.slots.const_data_ptr<std::int64_t>()[row]});
    }
  return rows;
}

at::Tensor random_rows(const Selection& selection, std::int64_t width, std::uint64_t seed,
                       const at::TensorOptions& options) {
  const at::Tensor rows = random_tensor({selection.room, width}, seed, options);
  const std::int64_t count = selection.rows();
  rows.narrow(0, count, selection.room - count).fill_(std::numeric_limits<double>::quiet_NaN());
  return rows;
}

at::Tensor used(const at::Tensor& rows, const Selection& selection) {
  return rows.narrow(0, 0, selection.rows());
}

at::Tensor dry_tensor(at::IntArrayRef shape, const at::TensorOptions& options) {
  return make(shape, c10::typeMetaToScalarType(options.dtype()), at::kMeta);
}

std::vector<Work> work_of(const std::function<void()>& body) {
  std::vector<Work> all;
  const WorkScope scope([&](const Work& work) { all.push_back(work); });
  body();
  return all;
}

Products multiply(const at::Tensor& left, const at::Tensor& right) {
  const Values a = values_of(left), b = values_of(right);
  const auto rows = static_cast<std::size_t>(left.size(0)), terms = static_cast<std::size_t>(left.size(1)),
             cols = static_cast<std::size_t>(right.size(1));
  Products sums{.value = Values(rows * cols), .magnitude = Values(rows * cols)};
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t term = 0; term < terms; ++term)
      for (std::size_t col = 0; col < cols; ++col) {
        const double product = a[row * terms + term] * b[term * cols + col];
        sums.value[row * cols + col] += product;
        sums.magnitude[row * cols + col] += std::abs(product);
      }
  return sums;
}

}  // namespace tessera::ops::test
