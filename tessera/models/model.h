// The interface of a model: a module that computes the loss of one microbatch, or the logits of the next token of a
// sequence. A model consists of modules of nn and registers its parameters with its context's program.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "tessera/nn/layers/attention.h"
#include "tessera/nn/layers/output_loss.h"

namespace tessera::models {

// One microbatch: [batch * seq_len] int64 tensors; sequences are consecutive.
struct Batch {
  at::Tensor tokens, targets;  // targets: -1 masked
  // A copy of `tokens` in device memory, or in host memory that the GPU can read. The copy is complete before the
  // microbatch starts and does not change until the step ends. Undefined: only `tokens` can be used.
  at::Tensor early_tokens;
  nn::TokenLayout layout;
  // Position of the batch's first token in the step's global batch. Only dropout uses this position.
  std::int64_t first_token = 0;
};

// The biases of the routers. A training step updates the biases from the counts of chosen experts
// (train/update/router_bias.h).
struct RouterBiases {
  std::vector<schedule::ParameterId> ids;  // by sparse layer; empty: the model has no router biases
  std::int64_t experts = 0;                // number of elements of each bias
};

// One rank's part of a model. Used by one thread. A model is neither copied nor moved, because graphs contain addresses
// of the model's members.
class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Returns the loss of the microbatch. `scale`: see nn::output_loss. With gradients enabled, objective.backward()
  // produces the gradient of every weight.
  virtual nn::Loss forward(const Batch& batch, double scale) = 0;

  virtual RouterBiases router_biases() const { return {}; }

  // The two functions below are for generation. A model that only trains need not override these functions, whose
  // default is to throw Error. Returns an empty cache for `capacity` tokens of one sequence.
  virtual nn::KeyValueCache make_cache(std::int64_t capacity);
  // Runs the next tokens of a sequence, adds them to the cache, and returns the logits after the last of them: see
  // nn::last_logits. `batch` is one sequence, whose positions begin at cache.tokens. Only a model with experts reads
  // the targets. Called without gradients, in a microbatch of an evaluation. Throws Error if the cache is too small.
  virtual at::Tensor next_logits(const Batch& batch, nn::KeyValueCache& cache);
};

// A function that builds a model. The function registers all parameters with the context's program, then calls
// add_backward_weights(). The context must outlive the model.
using BuildModel = std::function<std::unique_ptr<Model>(nn::Context& context)>;

}  // namespace tessera::models
