// A decoder: token embedding, blocks, final norm, output layer and loss. Each part supports tensor parallelism.
#pragma once
#include <ATen/core/Tensor.h>

#include <iterator>
#include <vector>

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/decoder/decoder_parameters.h"
#include "tessera/models/model.h"
#include "tessera/models/model_config.h"
#include "tessera/nn/experts/router_loss.h"
#include "tessera/nn/layers/block.h"
#include "tessera/nn/layers/embedding.h"
#include "tessera/nn/layers/output_loss.h"

namespace tessera::models {

class Decoder final : public Model {
 public:
  // Registers the parameters with the context's program. `context` must outlive the decoder. Throws the errors of
  // decoder_parameters.
  Decoder(const DecoderConfig& config, nn::Context& context, const ModelOptions& options);

  std::int64_t blocks() const override { return std::ssize(blocks_); }
  Flow begin(const Batch& batch) override;
  Flow run(Flow flow, layout::Range blocks, const Batch& batch, nn::KeyValueCache* cache) override;
  nn::Loss loss(Flow flow, const Batch& batch, double scale) override;
  RouterBiases router_biases() const override;
  nn::KeyValueCache make_cache(std::int64_t capacity) override;
  at::Tensor logits(Flow flow, const Batch& batch) override;
  // Returns the input of the output layer: [own tokens, hidden].
  at::Tensor hidden(Flow flow, const Batch& batch);
  const nn::VocabOutput& output() const { return output_; }

 private:
  // Sets the position of this rank's first token, which dropout reads.
  void set_first_tokens(const Batch& batch);
  nn::Experts make_experts(const DecoderBlockIds& ids) const;
  // On a GPU in bf16, checks that the products of an expert have bits that do not depend on other experts. Throws Error
  // if the check fails.
  void check_products_of_experts() const;
  enum class Cut { rows, cols };
  nn::Weight weight(schedule::ParameterId id, Cut cut) const;
  nn::Weight vector(schedule::ParameterId id) const;
  nn::Norm norm(schedule::ParameterId id) const;
  // Returns the norm that adds a tensor to the residual stream. `site` identifies the tensor (nn::input_dropout).
  nn::Norm stream_norm(schedule::ParameterId id, std::size_t site) const;
  nn::Block make_block(const DecoderBlockIds& ids, const HeadPart& heads);
  // Returns the vocabulary ids of the rows that this rank holds of a weight.
  ops::IdRanges ids_of(schedule::ParameterId id) const;

  DecoderConfig config_;
  nn::RouterLossOptions router_loss_;
  double expert_capacity_ = 0;
  nn::Context& context_;
  nn::VocabEmbedding embedding_;
  std::vector<nn::Block> blocks_;
  nn::Norm norm_;
  nn::VocabOutput output_;
  ops::RopeTable rope_;
  at::Tensor anchor_;  // see nn::embed
};

}  // namespace tessera::models
