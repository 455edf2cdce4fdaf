// The interface of a model: a module that computes the loss of one microbatch, or the logits of the next token of a
// sequence. A model consists of modules of nn and registers its parameters with its context's program.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "tessera/layout/layout.h"
#include "tessera/nn/experts/router_loss.h"
#include "tessera/nn/layers/attention.h"
#include "tessera/nn/layers/block.h"
#include "tessera/nn/layers/output_loss.h"

namespace tessera::models {

// One microbatch: [batch * seq_len] int64 tensors; sequences are consecutive.
struct Batch {
  at::Tensor tokens, targets;  // targets: -1 masked
  // A copy of `tokens` in device memory, or in host memory that the GPU can read. The copy is complete before the
  // microbatch starts and does not change until the step ends. Undefined: only `tokens` can be used.
  at::Tensor early_tokens;
  nn::TokenLayout layout;
  // Position of the batch's first token in the step's global batch. Dropout and stochastic rounding use this
  // position.
  std::int64_t first_token = 0;
};

// The biases of the routers. A training step updates the biases from the counts of chosen experts
// (train/update/router_bias.h).
struct RouterBiases {
  std::vector<schedule::ParameterId> ids;  // by sparse layer; empty: the model has no router biases
  std::int64_t experts = 0;                // number of elements of each bias
};

// The data between two blocks: the residual stream, and the router terms of the sparse blocks so far, in order.
struct Flow {
  nn::Stream stream;
  std::vector<nn::RouterTerms> terms;
};

// One rank's part of a model. Used by one thread. A model is neither copied nor moved, because graphs contain addresses
// of the model's members.
//
// A model whose blocks can run apart overrides blocks(), begin(), run() and loss(). Another model overrides forward().
class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Returns the loss of the microbatch. `scale`: see nn::output_loss. With gradients enabled, objective.backward()
  // produces the gradient of every weight. By default: begin(), run() of all blocks, loss().
  virtual nn::Loss forward(const Batch& batch, double scale);

  // The parts of forward(). Blocks run in order, in one call of run() or in several calls with consecutive ranges. All
  // calls of a microbatch get the same batch. By default, the functions throw Error.
  virtual std::int64_t blocks() const;
  virtual Flow begin(const Batch& batch);
  // If `cache` is not null, the tokens attend also to the tokens in the cache (next_logits), otherwise only to tokens
  // of this batch.
  virtual Flow run(Flow flow, layout::Range blocks, const Batch& batch, nn::KeyValueCache* cache = nullptr);
  virtual nn::Loss loss(Flow flow, const Batch& batch, double scale);

  virtual RouterBiases router_biases() const { return {}; }

  // The functions below are for generation. A model that only trains need not override make_cache() and logits(), whose
  // default is to throw Error. Returns an empty cache for `capacity` tokens of one sequence.
  virtual nn::KeyValueCache make_cache(std::int64_t capacity);
  // Returns the logits after the last token of the flow of all blocks. `batch` is one sequence.
  virtual at::Tensor logits(Flow flow, const Batch& batch);
  // Runs the next tokens of a sequence, adds them to the cache, and returns the logits after the last of them: see
  // nn::last_logits. `batch` is one sequence, whose positions begin at cache.tokens. Only a model with experts reads
  // the targets. Called without gradients, in a microbatch of an evaluation. Throws Error if the cache is too small.
  at::Tensor next_logits(const Batch& batch, nn::KeyValueCache& cache);
};

// A function that builds a model. The function registers all parameters with the context's program, then calls
// add_backward_weights(). The context must outlive the model.
using BuildModel = std::function<std::unique_ptr<Model>(nn::Context& context)>;

}  // namespace tessera::models
