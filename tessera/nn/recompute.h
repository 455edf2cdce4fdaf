// The recompute policies: which activations are kept from forward to backward.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::nn {

enum class Recompute : std::uint8_t {
  none,       // keeps every operator's inputs
  selective,  // drops the outputs of norms and of SwiGLU, which are cheap to recompute without gathering a weight
  full,       // keeps only the inputs of each block, and runs its forward again before its backward
};
constexpr std::string_view name_of(Recompute policy) {
  switch (policy) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  return "?";
}

// The policy of each block: one policy for all blocks, or a list of policies.
class BlockRecompute {
 public:
  BlockRecompute(Recompute every = Recompute::none) : every_(every) {}  // NOLINT(google-explicit-constructor)
  explicit BlockRecompute(std::vector<Recompute> by_block) : by_block_(std::move(by_block)) {}

  // Returns the policy of a block. Blocks beyond the end of the list keep all activations.
  Recompute of(std::size_t block) const { return block < by_block_.size() ? by_block_[block] : every_; }

 private:
  Recompute every_ = Recompute::none;
  std::vector<Recompute> by_block_;
};

}  // namespace tessera::nn
