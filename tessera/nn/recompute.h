// What is kept from forward to backward.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::nn {

enum class Recompute : std::uint8_t {
  none,       // every operator's inputs
  selective,  // not the outputs of norms and of SwiGLU: cheap, memory-bound, made again without communication of
              // weights
  full,       // only the inputs of each block; its forward runs again before its backward
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

// Each block's policy: one for all, or one by one.
class BlockRecompute {
 public:
  BlockRecompute(Recompute every = Recompute::none) : every_(every) {}  // NOLINT(google-explicit-constructor)
  explicit BlockRecompute(std::vector<Recompute> by_block) : by_block_(std::move(by_block)) {}

  // Blocks that are not listed keep everything.
  Recompute of(std::size_t block) const { return block < by_block_.size() ? by_block_[block] : every_; }

 private:
  Recompute every_ = Recompute::none;
  std::vector<Recompute> by_block_;
};

}  // namespace tessera::nn
