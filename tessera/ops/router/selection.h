// The rows that the local experts of a rank compute, for the tokens of a group of ranks.
//
// Each token chooses k experts. A rank owns a range of experts. There is a row for each choice of a local expert by a
// token. Rows are ordered by expert, then block, then token. A block is the microbatch of one reader (docs/experts.md).
// The order therefore does not depend on how the ranks exchange the tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace tessera::ops {

// The rows of the local experts. On a GPU, the rows are known only in device memory, and only the operators of this
// folder read them.
struct Selection {
  // Defined on a CPU and in a dry run:
  at::Tensor tokens;  // [room] int64: the row's token
  at::Tensor slots;   // [room] int64: index of the row's choice among the token's k choices
  // [local * blocks + 1] int64: first row of each expert and block; the last entry is the number of rows.
  at::Tensor offsets;
  // Defined on a GPU, all int32:
  at::Tensor rows_by_slot;   // [group_tokens, k]: the row of each choice; -1: the choice has no row
  at::Tensor rows_in_order;  // [group_tokens, k]: the rows of each token by ascending expert; -1 after the last row
  at::Tensor row_tokens;     // [room]: the token of each row
  at::Tensor ends;           // [local]: the end of the rows of each expert
  at::Tensor block_ends;     // [local * blocks]: the end of the rows of each expert in each block
  std::int64_t first = 0;    // the first local expert
  std::int64_t local = 0, blocks = 1;
  std::int64_t group_tokens = 0;  // tokens of all blocks
  std::int64_t k = 1;             // choices of a token
  // Allocated rows: enough for all possible choices, or fewer on a GPU (RowRoom). Rows from rows() on are never read.
  std::int64_t room = 0;
  std::int64_t expected = 0;  // number of rows if all experts were chosen equally often; dry runs report this number

  // Returns the rows [begin, end) of one expert in one block. Available only on a CPU.
  std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t expert, std::int64_t block) const;
  std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t expert) const;  // the expert's rows in all blocks
  std::int64_t rows() const;                                                 // number of rows of all local experts
};

// The local experts of a rank: [first, first + count) of `all`.
struct LocalExperts {
  std::int64_t first = 0, count = 0, all = 0;
};

// Limits the allocated rows on a GPU and in a dry run. If the choices need more rows, the last rows are dropped: they
// are read as zeros, and *overflows is incremented. A CPU ignores the limit.
struct RowRoom {
  double factor = 0;  // allocated rows, divided by Selection::expected; 0: enough rows for all possible choices
  std::int64_t* overflows = nullptr;  // in device memory; may be null
  // In device memory; may be null. If rows are dropped: set to at least the factor that the choices need.
  double* needed = nullptr;
};

// Returns the number of rows of `tokens` tokens with k choices each if all experts were chosen equally often, rounded
// up.
std::int64_t expected_rows(std::int64_t tokens, std::int64_t k, const LocalExperts& local);
// Returns the number of allocated rows: the rows of all possible choices, or ceil(factor * expected_rows) if this
// number is smaller and `factor` is not 0.
std::int64_t allocated_rows(std::int64_t tokens, std::int64_t k, const LocalExperts& local, double factor);

// Selects the rows of the local experts. `experts`: [tokens, k] int32, the choices of each token, distinct per token.
// A choice of -1 has no row (capacity.h). The tokens consist of `blocks` blocks of equal length. Throws Error for a
// choice outside [-1, all); on a GPU such a choice has no row. A GPU supports kMaxDeviceExperts local experts.
Selection select_rows(const at::Tensor& experts, const LocalExperts& local, std::int64_t blocks,
                      const RowRoom& room = {});

}  // namespace tessera::ops
