// The rows that the local experts of a rank compute, for the tokens of a group of ranks. CPU only.
//
// Each token chooses k experts. A rank owns a range of experts. A row is a token together with one of its choices that
// is a local expert. Rows are ordered by expert, then block, then token. A block is the microbatch of one reader
// (docs/experts.md), so the order does not depend on how the ranks exchange the tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace tessera::ops {

struct Selection {
  at::Tensor tokens;  // [room] int64: the row's token
  at::Tensor slots;   // [room] int64: which of the token's k choices the row is
  // [local * blocks + 1] int64: first row of each expert and block; the last entry is the number of rows.
  at::Tensor offsets;
  std::int64_t local = 0, blocks = 1;
  std::int64_t group_tokens = 0;  // tokens of all blocks
  std::int64_t k = 1;             // choices of a token
  std::int64_t room = 0;  // rows of memory: the largest number that any choices need. Rows after rows() are never read.
  std::int64_t expected = 0;  // rows if all experts were chosen equally often; dry runs report this number

  // The rows of one expert in one block: [begin, end). Not in a dry run.
  std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t expert, std::int64_t block) const;
  std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t expert) const;  // in all blocks
  std::int64_t rows() const;                                                 // number of rows of all local experts
};

// The local experts of a rank: [first, first + count) of `all`.
struct LocalExperts {
  std::int64_t first = 0, count = 0, all = 0;
};

// Selects the rows of the local experts. `experts`: [tokens, k] int32, the choices of each token, distinct per token.
// A choice of -1 has no row (capacity.h). The tokens are `blocks` blocks of equal length. Throws Error for a choice
// outside [-1, all).
Selection select_rows(const at::Tensor& experts, const LocalExperts& local, std::int64_t blocks);

}  // namespace tessera::ops
