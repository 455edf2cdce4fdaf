// Writes small models as checkpoints and as Hugging Face folders, for the tests of the conversion.
#pragma once
#include <bit>
#include <cmath>
#include <map>

#include "tessera/hub/convert/convert.h"
#include "tessera/hub/convert/hf_folder.h"
#include "tessera/models/architectures/llama.h"
#include "tessera/models/registry.h"
#include "tessera/quant/bfloat16.h"
#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::hub::testing {

using namespace checkpoint::testing;
using models::HfTensor, models::LogicalTensor, models::logical_tensors;

// Returns a Llama with odd numbers of key/value heads, ffn columns and vocabulary rows.
inline models::DecoderConfig odd_llama(bool tied) {
  models::DecoderConfig config;
  config.vocab_size = 131, config.hidden_size = 20, config.intermediate_size = 33;
  config.num_layers = 2, config.num_heads = 6, config.num_kv_heads = 3, config.head_dim = 4;
  config.rope_scaling = models::RopeStretch{};
  config.tie_word_embeddings = tied;
  return config;
}

// Returns a finite fp32 value that uses all mantissa bits.
inline float number_of(std::uint64_t seed, std::int64_t index) {
  const std::uint64_t bits =
      checkpoint::testing::value_of({"", checkpoint::Kind::weight, quant::DType::fp32, {1}, seed}, index);
  return static_cast<float>(static_cast<std::int64_t>(bits >> 8)) * 0x1p-55f - 1.0f;
}

// Returns the elements of a whole logical tensor.
inline std::vector<float> numbers_of(std::uint64_t seed, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = number_of(seed, i);
  return values;
}

inline std::vector<std::uint16_t> rounded(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits;
  for (const float value : values) bits.push_back(quant::bfloat16(value).bits);
  return bits;
}

// Writes a checkpoint of step 20 from one rank. It contains fp32 weights, or bf16 weights with fp32 masters. Tensor i
// has the seed i. Routers are fp32 in both cases. `settings`: those of the run; null for a checkpoint without them.
inline void write_model(const fs::path& folder, const models::ModelConfig& config, quant::DType dtype,
                        const nlohmann::json& settings = nullptr) {
  std::vector<std::vector<float>> masters;
  std::vector<std::vector<std::uint16_t>> weights;
  const std::vector<LogicalTensor> logical = logical_tensors(config.hf_tensors());
  for (std::size_t i = 0; i < logical.size(); ++i) {
    masters.push_back(numbers_of(i, layout::matrix_shape(logical[i].dims).elements()));
    weights.push_back(rounded(masters.back()));
  }
  checkpoint::CheckpointContents contents{.step = 20, .state = {{"model", config.to_json()}}, .tensors = {}};
  if (!settings.is_null()) contents.state["config"] = settings;
  for (std::size_t i = 0; i < logical.size(); ++i) {
    const layout::LocalLayout all = whole(layout::matrix_shape(logical[i].dims));
    const bool narrow = dtype == quant::DType::bf16 && !logical[i].is_wide;
    const void* weight = narrow ? static_cast<const void*>(weights[i].data()) : masters[i].data();
    contents.tensors.push_back(
        {logical[i].name, checkpoint::Kind::weight, narrow ? dtype : quant::DType::fp32, logical[i].dims, all, weight});
    if (narrow)
      contents.tensors.push_back(
          {logical[i].name, checkpoint::Kind::master, quant::DType::fp32, logical[i].dims, all, masters[i].data()});
  }
  on_ranks(1, [&](comm::Communicator& group) { write_checkpoint(folder, contents, group); });
}

inline void write_llama(const fs::path& folder, const models::DecoderConfig& config, quant::DType dtype) {
  write_model(folder, models::LlamaConfig(config), dtype);
}

// Returns a model of architecture `model_type` with the sizes of odd_llama. Models with experts have 5 experts in a
// layer.
inline models::ModelConfigPtr odd_decoder(const std::string& model_type, bool tied) {
  nlohmann::json config = models::LlamaConfig(odd_llama(tied)).to_json();
  config.erase("architectures");
  config["model_type"] = model_type;
  if (model_type == "mixtral") config.update({{"num_local_experts", 5}});
  if (model_type == "qwen3_moe")
    config.update(
        {{"num_experts", 5}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 7}, {"mlp_only_layers", {1}}});
  return models::parse_model_config(config, model_type);
}

inline std::vector<HfTensor> hf_tensors(const models::DecoderConfig& config) {
  return models::LlamaConfig(config).hf_tensors(models::ExpertTensors::separate);
}

inline std::vector<LogicalTensor> logical_of(const models::DecoderConfig& config) {
  return logical_tensors(hf_tensors(config));
}

// Returns the bytes of every tensor in the safetensors files of a folder.
inline std::map<std::string, std::string> tensor_bytes(const fs::path& folder) {
  std::map<std::string, std::string> tensors;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const checkpoint::SafetensorsFile file(entry.path());
    for (const auto& [name, tensor] : file.entries()) {
      std::string bytes(static_cast<std::size_t>(tensor.bytes), '\0');
      file.file().read(tensor.offset, bytes.data(), tensor.bytes);
      tensors[name] = bytes;
    }
  }
  return tensors;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values, std::size_t first, std::size_t count) {
  return {reinterpret_cast<const char*>(values.data() + first), count * sizeof(T)};
}

}  // namespace tessera::hub::testing
