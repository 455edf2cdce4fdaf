// Makes choices of experts and the corresponding rows, for the tests of ops/experts.
#pragma once
#include <functional>
#include <vector>

#include "tessera/ops/router/selection.h"
#include "tessera/ops/work.h"
#include "tests/ops/values.h"

namespace tessera::ops::test {

// Returns fp32, bf16 and fp64 on the CPU.
std::vector<Kind> cpu_kinds();

at::Tensor choices_tensor(const std::vector<std::int32_t>& experts, std::int64_t k);
// Returns k distinct experts of `experts` for each token.
at::Tensor random_choices(std::int64_t tokens, std::int64_t k, std::int64_t experts, std::uint64_t seed);

// The tokens of a group, and the experts of one of its ranks.
struct ExpertsCase {
  std::int64_t length, blocks;  // `blocks` blocks of `length` tokens
  std::int64_t k;
  LocalExperts local;

  std::int64_t tokens() const { return length * blocks; }
  Selection select(std::uint64_t seed) const {
    return select_rows(random_choices(tokens(), k, local.all, seed), local, blocks);
  }
};
// Returns cases with several blocks, with one token, with all experts chosen, with experts without rows, without
// tokens, and without local experts.
std::vector<ExpertsCase> experts_cases();
std::ostream& operator<<(std::ostream& out, const ExpertsCase& it);

struct ReferenceRow {
  std::int64_t expert, block, token, slot;  // `expert` is the index among the local experts
};
// Returns the rows of the local experts, computed from their definition.
std::vector<ReferenceRow> reference_rows(const at::Tensor& choices, const LocalExperts& local, std::int64_t blocks);
// Returns the rows of a selection in the form of reference_rows.
std::vector<ReferenceRow> rows_of(const Selection& selection);

// Returns random rows for `selection`. Rows from selection.rows() on are NaN, so the result of a kernel that reads such
// a row contains NaN.
at::Tensor random_rows(const Selection& selection, std::int64_t width, std::uint64_t seed,
                       const at::TensorOptions& options);
// Returns the first selection.rows() rows.
at::Tensor used(const at::Tensor& rows, const Selection& selection);
// The sum, and the sum of magnitudes, of left[row, term] right[term, col] in fp64.
struct Products {
  Values value, magnitude;
};
Products multiply(const at::Tensor& left, const at::Tensor& right);

// Returns a tensor without memory, for dry runs.
at::Tensor dry_tensor(at::IntArrayRef shape, const at::TensorOptions& options);
// Returns the work that `body` reports.
std::vector<Work> work_of(const std::function<void()>& body);

}  // namespace tessera::ops::test
