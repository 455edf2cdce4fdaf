// Transfers of tokens over tp in pieces. A transfer has one piece for each pair of ranks. Piece k goes from each rank r
// to rank r + k, so that at any time every rank sends to one peer and receives from one peer. Compute multiplies the
// tokens of received pieces while other pieces are in flight. Places without a rank have pieces too, which are only
// recorded. All tp groups of a replica therefore record the same events.
//
// The memory of a transfer comes from the program (Program::take_transfer). All ranks transfer the pieces in the same
// order.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/nn/collectives.h"
#include "tessera/nn/parallel/token_chunks.h"

namespace tessera::nn {

// A matrix into which peers write.
struct TransferMatrix {
  at::Tensor matrix;
  std::int64_t offset = -1;  // position in the transfer arena, in bytes; -1: not in the arena
};

// Returns whether tokens of this context are exchanged in pieces.
bool travels_in_pieces(const Context& context);

// The pieces of a transfer that have begun, in their order. After an error, compute may not have waited for all of
// them. The destructor then waits until these pieces have finished or failed, because peers use the transfer's memory
// until then. An owner declares its tensors first, so that they are freed after the pieces.
class BegunPieces {
 public:
  explicit BegunPieces(runtime::Program& program) : program_(program) {}
  ~BegunPieces();
  BegunPieces(const BegunPieces&) = delete;
  BegunPieces& operator=(const BegunPieces&) = delete;

  void begin(const runtime::ProgramCollective& piece);
  int size() const { return static_cast<int>(pieces_.size()); }
  // Makes compute wait for the first `pieces` pieces.
  void await(int pieces);

 private:
  runtime::Program& program_;
  std::vector<runtime::Issued> pieces_;
  int awaited_ = 0;  // number of pieces for which compute already waits
};

// The gather of start_gather in pieces. The constructor starts all pieces.
class GatherInPieces final : public PendingResult {
 public:
  GatherInPieces(const PassState& pass, TokenPart part, const TokenReader& reader);

  // Returns the parts of the ranks of a chunk. Makes compute wait for the pieces that contain these parts, so only work
  // on compute may read the parts. A chunk that contains only this rank's own part needs no wait. The last chunk waits
  // for every piece, so that all ranks need the pieces between the same events.
  at::Tensor parts(const TokenChunk& chunk, bool is_last);
  at::Tensor take() override;

 private:
  const Context& context_;
  TokenPart part_;
  at::Tensor all_;
  BegunPieces pieces_;
};

// The sum of leave_tp in pieces. Each rank receives the other ranks' parts of its own tokens. The sum adds all parts in
// rank order.
class ScatterInPieces final : public PendingResult {
 public:
  // part: this rank's part of the sum for all tokens. The caller may write `part` after this call. writer: as in
  // start_leave_tp.
  ScatterInPieces(const PassState& pass, const at::Tensor& part, schedule::ParameterId writer);

  // Called when the work that writes the parts of tokens of `ranks` is enqueued on compute. Starts, in order, all
  // pieces whose rows are complete.
  void written(const layout::Range& ranks);
  // Return the sums of this rank's tokens. All parts must have been written. The returned tensors hold the memory of
  // the transfer. take_parts adds the parts if there are more than ops::kMaxSummedParts.
  at::Tensor take() override;
  SummedParts take_parts() override;

 private:
  // Waits for the pieces, records the sum, and returns the parts in the order of the sum.
  std::vector<at::Tensor> await();

  PassState pass_;
  schedule::ParameterId writer_;
  at::Tensor part_;
  std::vector<std::int64_t> counts_;   // by rank: number of elements of its tokens
  std::vector<bool> written_;          // by rank: whether the part of its tokens is written
  std::vector<TransferMatrix> parts_;  // by rank: its part of the sum for this rank's tokens
  BegunPieces pieces_;
};

}  // namespace tessera::nn
