// What is kept from forward to backward.
#pragma once
#include <cstdint>
#include <string_view>

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

}  // namespace tessera::nn
