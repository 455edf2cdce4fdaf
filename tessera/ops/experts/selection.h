// The rows that the local experts of a rank compute, for the tokens of a group of ranks. CPU only.
//
// Each token chooses k experts. A rank owns a range of experts. There is a row for each choice of a local expert by a
// token. Rows are ordered by expert, then block, then token. A block is the microbatch of one reader (docs/experts.md).
// The order therefore does not depend on how the ranks exchange the tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace tessera::ops {

struct Selection {
  at::Tensor tokens;  // [room] int64: the row's token
  at::Tensor slots;   // [room] int64: index of the row's choice among the token's k choices
  // [local * blocks + 1] int64: first row of each expert and block; the last entry is the number of rows.
  at::Tensor offsets;
  std::int64_t local = 0, blocks = 1;
  std::int64_t group_tokens = 0;  // tokens of all blocks
  std::int64_t k = 1;             // choices of a token
  std::int64_t room = 0;          // allocated rows: enough for all possible choices; rows from rows() on are never read
  std::int64_t expected = 0;  // number of rows if all experts were chosen equally often; dry runs report this number

  // Returns the rows [begin, end) of one expert in one block. Not available in a dry run.
  std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t expert, std::int64_t block) const;
  std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t expert) const;  // the expert's rows in all blocks
  std::int64_t rows() const;                                                 // number of rows of all local experts
};

// The local experts of a rank: [first, first + count) of `all`.
struct LocalExperts {
  std::int64_t first = 0, count = 0, all = 0;
};

// Selects the rows of the local experts. `experts`: [tokens, k] int32, the choices of each token, distinct per token.
// The tokens consist of `blocks` blocks of equal length. Throws Error for a choice outside [0, all).
Selection select_rows(const at::Tensor& experts, const LocalExperts& local, std::int64_t blocks);

}  // namespace tessera::ops
