#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <span>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/hub/convert/convert.h"
#include "tessera/hub/convert/hf_format.h"
#include "tessera/hub/convert/non_finite.h"
#include "tessera/hub/stored_rows.h"
#include "tessera/hub/stored_run.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using models::HfTensor, models::LogicalTensor;

// Consecutive tensors of one file.
struct Shard {
  std::vector<HfTensor> tensors;
  std::int64_t bytes = 0;
};

// The type and the number format of the exported tensors.
struct ExportTypes {
  quant::DType dtype;
  quant::Format format = quant::Format::bf16;      // format of quantized tensors
  std::map<std::string, quant::DType> other = {};  // by name in the folder: types of tensors that do not have `dtype`

  quant::DType type_of(const HfTensor& tensor) const {
    const auto found = other.find(tensor.hf_name);
    return found == other.end() ? dtype : found->second;
  }

  bool quantizes(const HfTensor& tensor) const { return format != quant::Format::bf16 && tensor.may_be_quantized; }
  std::vector<checkpoint::SafetensorsTensor> entries(const HfTensor& tensor) const {
    if (quantizes(tensor)) return format_tensors(format, tensor.hf_name, {tensor.box.rows, tensor.box.cols});
    return {{tensor.hf_name, type_of(tensor), tensor.dims}};
  }
  std::int64_t bytes(const HfTensor& tensor) const {
    std::int64_t sum = 0;
    for (const checkpoint::SafetensorsTensor& entry : entries(tensor)) {
      auto bytes = static_cast<std::int64_t>(quant::size_of(entry.dtype));
      for (const std::int64_t extent : entry.dims) bytes *= extent;
      sum += bytes;
    }
    return sum;
  }
};

// Divides the tensors into files. A tensor larger than the limit has a separate file.
std::vector<Shard> make_shards(const std::vector<HfTensor>& tensors, const ExportTypes& types, std::int64_t limit) {
  std::vector<Shard> shards(1);
  for (const HfTensor& tensor : tensors) {
    const std::int64_t bytes = types.bytes(tensor);
    if (!shards.back().tensors.empty() && shards.back().bytes + bytes > limit) shards.emplace_back();
    shards.back().tensors.push_back(tensor);
    shards.back().bytes += bytes;
  }
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

void write_tensor(const checkpoint::CheckpointReader& reader, const HfTensor& tensor, const ExportTypes& types,
                  checkpoint::SafetensorsWriter& writer, NonFiniteCounts& non_finite) {
  const quant::DType dtype = types.type_of(tensor);
  if (!types.quantizes(tensor))
    return read_rows(reader, source_of(reader, tensor.name, dtype), tensor.box, dtype,
                     [&](const std::byte* data, std::int64_t elements) {
                       non_finite.count(tensor.hf_name, data, dtype, elements);
                       writer.write(data, elements * static_cast<std::int64_t>(quant::size_of(dtype)));
                     });
  std::vector<quant::bfloat16> values;
  read_rows(reader, source_of(reader, tensor.name, quant::DType::bf16), tensor.box, quant::DType::bf16,
            [&](const std::byte* data, std::int64_t elements) {
              non_finite.count(tensor.hf_name, data, quant::DType::bf16, elements);
              const auto* first = reinterpret_cast<const quant::bfloat16*>(data);
              values.insert(values.end(), first, first + elements);
            });
  for (const std::vector<std::byte>& bytes : format_bytes(types.format, values, {tensor.box.rows, tensor.box.cols}))
    writer.write(bytes.data(), static_cast<std::int64_t>(bytes.size()));
}

void write_shard(const checkpoint::CheckpointReader& reader, const Shard& shard, const ExportTypes& types,
                 const fs::path& path, NonFiniteCounts& non_finite) {
  std::vector<checkpoint::SafetensorsTensor> entries;
  for (const HfTensor& tensor : shard.tensors) std::ranges::move(types.entries(tensor), std::back_inserter(entries));
  checkpoint::SafetensorsWriter writer(path, entries);
  for (const HfTensor& tensor : shard.tensors) write_tensor(reader, tensor, types, writer, non_finite);
  writer.finish();
}

void write_index(const std::vector<Shard>& shards, const ExportTypes& types, std::int64_t total, const fs::path& path) {
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t i = 0; i < shards.size(); ++i)
    for (const HfTensor& tensor : shards[i].tensors)
      for (const checkpoint::SafetensorsTensor& entry : types.entries(tensor))
        map[entry.name] = shard_name(i, shards.size());
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  checkpoint::write_text(path, index.dump(2) + "\n");
}

std::string_view torch_name(quant::DType dtype) {
  switch (dtype) {
    case quant::DType::bf16:
      return "bfloat16";
    case quant::DType::fp64:
      return "float64";
    default:
      return "float32";
  }
}

// Returns whether bf16 represents all values of a tensor that is stored in fp32.
bool fits_bf16(const checkpoint::CheckpointReader& reader, const HfTensor& tensor) {
  bool fits = true;
  read_rows(reader, reader.tensor(tensor.name, checkpoint::Kind::weight), tensor.box, quant::DType::fp32,
            [&](const std::byte* data, std::int64_t elements) {
              const std::span values(reinterpret_cast<const float*>(data), static_cast<std::size_t>(elements));
              fits = fits && std::ranges::all_of(values, [](float value) {
                       return std::isnan(value) || static_cast<float>(quant::bfloat16(value)) == value;
                     });
            });
  return fits;
}

// Returns the tensors that stay in fp32 in an export in bf16, with this type. These are the tensors that transformers
// stores in fp32. Without --dtype (`is_given` is false), they are also the routers whose values bf16 does not
// represent.
std::map<std::string, quant::DType> types_of_wide(const checkpoint::CheckpointReader& reader,
                                                  const std::vector<HfTensor>& tensors, quant::DType dtype,
                                                  bool is_given) {
  std::map<std::string, quant::DType> types;
  if (dtype != quant::DType::bf16) return types;
  for (const HfTensor& tensor : tensors)
    if (tensor.is_wide && (tensor.keeps_fp32 || (!is_given && !fits_bf16(reader, tensor))))
      types[tensor.hf_name] = quant::DType::fp32;
  return types;
}

// Returns the names of the modules of the routers, which have no number format.
std::vector<std::string> modules_of_routers(const std::vector<HfTensor>& tensors) {
  constexpr std::string_view kWeight = ".weight";
  std::vector<std::string> modules;
  for (const HfTensor& tensor : tensors)
    if (tensor.is_wide && tensor.hf_name.ends_with(kWeight))
      modules.push_back(tensor.hf_name.substr(0, tensor.hf_name.size() - kWeight.size()));
  return modules;
}

// Returns a note for the user about the folder, or an empty string.
std::string note_of(const std::vector<HfTensor>& tensors, const ExportTypes& types) {
  for (const HfTensor& tensor : tensors)
    if (types.quantizes(tensor) && is_misread_by_transformers(types.format, {tensor.box.rows, tensor.box.cols}))
      return fmt::format(
          "transformers does not read {} matrices with an extent above 128 that 128 does not divide, for example {} of "
          "{} x {}",
          name_of(types.format), tensor.hf_name, tensor.box.rows, tensor.box.cols);
  return "";
}

}  // namespace

ConvertReport export_hf(const fs::path& checkpoint, const fs::path& target, const ConvertOptions& options) {
  const checkpoint::CheckpointReader reader = open_checkpoint(checkpoint, CheckpointUse::convert);
  const models::ModelConfigPtr config = model_of_checkpoint(reader);
  const std::vector<HfTensor> tensors = config->hf_tensors();
  const quant::Format format = options.format.value_or(quant::Format::bf16);
  if (options.format && options.dtype.value_or(quant::DType::bf16) != quant::DType::bf16)
    throw InputError("dtype: got {} with format {}, expected bf16", name_of(*options.dtype), name_of(format));
  const quant::DType stored = reader.tensor(tensors.front().name, checkpoint::Kind::weight).dtype;
  const quant::DType dtype = options.format ? quant::DType::bf16 : options.dtype.value_or(stored);
  const ExportTypes types{
      .dtype = dtype, .format = format, .other = types_of_wide(reader, tensors, dtype, options.dtype.has_value())};
  const std::vector<Shard> shards = make_shards(tensors, types, options.max_shard_bytes);

  checkpoint::PartialFolder folder(target);
  std::int64_t total = 0;
  NonFiniteCounts non_finite;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    write_shard(reader, shards[i], types, folder.path() / shard_name(i, shards.size()), non_finite);
    total += shards[i].bytes;
  }
  if (shards.size() > 1) write_index(shards, types, total, folder.path() / "model.safetensors.index.json");
  const std::vector<std::string> routers = modules_of_routers(tensors);
  nlohmann::json hf_config = config->to_json();
  hf_config["torch_dtype"] = torch_name(types.dtype);
  const fs::path tokenizer = tokenizer_of(checkpoint);
  // Without these fields, other programs assume default ids, which belong to another vocabulary.
  hf_config.update(generation_config(tokenizer.empty() ? TextTokens() : text_tokens_of(tokenizer)));
  if (!tokenizer.empty()) copy_tokenizer(tokenizer, folder.path());
  if (const nlohmann::json quantization = quantization_config(format, routers); !quantization.is_null())
    hf_config["quantization_config"] = quantization;
  checkpoint::write_text(folder.path() / "config.json", hf_config.dump(2) + "\n");
  if (const nlohmann::json quantization = hf_quant_config(format, routers); !quantization.is_null())
    checkpoint::write_text(folder.path() / "hf_quant_config.json", quantization.dump(2) + "\n");
  folder.commit();
  ConvertReport report{{"direction", "export"},
                       {"source", checkpoint.string()},
                       {"target", target.string()},
                       {"dtype", name_of(types.dtype)},
                       {"format", name_of(format)},
                       {"tensors", tensors.size()},
                       {"bytes", total},
                       {"files", shards.size()}};
  if (const std::string note = note_of(tensors, types); !note.empty()) report["note"] = note;
  if (nlohmann::json found = non_finite.to_json(); !found.empty()) report["non_finite"] = std::move(found);
  return report;
}

}  // namespace tessera::hub
