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

// On a GPU the host does not know the rows, and only the operators of this folder read them.
struct Selection {
  // On a CPU and in a dry run.
  at::Tensor tokens;  // [room] int64: the row's token
  at::Tensor slots;   // [room] int64: index of the row's choice among the token's k choices
  // [local * blocks + 1] int64: first row of each expert and block; the last entry is the number of rows.
  at::Tensor offsets;
  // On a GPU, all int32.
  at::Tensor rows_by_slot;   // [group_tokens, k]: the row of each choice; -1: none
  at::Tensor rows_in_order;  // [group_tokens, k]: the rows of a token by ascending expert; -1 after the last
  at::Tensor ends;           // [local]: the row after the last row of each expert
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

// Limits the rows of memory on a GPU. Choices that need more rows drop the last of them: the dropped rows read as
// zeros, and *overflows is increased by 1. Other devices ignore the limit.
struct RowRoom {
  double factor = 0;                  // rows of memory, as a multiple of Selection::expected; 0: no limit
  std::int64_t* overflows = nullptr;  // device memory, as the next
  double* needed = nullptr;           // after an overflow at least the factor that these choices need
};

// Selects the rows of the local experts. `experts`: [tokens, k] int32, the choices of each token, distinct per token.
// A choice of -1 has no row (capacity.h). The tokens consist of `blocks` blocks of equal length. Throws Error for a
// choice outside [-1, all); on a GPU such a choice has no row. A GPU supports at most 1,023 local experts.
Selection select_rows(const at::Tensor& experts, const LocalExperts& local, std::int64_t blocks,
                      const RowRoom& room = {});

}  // namespace tessera::ops
