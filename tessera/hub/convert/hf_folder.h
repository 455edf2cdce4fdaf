// A model in a Hugging Face folder: config.json, and model.safetensors or shards with an index.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/hub/convert/hf_format.h"
#include "tessera/models/model_config.h"
#include "tessera/quant/dtype.h"

namespace tessera::hub {

// The constructor opens and checks the whole folder before any data is read. It checks the architecture, and that each
// of the model's tensors exists once with its shape and a floating type. It refuses tensors that the model does not
// use, and a folder that different programs may read in different ways. Matrices of layers may be in a number format
// (hf_format.h); read() returns their dequantized values. Every fault is an InputError with the file and the tensor.
// Used by one thread at a time.
class HfFolder {
 public:
  explicit HfFolder(const std::filesystem::path& folder);

  const models::ModelConfig& config() const { return *config_; }
  models::ModelConfigPtr shared_config() const { return config_; }
  // The model's tensors as this folder stores them (models::ExpertTensors).
  const std::vector<models::HfTensor>& tensors() const { return tensors_; }
  // Returns the type of the first tensor, the embedding. Returns fp32 for half precision, because training does not
  // have this type.
  quant::DType dtype() const;
  // Reads elements [first, first + count) of a tensor, row-major, as `type` (fp32 or fp64). The values are exact if the
  // stored type is not wider than `type`, and otherwise rounded to nearest even.
  void read(const std::string& hf_name, std::int64_t first, std::int64_t count, quant::DType type, void* target) const;

 private:
  void open_single(const std::filesystem::path& path);
  void open_sharded(const std::filesystem::path& index);
  const checkpoint::SafetensorsFile& open_shard(const std::string& shard, const std::string& tensor,
                                                const std::string& where);
  std::vector<models::HfTensor> find_tensors() const;
  void check();
  void check_shards() const;
  void check_alias(const models::HfAlias& alias) const;
  const checkpoint::SafetensorsEntry& entry(const std::string& hf_name) const;
  const checkpoint::SafetensorsEntry* find(const std::string& hf_name) const;
  void check_tensor(const std::string& hf_name, const std::vector<std::int64_t>& dims, std::string_view type) const;
  void check_has_no_format(const models::HfTensor& tensor) const;
  std::vector<std::string> check_quantized(const models::HfTensor& tensor, quant::Format format) const;
  const std::vector<quant::bfloat16>& unpacked(const std::string& hf_name) const;

  std::filesystem::path folder_;
  models::ModelConfigPtr config_;
  std::vector<models::HfTensor> tensors_;
  std::map<std::string, std::unique_ptr<checkpoint::SafetensorsFile>> files_;
  std::map<std::string, const checkpoint::SafetensorsFile*> where_;  // by name of the tensor: its file
  // The matrices in a number format. Callers read matrices in order, so only the last matrix is kept in dequantized
  // form.
  struct Quantized {
    quant::Format format;
    quant::Extent matrix;
  };
  std::map<std::string, Quantized> quantized_;
  mutable std::string unpacked_name_;
  mutable std::vector<quant::bfloat16> unpacked_;
};

// Returns whether the folder holds model.safetensors or an index of shards.
bool holds_hf_weights(const std::filesystem::path& folder);

// Converts an IEEE half-precision number to float; exact.
float half_to_float(std::uint16_t bits);

}  // namespace tessera::hub
