// The Llama architecture from parallel parts: token embedding, blocks, final norm, output layer and loss.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tessera/nn/block.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/llama_config.h"
#include "tessera/nn/llama_parameters.h"
#include "tessera/nn/output_loss.h"

namespace tessera::nn {

// One microbatch: [batch * seq_len] int64 tensors, sequences one after another.
struct Batch {
  at::Tensor tokens, targets;  // targets: -1 masked
  // The tokens in memory that a GPU reads, its own or the host's, before compute comes to the microbatch: written
  // already, and unchanged until the step is over. Undefined: as `tokens`.
  at::Tensor early_tokens;
  TokenLayout layout;
};

// Registers its parameters with the context's runtime in the constructor; their values are the caller's business. Names
// are those of docs/checkpoint.md. Used by one thread; neither copied nor moved, since graphs point into it.
class Llama {
 public:
  // max_positions: the longest sequence it will see. embedding: the tokens that a microbatch has at most, and how the
  // table reaches them.
  Llama(const LlamaConfig& config, Context& context, std::int64_t max_positions, const shard::RowReads& embedding = {});
  Llama(const Llama&) = delete;
  Llama& operator=(const Llama&) = delete;

  // scale: see output_loss. With gradients enabled, objective.backward() produces every weight's gradient.
  Loss forward(const Batch& batch, double scale);

 private:
  enum class Cut { rows, cols };
  Weight weight(shard::ParameterId id, Cut cut) const;
  Norm norm(shard::ParameterId id) const;
  Block make_block(const LlamaBlockIds& ids);

  LlamaConfig config_;
  Context& context_;
  VocabEmbedding embedding_;
  std::vector<Block> blocks_;
  Norm norm_;
  VocabOutput output_;
  ops::RopeTable rope_;
  at::Tensor anchor_;  // see embed()
};

}  // namespace tessera::nn
