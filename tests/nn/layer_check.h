// Runs one layer on the ranks of a small mesh and compares it with plain formulas that autograd differentiates in fp64
// on one rank.
//
// A test says what the layer is: its weights, what each rank holds of its inputs and outputs, its forward with the
// functions of nn, and its formula over the logical tensors. check_layer compares
//   - every rank's outputs with its part of the formula's,
//   - the gradients of inputs, put together from the ranks, and every weight's main_grad after the step, put together
//     from the storage layouts,
//   - the events: whatever is consumed is released, and what is stashed is fetched in the opposite order,
//   - an evaluation step, which gives the same outputs and neither stashes nor produces.
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
#include "tessera/nn/norm.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

using RankRanges = std::vector<std::vector<layout::Range>>;  // by tp rank

struct LayerCase {
  int tp = 1, gtp = 1;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
  quant::DType type = quant::DType::fp64;
  // A weight is used `uses` times in a microbatch, with other inputs each time; gtp ranks have other inputs too.
  int microbatches = 2, uses = 2;
  TokenSplit split = {};
  // Of the largest magnitude of the tensor that is compared. In fp64 sums of some hundred terms differ by their order
  // only.
  double tolerance = 1e-12;
  std::string frozen = {};  // the name of a weight that is not trained
  // Of matrices. Then all numbers are integers up to 7 in magnitude, and each matrix has a 7: fp8 holds them, scaled by
  // a power of two, and sums of few products are exact.
  quant::Format product = quant::Format::bf16;
};
// tp 1 to 3, gtp 1 and 2, sequence parallelism on and off; at tp 3 rank 0 has no tokens.
std::vector<LayerCase> layer_cases();
std::string name_of(const LayerCase& how);

// At tp 3 rank 1 has nothing; at tp 2 an odd number is not cut in halves.
RankRanges uneven_parts(std::int64_t n, int tp);
// The parts of several blocks of n behind each other, each cut alike: rows q | k | v, gate | up.
RankRanges stacked_parts(const RankRanges& parts, std::int64_t n, int blocks);

enum class WeightCut : std::uint8_t { rows, columns, vector };
struct LayerWeight {
  std::string name;
  at::Tensor value;  // logical, fp64
  WeightCut cut = WeightCut::rows;
  layout::Layout compute;
  bool sharded = true, partial_gradient = false;
  shard::RowReads reads = {};
};
// Made of numbers that depend on the name.
LayerWeight by_rows(const std::string& name, std::int64_t rows, std::int64_t cols, const RankRanges& parts);
LayerWeight by_columns(const std::string& name, std::int64_t rows, std::int64_t cols, const RankRanges& parts);
LayerWeight cut_vector(const std::string& name, std::int64_t size, const RankRanges& parts);
// As the weight of a norm, around 1.
LayerWeight whole_vector(const std::string& name, std::int64_t size, int tp, bool partial_gradient);

// What a rank has of a logical tensor [tokens, width].
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
  std::vector<at::Tensor> inputs;  // a rank's parts, or logical ones
};
using LogicalWeights = std::map<std::string, at::Tensor>;

// What a layer's forward sees of its rank.
class LayerRank {
 public:
  LayerRank(Context& rank_context, std::map<std::string, Weight> weights)
      : context(rank_context), weights_(std::move(weights)) {}

  Context& context;
  const Weight& weight(const std::string& name) const { return weights_.at(name); }
  Norm norm(const std::string& name) const { return {.weight = weight(name), .eps = 1e-3}; }
  // Keeps a module until the graph is gone.
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

// Numbers between -1 and 1 that look arbitrary, the same for the same seed.
at::Tensor arbitrary_values(at::IntArrayRef shape, double seed);

struct LayerEvents {
  // Of the first rank's training step: "forward consume w", "forward stash 96 keep", "backward comm all_gather 48".
  std::vector<std::string> first_rank;
};
LayerEvents check_layer(const Layer& layer, const LayerCase& how);

}  // namespace tessera::nn
