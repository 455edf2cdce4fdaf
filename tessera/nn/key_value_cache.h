// The keys and values of the tokens that a model has processed, for generation.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::nn {

// One layer's part: [capacity, kv_heads, head_dim], with this tp rank's key/value heads. Keys are rotated.
struct LayerCache {
  at::Tensor keys, values;
};
// The cache of one sequence. A forward pass with a cache appends the keys and values of its tokens to the cache, and
// increases `tokens`, the number of stored tokens.
struct KeyValueCache {
  std::vector<LayerCache> layers;
  std::int64_t capacity = 0;
  std::int64_t tokens = 0;
};

}  // namespace tessera::nn
