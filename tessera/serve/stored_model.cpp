#include "tessera/serve/stored_model.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "tessera/base/memory/buffer.h"
#include "tessera/base/text/printable.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/hub/convert/convert.h"
#include "tessera/hub/convert/hf_weights.h"
#include "tessera/hub/stored_rows.h"
#include "tessera/hub/stored_run.h"
#include "tessera/models/registry.h"
#include "tessera/quant/elementwise.h"

namespace tessera::serve {
namespace {

namespace fs = std::filesystem;

// Reads a tensor in its stored type into a buffer with the layout of the request. One cast then converts the whole
// buffer.
void read_as(const checkpoint::CheckpointReader& reader, const checkpoint::LoadTensor& request) {
  const checkpoint::StoredTensor& source = hub::source_of(reader, request.name, request.dtype);
  checkpoint::LoadTensor stored = request;
  stored.kind = source.kind;
  stored.dtype = source.dtype;
  if (source.dtype == request.dtype) return reader.read(stored);
  base::Buffer raw(static_cast<std::size_t>(request.local.size) * quant::size_of(source.dtype));
  raw.fill_zero();
  stored.data = raw.data();
  reader.read(stored);
  quant::cast(raw.data(), source.dtype, request.data, request.dtype, request.local.size);
}

// Returns a warning if the run that wrote the checkpoint used number formats, which are not used here. Returns ""
// otherwise. `state`: the state of the checkpoint.
std::string warning_of_formats(const nlohmann::json& state) {
  const nlohmann::json settings = state.is_object() ? state.value("config", nlohmann::json()) : nlohmann::json();
  std::string flags;
  for (const auto& [flag, name] :
       {std::pair("--wire-format", "wire_format"), std::pair("--wire-rules", "wire_rules"),
        std::pair("--wire-format-backward", "wire_format_backward"),
        std::pair("--wire-rules-backward", "wire_rules_backward"), std::pair("--gemm-format", "gemm_format"),
        std::pair("--gemm-rules", "gemm_rules")}) {
    const nlohmann::json value = settings.is_object() ? settings.value(name, nlohmann::json()) : nlohmann::json();
    if (value.is_string() && value != "" && value != "bf16")
      flags += fmt::format(" {} {}", flag, base::excerpt(value.get<std::string>()));
  }
  if (flags.empty()) return "";
  return fmt::format("the run was trained with{}; its formats are not used here: products are computed in --dtype",
                     flags);
}

}  // namespace

StoredModel find_stored_model(const fs::path& path, std::int64_t part, std::int64_t parts) {
  if (hub::is_hf_folder(path)) {
    const hub::HfFolder folder(path);
    return {.model = folder.shared_config(),
            .dtype = folder.dtype(),
            .folder = path,
            .is_hf = true,
            .warnings = models::model_config_warnings(path / "config.json")};
  }
  const checkpoint::CheckpointReader reader = hub::open_checkpoint(
      hub::find_checkpoint(path, hub::CheckpointUse::convert), hub::CheckpointUse::convert, part, parts);
  StoredModel stored{.model = hub::model_of_checkpoint(reader), .folder = reader.folder()};
  stored.dtype =
      reader.tensor(stored.model->hf_tensors(models::ExpertTensors::fused).front().name, checkpoint::Kind::weight)
          .dtype;
  if (std::string warning = warning_of_formats(reader.state()); !warning.empty())
    stored.warnings.push_back(std::move(warning));
  stored.begin_ids = hub::begin_ids_in(reader.state(), reader.folder() / checkpoint::kManifestFile);
  return stored;
}

serve::FrozenModel::ReadWeight weight_reader(const StoredModel& stored) {
  if (stored.is_hf) {
    const auto weights = std::make_shared<hub::HfWeights>(stored.folder);
    return [weights](const checkpoint::LoadTensor& request) { weights->read(request); };
  }
  const auto reader = std::make_shared<const checkpoint::CheckpointReader>(stored.folder);
  return [reader](const checkpoint::LoadTensor& request) { read_as(*reader, request); };
}

}  // namespace tessera::serve
