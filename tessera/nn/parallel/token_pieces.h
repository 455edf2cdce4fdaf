// Transfers of tokens over tp in pieces: one piece for each pair of ranks. Piece k goes from each rank r to rank r + k,
// so every rank sends to one peer and receives from one peer at a time. Compute can multiply the tokens of the pieces
// that have arrived while other pieces travel.
//
// A transfer's memory comes from the program (Program::take_transfer). The order of the pieces is the same on all
// ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/nn/collectives.h"
#include "tessera/nn/parallel/token_chunks.h"

namespace tessera::nn {

// Returns whether the tokens of this context travel in pieces.
bool travels_in_pieces(const Context& context);

// The gather of enter_tp. The constructor begins all pieces.
class GatherInPieces final : public PendingResult {
 public:
  // own: this rank's rows of a matrix of `tokens` rows.
  GatherInPieces(Context& context, const at::Tensor& own, std::int64_t tokens, schedule::Pass pass);
  ~GatherInPieces() override;

  // Returns the rows of a chunk, for work that is enqueued on compute. Makes compute wait for them; this rank's own
  // rows alone need no wait. The last chunk waits for every piece, so that all ranks need the pieces between the same
  // events.
  at::Tensor rows(const TokenChunk& chunk, bool is_last);
  at::Tensor take() override;

 private:
  void await(std::size_t pieces);

  Context& context_;
  at::Tensor own_, all_;
  std::vector<runtime::Issued> pieces_;
  std::size_t awaited_ = 0;  // pieces that compute waits for already
};

// The sum of leave_tp: each rank receives the other ranks' rows of its tokens, and adds all parts in rank order.
class ScatterInPieces final : public PendingResult {
 public:
  // part: this rank's rows of all tokens, which may be written after the call.
  ScatterInPieces(Context& context, at::Tensor part, schedule::Pass pass);
  ~ScatterInPieces() override;

  // Called when the rows of some ranks are written by work that is enqueued on compute. Begins the pieces whose rows
  // are complete, in order.
  void written(const layout::Range& ranks);
  // Adds the parts. All rows are written.
  at::Tensor take() override;

 private:
  Context& context_;
  schedule::Pass pass_;
  at::Tensor part_;
  std::vector<std::int64_t> counts_;  // elements by rank
  std::vector<bool> written_;         // by rank
  std::vector<at::Tensor> parts_;     // by rank: its part of this rank's rows
  std::vector<runtime::Issued> pieces_;
};

}  // namespace tessera::nn
