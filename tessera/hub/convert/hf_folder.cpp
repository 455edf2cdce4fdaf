#include "tessera/hub/convert/hf_folder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/base/text/printable.h"
#include "tessera/checkpoint/typed_json.h"
#include "tessera/models/registry.h"
#include "tessera/quant/elementwise.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kQuantConfig = "hf_quant_config.json";
constexpr std::int64_t kChunk = std::int64_t{1} << 18;  // number of elements that are compared at a time

bool is_file(const fs::path& path) {
  std::error_code code;
  return fs::is_regular_file(path, code);
}

// Old exports store RoPE's frequencies, which follow from the configuration. ModelOpt's exports store scales of
// activations, which only inference uses.
bool is_ignored(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".input_scale");
}

std::int64_t element_bytes(const checkpoint::SafetensorsEntry& entry) {
  const auto type = checkpoint::from_safetensors_name(entry.dtype);
  return type ? static_cast<std::int64_t>(quant::size_of(*type)) : 2;  // F16 is not a DType of Tessera and has 2 bytes
}

bool is_floating(const std::string& dtype) {
  const auto type = checkpoint::from_safetensors_name(dtype);
  return dtype == "F16" || (type && quant::is_floating(*type));
}

bool holds_pickled_weights(const fs::path& folder) {
  return is_file(folder / "pytorch_model.bin") || is_file(folder / "pytorch_model.bin.index.json");
}

models::ModelConfigPtr read_config(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  nlohmann::json config = base::read_json_file(file);
  const bool has_format =
      config.is_object() && config.contains("quantization_config") && !config["quantization_config"].is_null();
  if (has_format && is_file(folder / kQuantConfig))
    throw InputError("{}: has quantization_config, and {} exists too: expected one of them", file.string(),
                     kQuantConfig);
  remove_quantization_config(config, file.string());
  return models::parse_model_config(config, file.string());
}

// Returns whether the file name is that of a model's shard, "model-00001-of-00002.safetensors".
bool is_shard(const std::string& name) {
  return name.starts_with("model-") && name.ends_with(".safetensors") && name.find("-of-") != std::string::npos;
}

std::set<std::string> shards_in(const fs::path& folder) {
  std::set<std::string> shards;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); is_shard(name)) shards.insert(name);
  return shards;
}

}  // namespace

bool holds_hf_weights(const fs::path& folder) {
  return is_file(folder / kSingle) || is_file(folder / kIndex);
}

float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu, mantissa = bits & 0x3FFu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;  // biases: 127 - 15
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

HfFolder::HfFolder(const fs::path& folder) : folder_(folder), config_(read_config(folder)) {
  if (is_file(folder / kIndex)) {
    open_sharded(folder / kIndex);
  } else if (is_file(folder / kSingle)) {
    open_single(folder / kSingle);
  } else {
    throw InputError(
        "{}: no weights: expected {} or {}{}", folder.string(), kSingle, kIndex,
        holds_pickled_weights(folder) ? " (pytorch_model.bin is not read: save the model as safetensors)" : "");
  }
  check_shards();
  if (is_file(folder / kQuantConfig))
    check_hf_quant_config(base::read_json_file(folder / kQuantConfig), (folder / kQuantConfig).string());
  check();
}

void HfFolder::open_single(const fs::path& path) {
  const auto& file = files_[kSingle] = std::make_unique<checkpoint::SafetensorsFile>(path);
  for (const auto& [name, entry] : file->entries()) where_.emplace(name, file.get());
}

void HfFolder::open_sharded(const fs::path& index) {
  const std::string where = index.string();
  const nlohmann::json root = base::read_json_file(index);
  const nlohmann::json& map = checkpoint::member(root, "weight_map", where);
  if (!map.is_object()) throw InputError("{}: weight_map: expected an object", where);
  for (const auto& [name, value] : map.items()) {
    const std::string shard = value.is_string() ? value.get<std::string>() : "";
    if (shard.empty() || shard != fs::path(shard).filename().string())
      throw InputError("{}: weight_map: '{}': expected the name of a file in the same folder, got {}", where,
                       base::excerpt(name), base::shown(value));
    if (shard != kSingle && is_file(folder_ / kSingle))
      throw InputError(
          "{}: holds {} and {}, which names {}: expected one of the two, since programs differ in which one they read",
          folder_.string(), kSingle, kIndex, base::excerpt(shard));
    where_.emplace(name, &open_shard(shard, name, where));
  }
  for (const auto& [shard, file] : files_)
    for (const auto& [name, entry] : file->entries()) {
      if (!map.contains(name))
        throw InputError("{}: tensor '{}' of {} is not in weight_map", where, base::excerpt(name), shard);
      if (map[name] != shard)
        throw InputError("{}: tensor '{}' is in {} and in {}: expected it once", where, base::excerpt(name),
                         map[name].get<std::string>(), shard);
    }
}

// Returns the shard that holds the tensor. `where` is the index file that names the shard.
const checkpoint::SafetensorsFile& HfFolder::open_shard(const std::string& shard, const std::string& tensor,
                                                        const std::string& where) {
  auto& file = files_[shard];
  if (!file && !is_file(folder_ / shard))
    throw InputError("{}: weight_map: '{}': names {}, which is not in the folder", where, base::excerpt(tensor),
                     base::excerpt(shard));
  if (!file) file = std::make_unique<checkpoint::SafetensorsFile>(folder_ / shard);
  if (!file->entries().contains(tensor))
    throw InputError("{}: weight_map: '{}': names {}, which does not hold it", where, base::excerpt(tensor),
                     base::excerpt(shard));
  return *file;
}

// Throws InputError for a file that has the name of a shard but is not read.
void HfFolder::check_shards() const {
  for (const std::string& shard : shards_in(folder_))
    if (!files_.contains(shard))
      throw InputError("{}: holds {}, which {}: expected only files of the model", folder_.string(),
                       base::excerpt(shard), is_file(folder_ / kIndex) ? "the index does not name" : "no index names");
}

const checkpoint::SafetensorsEntry& HfFolder::entry(const std::string& hf_name) const {
  const auto found = where_.find(hf_name);
  if (found == where_.end()) throw InputError("{}: tensor '{}' is missing", folder_.string(), hf_name);
  return found->second->entry(hf_name);
}

const checkpoint::SafetensorsEntry* HfFolder::find(const std::string& hf_name) const {
  const auto found = where_.find(hf_name);
  return found == where_.end() ? nullptr : &found->second->entry(hf_name);
}

// `type` is the safetensors name of the expected type. If `type` is empty, any floating type is accepted.
void HfFolder::check_tensor(const std::string& hf_name, const std::vector<std::int64_t>& dims,
                            std::string_view type) const {
  const checkpoint::SafetensorsEntry& stored = entry(hf_name);
  if (stored.dims != dims)
    throw InputError("{}: tensor '{}': expected {}, it is {}", folder_.string(), hf_name, checkpoint::shape_text(dims),
                     checkpoint::shape_text(stored.dims));
  if (type.empty() ? !is_floating(stored.dtype) : stored.dtype != type)
    throw InputError("{}: tensor '{}': expected {}, got {}", folder_.string(), hf_name,
                     type.empty() ? "a floating type" : type, stored.dtype);
}

// Checks the type of a tensor without scales.
void HfFolder::check_has_no_format(const models::HfTensor& tensor) const {
  const std::string& hf_name = tensor.hf_name;
  const std::string& type = entry(hf_name).dtype;
  const bool has_scales = find(hf_name + "_scale") != nullptr || find(hf_name + "_scale_inv") != nullptr;
  if (tensor.dims.size() == 3 && (type == "F8_E4M3" || type == "U8" || has_scales))
    throw InputError(
        "{}: tensor '{}' is {}{}: expected F64, F32, F16 or BF16: in a number format, each matrix of each expert needs "
        "a tensor of its own, so save the experts as separate tensors or dequantized",
        folder_.string(), hf_name, type, has_scales ? " with scales" : "");
  if (type != "F8_E4M3") return;
  if (tensor.may_be_quantized)
    throw InputError("{}: tensor '{}' is {}: expected its scales, '{}_scale' or '{}_scale_inv', beside it",
                     folder_.string(), hf_name, type, hf_name, hf_name);
  throw InputError(
      "{}: tensor '{}' is {}: expected F64, F32, F16 or BF16, since only weights of linear layers and "
      "experts have scales",
      folder_.string(), hf_name, type);
}

// Returns the names of the tensors that store the matrix.
std::vector<std::string> HfFolder::check_quantized(const models::HfTensor& tensor, quant::Format format) const {
  std::vector<std::string> names;
  for (const checkpoint::SafetensorsTensor& part :
       format_tensors(format, tensor.hf_name, {tensor.box.rows, tensor.box.cols})) {
    const checkpoint::SafetensorsEntry* stored = find(part.name);
    const bool is_scalar = part.dims == std::vector<std::int64_t>{1} && stored != nullptr && stored->dims.empty();
    check_tensor(part.name, is_scalar ? std::vector<std::int64_t>{} : part.dims,
                 part.stored_as.empty() ? checkpoint::safetensors_name(part.dtype) : part.stored_as);
    names.push_back(part.name);
  }
  return names;
}

// A folder may have one of several forms. The form with the most tensors in the folder is used. Throws InputError if
// every form has far more tensors than the folder. Such a form is not listed, because a few bytes of config.json can
// describe a list of any length.
std::vector<models::HfTensor> HfFolder::find_tensors() const {
  using Form = models::ExpertTensors;
  std::vector<Form> forms{Form::separate, Form::fused, Form::fused_in_module};
  if (config_->sizes().num_experts == 0) forms.resize(1);
  // The limit leaves room for missing tensors, so that the first one can be named.
  const std::int64_t most = 2 * std::ssize(where_) + 1000;
  const std::int64_t fewest = config_->num_layer_tensors(forms.back());
  std::erase_if(forms, [&](Form form) { return config_->num_layer_tensors(form) > most; });
  if (forms.empty())
    throw InputError("{}: holds {} tensors, expected at least {} for the {} layers of config.json", folder_.string(),
                     where_.size(), fewest, config_->sizes().num_layers);
  std::vector<models::HfTensor> best;
  std::int64_t most_present = -1;
  for (const Form form : forms) {
    std::vector<models::HfTensor> tensors = config_->hf_tensors(form);
    const std::int64_t present =
        std::ranges::count_if(tensors, [this](const auto& tensor) { return find(tensor.hf_name) != nullptr; });
    if (present > most_present) best = std::move(tensors), most_present = present;
  }
  return best;
}

void HfFolder::check() {
  std::set<std::string> known;
  tensors_ = find_tensors();
  for (const models::HfTensor& tensor : tensors_) {
    known.insert(tensor.hf_name);
    const auto format = stored_format(tensor, [this](const std::string& name) { return find(name); });
    if (!format) {
      check_has_no_format(tensor);
      check_tensor(tensor.hf_name, tensor.dims, {});
      continue;
    }
    for (std::string& name : check_quantized(tensor, *format)) known.insert(std::move(name));
    quantized_[tensor.hf_name] = {*format, {tensor.box.rows, tensor.box.cols}};
  }
  for (const models::HfAlias& alias : config_->hf_aliases()) {
    if (find(alias.hf_name) == nullptr) continue;
    known.insert(alias.hf_name);
    check_alias(alias);
  }
  for (const auto& [name, file] : where_)
    if (!known.contains(name) && !is_ignored(name))
      throw InputError("{}: tensor '{}' is not part of a model with this config.json", folder_.string(),
                       base::excerpt(name));
}

// The config.json ties the tensor to another tensor, but the folder also stores the tied tensor. Throws InputError
// unless both tensors have the same values. Their types may differ.
void HfFolder::check_alias(const models::HfAlias& alias) const {
  const checkpoint::SafetensorsEntry &original = entry(alias.of), &other = entry(alias.hf_name);
  check_tensor(alias.hf_name, original.dims, {});
  const std::int64_t elements = original.bytes / element_bytes(original);
  std::vector<double> left, right;
  for (std::int64_t at = 0; at < elements; at += kChunk) {
    const std::int64_t count = std::min(kChunk, elements - at);
    left.resize(static_cast<std::size_t>(count));
    right.resize(static_cast<std::size_t>(count));
    read(alias.of, at, count, quant::DType::fp64, left.data());
    read(alias.hf_name, at, count, quant::DType::fp64, right.data());
    const auto differs = [](double a, double b) { return a != b && !(std::isnan(a) && std::isnan(b)); };
    for (std::size_t i = 0; i < left.size(); ++i)
      if (differs(left[i], right[i]))
        throw InputError(
            "{}: config.json has tie_word_embeddings true, but '{}' ({}) differs from '{}' ({}): element {} is {}, "
            "expected {}",
            folder_.string(), alias.hf_name, other.dtype, alias.of, original.dtype, at + static_cast<std::int64_t>(i),
            right[i], left[i]);
  }
}

quant::DType HfFolder::dtype() const {
  return checkpoint::from_safetensors_name(entry(tensors_.front().hf_name).dtype).value_or(quant::DType::fp32);
}

const std::vector<quant::bfloat16>& HfFolder::unpacked(const std::string& hf_name) const {
  if (unpacked_name_ == hf_name) return unpacked_;
  const Quantized& how = quantized_.at(hf_name);
  std::vector<std::vector<std::byte>> stored;
  for (const checkpoint::SafetensorsTensor& part : format_tensors(how.format, hf_name, how.matrix)) {
    const checkpoint::SafetensorsEntry& place = entry(part.name);
    stored.emplace_back(static_cast<std::size_t>(place.bytes));
    where_.at(part.name)->file().read(place.offset, stored.back().data(), place.bytes);
  }
  check_scales(how.format, stored, folder_.string() + ": tensor '" + hf_name + "'");
  unpacked_ = format_values(how.format, stored, how.matrix);
  unpacked_name_ = hf_name;
  return unpacked_;
}

void HfFolder::read(const std::string& hf_name, std::int64_t first, std::int64_t count, quant::DType type,
                    void* target) const {
  if (quantized_.contains(hf_name))
    return quant::cast(unpacked(hf_name).data() + first, quant::DType::bf16, target, type, count);
  const checkpoint::SafetensorsEntry& stored = entry(hf_name);
  const std::int64_t element = element_bytes(stored);
  base::Buffer raw(static_cast<std::size_t>(count * element));
  where_.at(hf_name)->file().read(stored.offset + first * element, raw.data(), count * element);
  if (const auto source = checkpoint::from_safetensors_name(stored.dtype))
    return quant::cast(raw.data(), *source, target, type, count);
  base::Buffer floats(static_cast<std::size_t>(count) * sizeof(float));
  const auto halves = raw.as<std::uint16_t>();
  std::transform(halves.begin(), halves.end(), floats.as<float>().begin(), half_to_float);
  quant::cast(floats.data(), quant::DType::fp32, target, type, count);
}

}  // namespace tessera::hub
