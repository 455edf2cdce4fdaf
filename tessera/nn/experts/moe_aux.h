// The kinds of auxiliary loss of a model with experts.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::nn {

// `layer`: each layer has an auxiliary loss, and the losses are added. `pooled`: there is one loss over the tokens of
// all layers, as in transformers. For a model with one layer, the loss of `pooled` is k times the loss of `layer`.
enum class MoeAux : std::uint8_t { layer, pooled };
constexpr std::string_view name_of(MoeAux aux) {
  return aux == MoeAux::layer ? "layer" : "pooled";
}

}  // namespace tessera::nn
