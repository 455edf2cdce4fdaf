// Runs one layer on the ranks of a small mesh, and compares the results with plain formulas. Autograd differentiates
// the formulas in fp64 on one rank.
//
// A test describes the layer: its weights, each rank's parts of its inputs and outputs, its forward pass with the
// functions of nn, and its formula over the logical tensors. check_layer
//   - compares every rank's outputs with its part of the formula's outputs,
//   - combines the gradients of the inputs from all ranks, and compares them with those of the formula,
//   - combines every weight's main_grad from the storage layouts, and compares it with the gradient of the formula,
//   - checks that each consumed weight is released, that stashes are fetched in reverse order, and that they share no
//     memory,
//   - checks that an evaluation step gives the same outputs, without stash and produce events.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/nn/context.h"
#include "tessera/nn/layers/norm.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

using RankRanges = std::vector<std::vector<layout::Range>>;  // index: tp rank

struct LayerCase {
  int tp = 1, gtp = 1;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
  quant::DType type = quant::DType::fp64;
  // uses: how often a weight is used in a microbatch. Each use and each gtp rank has different inputs.
  int microbatches = 2, uses = 2;
  TokenSplit split = {};
  // The allowed difference, relative to the largest magnitude of the compared tensor. In fp64, differences come only
  // from the order of sums of some hundred terms.
  double tolerance = 1e-12;
  std::string frozen = {};  // the name of a weight that is not trained
  // Number format of products. With a number format other than bf16, all values are integers up to 7 in magnitude, and
  // each matrix contains a 7. fp8 represents these values exactly, scaled by a power of two, and sums of few products
  // are exact.
  quant::Format product = quant::Format::bf16;
  std::int64_t chunks = kAutomaticChunks;  // ProductOptions::tp_chunks
  bool overlap = false;                    // ProductOptions::tp_overlap
};
// Returns cases with tp 1 to 3, gtp 1 and 2, and sequence parallelism on and off. With tp 3, rank 0 has no tokens.
// With sequence parallelism and gtp 2, products have as many chunks as possible. With tp 3, products exchange tokens in
// pieces.
std::vector<LayerCase> layer_cases();
std::string name_of(const LayerCase& how);

// Divides n elements over the tp ranks. With tp 3, rank 1 has no elements. With tp 2, an odd number of elements is
// divided unevenly.
RankRanges uneven_parts(std::int64_t n, int tp);
// Returns the parts of `blocks` consecutive blocks of n rows each, for example gate | up. All blocks have the sharding
// `parts`.
RankRanges stacked_parts(const RankRanges& parts, std::int64_t n, int blocks);

enum class WeightCut : std::uint8_t { rows, columns, vector };
struct LayerWeight {
  std::string name;
  at::Tensor value;  // logical, fp64
  WeightCut cut = WeightCut::rows;
  layout::Layout compute;
  bool sharded = true, partial_gradient = false;
  std::int64_t matrices = 1;  // number of matrices that are stacked by rows; 1: the weight is no stack
  shard::RowReads reads = {};
};
// Make weights. The values depend on the name.
LayerWeight by_rows(const std::string& name, std::int64_t rows, std::int64_t cols, const RankRanges& parts);
LayerWeight by_columns(const std::string& name, std::int64_t rows, std::int64_t cols, const RankRanges& parts);
LayerWeight cut_vector(const std::string& name, std::int64_t size, const RankRanges& parts);
// Makes a weight with values around 1, like the weight of a norm.
LayerWeight whole_vector(const std::string& name, std::int64_t size, int tp, bool partial_gradient);

// The part of a logical tensor [tokens, width] that a rank holds.
struct Held {
  enum class Kind : std::uint8_t { own, all, columns };
  Kind kind = Kind::own;
  RankRanges ranges = {};  // columns of each tp rank
};
inline Held own_tokens() {
  return {};
}
inline Held all_tokens() {
  return {.kind = Held::Kind::all};
}
inline Held columns_of(RankRanges ranges) {
  return {.kind = Held::Kind::columns, .ranges = std::move(ranges)};
}

struct LayerInput {
  std::int64_t width = 0;
  Held held;
};
struct Sample {
  int number = 0;
  std::vector<at::Tensor> inputs;  // a rank's parts, or the logical tensors
};
using LogicalWeights = std::map<std::string, at::Tensor>;

// The weights and the state for the forward pass of a layer on one rank.
class LayerRank {
 public:
  LayerRank(const PassState& forward, std::map<std::string, Weight> weights)
      : context(forward.context), pass(forward), weights_(std::move(weights)) {}

  const Context& context;
  PassState pass;  // forward pass of the current microbatch
  const Weight& weight(const std::string& name) const { return weights_.at(name); }
  Norm norm(const std::string& name) const { return {.weight = weight(name), .eps = 1e-3}; }
  // Keeps a module alive until the graph is destroyed.
  template <typename T>
  const T& keep(T module) {
    auto kept = std::make_shared<T>(std::move(module));
    modules_.push_back(kept);
    return *kept;
  }

 private:
  std::map<std::string, Weight> weights_;
  std::vector<std::shared_ptr<void>> modules_;
};

struct Layer {
  std::vector<LayerWeight> weights;
  std::vector<LayerInput> inputs;
  std::vector<Held> outputs;
  std::int64_t tokens = 7;
  std::function<std::vector<at::Tensor>(LayerRank& rank, const Sample& sample)> forward;
  std::function<std::vector<at::Tensor>(const LogicalWeights& weights, const Sample& sample)> reference;
};

// Returns pseudo-random numbers between -1 and 1 that depend only on the seed.
at::Tensor arbitrary_values(at::IntArrayRef shape, double seed);

struct LayerEvents {
  // The events of the training step on rank 0, as texts like "forward consume w", "forward stash 96 keep" or "backward
  // comm all_gather 48".
  std::vector<std::string> first_rank;
};
LayerEvents check_layer(const Layer& layer, const LayerCase& how);

}  // namespace tessera::nn
