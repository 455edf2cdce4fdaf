// What the rest of Tessera knows of a model: its sizes, its parameters, its names in files, and how to build it. Which
// architecture it is, only the files of that architecture know.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/hf_tensor.h"
#include "tessera/models/model.h"
#include "tessera/models/tp_parts.h"
#include "tessera/nn/context.h"
#include "tessera/shard/parameter.h"

namespace tessera::models {

// Of the logical model; nothing is padded.
struct ModelSizes {
  std::int64_t vocab_size = 0, hidden_size = 0;
  std::int64_t num_layers = 0;               // blocks
  std::int64_t max_position_embeddings = 0;  // tokens of the longest sequence
  bool has_tied_embeddings = false;          // the embedding is the output layer's weight too
};

// How parameters are laid out over the ranks of a tp group.
struct ParameterOptions {
  int tp_size = 1;
  bool partial_norms = false;  // each tp rank computes a part of the gradients of replicated parameters, because it has
                               // a part of the tokens (sequence parallelism with more than one tp rank)
  shard::RowReads embedding;   // how the rows of the embedding table are read
  std::optional<TpParts> parts = std::nullopt;  // what each tp rank holds; without, all is even
};

struct ModelOptions {
  std::int64_t max_positions = 0;  // tokens of the longest sequence that it will see
  shard::RowReads embedding;       // the tokens that a microbatch has at most, and how the table reaches them
  std::optional<TpParts> parts = std::nullopt;  // of the ranks of this rank's tp group; without, all is even
};

// A model's configuration: immutable, shared by the threads of a process.
class ModelConfig {
 public:
  ModelConfig() = default;
  virtual ~ModelConfig() = default;
  ModelConfig(const ModelConfig&) = delete;
  ModelConfig& operator=(const ModelConfig&) = delete;

  virtual ModelSizes sizes() const = 0;
  // In the form of a config.json, which parse_model_config reads back to an equal configuration.
  virtual nlohmann::json to_json() const = 0;
  // In the order in which the model registers them, so that an index is the id in a runtime. Errors: parts that are
  // none of this model's, or of another number of tp ranks.
  virtual std::vector<shard::ParameterSpec> parameters(const ParameterOptions& options) const = 0;
  // All tensors of a folder of this model, in the order in which the model uses them. The first is the embedding.
  virtual std::vector<HfTensor> hf_tensors() const = 0;
  virtual std::vector<HfAlias> hf_aliases() const = 0;
  // Registers the parameters with the context's program; their values are the caller's business. `context` outlives the
  // model. Errors: as of parameters().
  virtual std::unique_ptr<Model> build(nn::Context& context, const ModelOptions& options) const = 0;
};
using ModelConfigPtr = std::shared_ptr<const ModelConfig>;

// Number of parameters of the logical model; tied embeddings count once.
std::int64_t num_params(const ModelConfig& config);

}  // namespace tessera::models
