// A model's interface to the rest of Tessera: the sizes, the parameters, the names of tensors in files, and a function
// that builds the model. Only an architecture's own files depend on that architecture.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/decoder/tp_parts.h"
#include "tessera/models/hf_tensor.h"
#include "tessera/models/model.h"
#include "tessera/nn/context.h"
#include "tessera/nn/experts/router_loss.h"
#include "tessera/shard/parameter.h"

namespace tessera::models {

// The sizes of the logical model, without padding.
struct ModelSizes {
  std::int64_t vocab_size = 0, hidden_size = 0;
  std::int64_t num_layers = 0;               // blocks
  std::int64_t max_position_embeddings = 0;  // tokens of the longest sequence
  bool has_tied_embeddings = false;          // whether the output layer uses the embedding's weight
  std::int64_t num_experts = 0;              // experts of a sparse layer; 0: the model has none
  std::int64_t experts_per_token = 0;
  // A rough number of elements that the activations of one token have in all layers and in the logits.
  double activations_per_token = 0;
  bool has_router_bias = false;     // whether routers add a bias to the scores when they choose experts (RouterBiases)
  bool has_sigmoid_scores = false;  // whether routers have sigmoid scores; such routers have no z loss
};

// How parameters are laid out over the ranks of a tp group.
struct ParameterOptions {
  int tp_size = 1;
  int etp = 1, ep = 1;  // degrees of the experts
  // Whether each tp rank computes only a part of the gradients of replicated parameters. This is the case under
  // sequence parallelism with more than one tp rank, because each tp rank then has only a part of the tokens.
  bool partial_norms = false;
  shard::RowReads embedding;                    // how the rows of the embedding table are read
  std::optional<TpParts> parts = std::nullopt;  // units of each tp rank; nullopt: even parts
  // The shapes of the mesh's tp groups (ComputeGroup::shapes). Parameters have a layout for each shape. The first shape
  // is that of a full group.
  std::vector<shard::Slots> shapes = {};
};

struct ModelOptions {
  std::int64_t max_positions = 0;  // tokens of the longest sequence in a batch
  // The maximum number of tokens in a microbatch, and how rows of the embedding table are read.
  shard::RowReads embedding;
  std::optional<TpParts> parts = std::nullopt;  // parts of this rank's tp group; nullopt: even parts
  // The run sets the coefficients; the model sets the other members.
  nn::RouterLossOptions router_loss = {};
  double expert_capacity = 0;  // nn::Experts::capacity
  // True: the parameters have neither gradients nor masters, because the model only runs forward passes.
  bool is_frozen = false;
};

// A model's configuration: immutable, shared by the threads of a process.
class ModelConfig {
 public:
  ModelConfig() = default;
  virtual ~ModelConfig() = default;
  ModelConfig(const ModelConfig&) = delete;
  ModelConfig& operator=(const ModelConfig&) = delete;

  virtual ModelSizes sizes() const = 0;
  // Returns the config.json. The function parse_model_config converts the result to an equal configuration.
  virtual nlohmann::json to_json() const = 0;
  // Returns the parameters in the order in which the model registers them. An index into the list is therefore the
  // parameter's id in a runtime. Throws Error if the parts are not valid for this model or are for another number of tp
  // ranks.
  virtual std::vector<shard::ParameterSpec> parameters(const ParameterOptions& options) const = 0;
  // Returns all tensors of a folder of this model, in the order in which the model uses them. The first tensor is the
  // embedding. `experts`: how the folder stores experts. Folders are written with separate tensors.
  virtual std::vector<HfTensor> hf_tensors(ExpertTensors experts = ExpertTensors::separate) const = 0;
  // Returns how many tensors of hf_tensors(experts) belong to layers, without making the list.
  virtual std::int64_t num_layer_tensors(ExpertTensors experts) const = 0;
  virtual std::vector<HfAlias> hf_aliases() const = 0;
  // Builds the model and registers the parameters with the context's program. The caller sets the values of the
  // parameters. `context` must outlive the model. Throws the errors of parameters().
  virtual std::unique_ptr<Model> build(const nn::Context& context, const ModelOptions& options) const = 0;
};
using ModelConfigPtr = std::shared_ptr<const ModelConfig>;

// Number of parameters of the logical model. Tied embeddings are counted once.
std::int64_t num_params(const ModelConfig& config);
// Number of parameters that one token uses. In a sparse layer, only the experts that the token chooses are counted.
std::int64_t num_active_params(const ModelConfig& config);
// Returns "15.14 M parameters", and for a model with experts "15.14 M parameters (5.63 M active)".
std::string params_text(const ModelConfig& config);

}  // namespace tessera::models
