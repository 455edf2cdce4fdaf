// The largest sizes of a model. Each limit is far above the sizes of published models. A config.json with a larger size
// is refused before the size determines a list, an allocation or the length of a loop. Within the limits, the number of
// parameters and their bytes fit into 64 bits.
#pragma once
#include <cstdint>

namespace tessera::models {

// Layers. The deepest published transformers have 1,000 layers (DeepNet, arXiv:2203.00555).
inline constexpr std::int64_t kMaxLayers = 4096;
// Columns or rows of a layer's matrix: the hidden size, the width of a feed-forward part, and the heads times their
// size. Llama-3.1-405B has 53,248.
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
// Tokens of the vocabulary. Gemma 3 has 262,208.
inline constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;
// Experts of a layer, and experts of all layers. Kimi K2 has 384 experts in each of 60 layers. A folder of Hugging Face
// has three tensors for each expert.
inline constexpr std::int64_t kMaxExperts = 65536;
inline constexpr std::int64_t kMaxAllExperts = std::int64_t{1} << 20;
// Parameters. Kimi K2 has 10^12.
inline constexpr double kMaxParams = 1e15;

}  // namespace tessera::models
