// What trains: a module that makes the loss of one microbatch. It is built from parts of nn and registers its
// parameters with its context's program.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "tessera/nn/attention.h"
#include "tessera/nn/output_loss.h"

namespace tessera::models {

// One microbatch: [batch * seq_len] int64 tensors, sequences one after another.
struct Batch {
  at::Tensor tokens, targets;  // targets: -1 masked
  // The tokens in memory that a GPU reads, its own or the host's, before compute comes to the microbatch: written
  // already, and unchanged until the step is over. Undefined: as `tokens`.
  at::Tensor early_tokens;
  nn::TokenLayout layout;
};

// One rank's part of a model. Used by one thread; neither copied nor moved, since graphs point into it.
class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // scale: see nn::output_loss. With gradients enabled, objective.backward() produces every weight's gradient.
  virtual nn::Loss forward(const Batch& batch, double scale) = 0;
};

// Builds a model: it registers all its parameters with the context's program, then calls add_backward_weights(). The
// context outlives it.
using BuildModel = std::function<std::unique_ptr<Model>(nn::Context& context)>;

}  // namespace tessera::models
