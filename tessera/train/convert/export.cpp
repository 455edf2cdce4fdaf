#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/comm/kernels.h"
#include "tessera/train/checkpoint/folder.h"
#include "tessera/train/checkpoint/reader.h"
#include "tessera/train/convert/convert.h"
#include "tessera/train/convert/hf_llama.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kChunkElements = std::int64_t{8} << 20;

// Consecutive tensors of one file.
struct Shard {
  std::vector<HfTensor> tensors;
  std::int64_t bytes = 0;
};

std::int64_t bytes_of(const HfTensor& tensor, base::DType dtype) {
  return tensor.box.elements() * static_cast<std::int64_t>(base::size_of(dtype));
}

// A tensor that is larger than the limit gets a file of its own.
std::vector<Shard> make_shards(const std::vector<HfTensor>& tensors, base::DType dtype, std::int64_t limit) {
  std::vector<Shard> shards(1);
  for (const HfTensor& tensor : tensors) {
    const std::int64_t bytes = bytes_of(tensor, dtype);
    if (!shards.back().tensors.empty() && shards.back().bytes + bytes > limit) shards.emplace_back();
    shards.back().tensors.push_back(tensor);
    shards.back().bytes += bytes;
  }
  return shards;
}

std::string shard_name(std::size_t index, std::size_t count) {
  return count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

const StoredTensor& source_of(const CheckpointReader& reader, const std::string& name, base::DType dtype) {
  const StoredTensor& weight = reader.tensor(name, Kind::weight);
  const StoredTensor* master = reader.find(name, Kind::master);
  return master != nullptr && base::size_of(dtype) > base::size_of(weight.dtype) ? *master : weight;
}

void write_tensor(const CheckpointReader& reader, const HfTensor& tensor, base::DType dtype,
                  SafetensorsWriter& writer) {
  const StoredTensor& source = source_of(reader, tensor.name, dtype);
  const layout::Box& box = tensor.box;
  const std::int64_t rows = std::clamp<std::int64_t>(kChunkElements / box.cols, 1, box.rows);
  base::Buffer raw(static_cast<std::size_t>(rows * box.cols) * base::size_of(source.dtype));
  base::Buffer cast(static_cast<std::size_t>(rows * box.cols) * base::size_of(dtype));
  for (std::int64_t row = 0; row < box.rows; row += rows) {
    const layout::Box part{box.row + row, std::min(rows, box.rows - row), box.col, box.cols};
    reader.read({.name = source.name,
                 .kind = source.kind,
                 .dtype = source.dtype,
                 .dims = source.dims,
                 .local = {.pieces = {{part, 0, part.cols}}, .size = part.elements()},
                 .data = raw.data()});
    comm::cast(raw.data(), source.dtype, cast.data(), dtype, part.elements());
    writer.write(cast.data(), part.elements() * static_cast<std::int64_t>(base::size_of(dtype)));
  }
}

void write_shard(const CheckpointReader& reader, const Shard& shard, base::DType dtype, const fs::path& path) {
  std::vector<SafetensorsTensor> entries;
  for (const HfTensor& tensor : shard.tensors) entries.push_back({tensor.hf_name, dtype, tensor.dims});
  SafetensorsWriter writer(path, entries);
  for (const HfTensor& tensor : shard.tensors) write_tensor(reader, tensor, dtype, writer);
  writer.finish();
}

void write_index(const std::vector<Shard>& shards, std::int64_t total, const fs::path& path) {
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t i = 0; i < shards.size(); ++i)
    for (const HfTensor& tensor : shards[i].tensors) map[tensor.hf_name] = shard_name(i, shards.size());
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_text(path, index.dump(2) + "\n");
}

std::string_view torch_name(base::DType dtype) {
  switch (dtype) {
    case base::DType::bf16:
      return "bfloat16";
    case base::DType::fp64:
      return "float64";
    default:
      return "float32";
  }
}

nn::LlamaConfig config_of(const CheckpointReader& reader) {
  const std::string where = (reader.folder() / kManifestFile).string() + ": state";
  if (!reader.state().is_object() || !reader.state().contains("model"))
    throw InputError("{}: 'model' (the model's configuration) is missing", where);
  return nn::parse_llama_config(reader.state()["model"], where + ".model");
}

// The checkpoint holds the weights of this model, and no others.
void check_weights(const CheckpointReader& reader, const nn::LlamaConfig& config) {
  std::size_t expected = 0, stored = 0;
  for (const LogicalTensor& tensor : logical_tensors(config)) {
    const StoredTensor& weight = reader.tensor(tensor.name, Kind::weight);
    if (weight.dims != tensor.dims)
      throw InputError("{}: weight '{}': the model's configuration makes it [{}], it is [{}]", reader.folder().string(),
                       tensor.name, fmt::join(tensor.dims, ", "), fmt::join(weight.dims, ", "));
    ++expected;
  }
  for (const StoredTensor& tensor : reader.manifest().tensors) stored += tensor.kind == Kind::weight;
  if (stored != expected)
    throw InputError("{}: it holds {} weights, the model's configuration makes {}", reader.folder().string(), stored,
                     expected);
}

}  // namespace

ConvertReport export_hf(const fs::path& checkpoint, const fs::path& target, const ConvertOptions& options) {
  const CheckpointReader reader(checkpoint);
  reader.verify();
  const nn::LlamaConfig config = config_of(reader);
  check_weights(reader, config);
  const std::vector<HfTensor> tensors = hf_tensors(config);
  const base::DType dtype = options.dtype.value_or(reader.tensor(tensors.front().name, Kind::weight).dtype);
  const std::vector<Shard> shards = make_shards(tensors, dtype, options.max_shard_bytes);

  PartialFolder folder(target);
  std::int64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    write_shard(reader, shards[i], dtype, folder.path() / shard_name(i, shards.size()));
    total += shards[i].bytes;
  }
  if (shards.size() > 1) write_index(shards, total, folder.path() / "model.safetensors.index.json");
  nlohmann::json hf_config = nn::to_json(config);
  hf_config["torch_dtype"] = torch_name(dtype);
  write_text(folder.path() / "config.json", hf_config.dump(2) + "\n");
  folder.commit();
  return {{"direction", "export"},         {"source", checkpoint.string()}, {"target", target.string()},
          {"dtype", base::name_of(dtype)}, {"tensors", tensors.size()},     {"bytes", total},
          {"files", shards.size()}};
}

}  // namespace tessera::train
