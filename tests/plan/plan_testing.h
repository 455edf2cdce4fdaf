// Small models and a machine for tests of plans. The expected results are easy to compute by hand.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "tessera/models/architectures/llama.h"
#include "tessera/models/architectures/mixtral.h"
#include "tessera/plan/step_plan.h"
#include "tessera/settings/settings.h"

namespace tessera::plan {

inline std::filesystem::path configs() {
  return TESSERA_CONFIGS;
}

// Returns a model with two blocks. Each of its two tables has 16 x 8 = 128 elements. The matrices of a block have 480
// elements: qkv 16 x 8 = 128, attention output 8 x 8 = 64, gate and up 24 x 8 = 192, down 8 x 12 = 96. Each of the five
// norms has 8 elements. All matrices together have 2 * 128 + 2 * 480 = 1216 elements.
inline models::DecoderConfig even_model() {
  models::DecoderConfig model;
  model.vocab_size = 16;
  model.hidden_size = 8;
  model.intermediate_size = 12;
  model.num_layers = 2;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 2;
  model.max_position_embeddings = 6;
  return model;
}

// Returns even_model with 6 experts of width 10 in each layer. Elements of a layer's experts: gate and up 6 x 20 x 8 =
// 960, down 6 x 8 x 10 = 480. Elements of its router: 48. Elements of the other matrices of a block: 128 + 64.
inline models::DecoderConfig sparse_model() {
  models::DecoderConfig model = even_model();
  model.experts =
      models::ExpertsConfig{.count = 6, .per_token = 2, .width = 10, .aux_coefficient = 0.01, .sparse = {true, true}};
  return model;
}

// Returns a machine with 1e9 flops and 1e9 bytes of memory traffic per second. Links within a node of 4 ranks have 1e6
// bytes per second and no latency.
inline predict::Machine even_machine() {
  predict::Machine machine{.name = "even", .ranks_per_node = 4, .processors = 4};
  machine.flops = {{quant::DType::fp32, 1e9}, {quant::DType::bf16, 1e9}};
  machine.memory_bytes_per_second = 1e9;
  machine.within_node = {.bytes_per_second = 1e6, .latency_s = 0};
  machine.between_nodes = {.bytes_per_second = 1e5, .latency_s = 0};
  return machine;
}

inline models::ModelConfigPtr config_of(const models::DecoderConfig& model) {
  if (model.experts) return std::make_shared<models::MixtralConfig>(model);
  return std::make_shared<models::LlamaConfig>(model);
}

inline settings::TrainConfig settings_of(const std::map<std::string, std::string>& settings) {
  settings::TrainConfig config;
  config.embedding = settings::Lookup::gather;
  for (const auto& [name, value] : settings)
    settings::set_from_text(config, *settings::find_setting(name), {value}, name);
  return config;
}

inline StepPlanRequest request_of(const std::map<std::string, std::string>& settings,
                                  const models::DecoderConfig& model = even_model()) {
  return {.run = settings::resolve(settings_of(settings), config_of(model), settings::Use::plan),
          .machine = even_machine(),
          .coalesce_bytes = 0};  // every parameter is a separate unit
}

}  // namespace tessera::plan
