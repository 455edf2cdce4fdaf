// What the modules of one model on one rank share.
#pragma once
#include <cstdint>
#include <string_view>

#include "tessera/shard/runtime.h"

namespace tessera::nn {

// What is kept from forward to backward.
enum class Recompute : std::uint8_t {
  none,       // every operator's inputs
  selective,  // not the outputs of norms and of SwiGLU: cheap, memory-bound, made again without communication of
              // weights
  full,       // only the inputs of each block; its forward runs again before its backward
};
Recompute parse_recompute(std::string_view name);  // throws InputError
std::string_view name_of(Recompute policy);

// One thread. `runtime` outlives every module and every graph made with it.
struct Context {
  shard::Runtime& runtime;
  bool sequence_parallel = false;  // activations between blocks are split by tokens over tp
  Recompute recompute = Recompute::none;
  shard::Pass pass = shard::Pass::forward;  // recompute while a block's forward runs again

  int tp_rank() const { return runtime.parallel().tp_rank(); }
  int tp_size() const { return runtime.parallel().tp_size(); }
};

}  // namespace tessera::nn
