// The Llama architecture from parallel parts: token embedding, blocks, final norm, output layer and loss.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "tessera/models/llama_config.h"
#include "tessera/models/llama_parameters.h"
#include "tessera/models/model.h"
#include "tessera/nn/block.h"
#include "tessera/nn/embedding.h"
#include "tessera/nn/output_loss.h"

namespace tessera::models {

// Registers its parameters with the context's program in the constructor; their values are the caller's business. Names
// are those of docs/checkpoint.md. Used by one thread; neither copied nor moved, since graphs point into it.
class Llama final : public Model {
 public:
  // max_positions: the longest sequence it will see. embedding: the tokens that a microbatch has at most, and how the
  // table reaches them. parts: what each rank of this rank's tp group holds; without, all is even. Errors: parts of
  // another number of ranks; those of check_parts.
  Llama(const LlamaConfig& config, nn::Context& context, std::int64_t max_positions,
        const shard::RowReads& embedding = {}, const std::optional<LlamaParts>& parts = std::nullopt);
  // scale: see output_loss. With gradients enabled, objective.backward() produces every weight's gradient.
  nn::Loss forward(const Batch& batch, double scale) override;

 private:
  enum class Cut { rows, cols };
  nn::Weight weight(schedule::ParameterId id, Cut cut) const;
  nn::Norm norm(schedule::ParameterId id) const;
  nn::Block make_block(const LlamaBlockIds& ids);
  // The ids of a weight's local rows.
  ops::IdRanges ids_of(schedule::ParameterId id) const;

  LlamaConfig config_;
  LlamaParts parts_;
  nn::Context& context_;
  nn::VocabEmbedding embedding_;
  std::vector<nn::Block> blocks_;
  nn::Norm norm_;
  nn::VocabOutput output_;
  ops::RopeTable rope_;
  at::Tensor anchor_;  // see embed()
};

}  // namespace tessera::models
