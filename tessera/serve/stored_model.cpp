#include "tessera/serve/stored_model.h"

#include <memory>

#include "tessera/base/memory/buffer.h"
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
