// The ranks that compute with the experts of one layer, and the exchange of tokens between them.
//
// The group is the compute ranks of the expert domain: etp x ep consecutive ranks. Each rank has its own tokens.
// Dispatch gathers the tokens of all ranks on every rank. Each rank then selects the tokens that chose its experts.
// Combine adds the parts of all ranks for each token, in rank order, and each rank receives the sums for its own
// tokens. The sizes of the messages do not depend on the choice of experts.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/nn/collectives.h"
#include "tessera/nn/pass_state.h"

namespace tessera::nn {

class ExpertGroup {
 public:
  // `tokens` is the number of tokens in the microbatch of one reader. The tp ranks of a reader share these tokens.
  ExpertGroup(const PassState& pass, std::int64_t tokens);

  std::int64_t own() const { return own_; }        // number of this rank's tokens
  std::int64_t tokens() const { return all_; }     // number of tokens of all ranks in the group
  std::int64_t blocks() const { return blocks_; }  // number of readers in the group; each has one block of tokens

  // x: [own, width]. Starts to gather [tokens, width], in rank order.
  PendingTensor start_gather(const at::Tensor& x) const;
  // part: [tokens, width]. Starts to add the parts of all ranks in the accumulator type. The sum is rounded once: [own,
  // width].
  PendingTensor start_reduce(const at::Tensor& part) const;

 private:
  std::vector<std::int64_t> counts(std::int64_t width) const;  // number of elements of each rank
  PendingTensor start(runtime::ProgramCollectiveKind kind, const at::Tensor& in, const at::Tensor& out) const;

  PassState pass_;
  std::vector<std::int64_t> by_rank_;  // tokens
  std::int64_t own_ = 0, all_ = 0, blocks_ = 1;
};

}  // namespace tessera::nn
