#include "tessera/hub/stored_run.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/typed_json.h"
#include "tessera/hub/run_directory.h"
#include "tessera/models/registry.h"
#include "tessera/ops/optimizer/matrices/muon.h"
#include "tessera/settings/resolved_run.h"
#include "tessera/settings/resume.h"
#include "tessera/settings/run_mesh.h"
#include "tessera/settings/settings.h"
#include "tessera/train/trainer_checkpoint.h"

namespace tessera::hub {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

void refuse_init_with_resume(const settings::TrainConfig& command) {
  if (command.given.contains("init") && !command.resume.empty())
    throw InputError("--init {} and --resume {}: expected one of them: a run that is resumed has its own weights",
                     command.init, command.resume);
}

}  // namespace

std::optional<fs::path> checkpoint_to_resume(const settings::TrainConfig& command) {
  if (command.resume.empty()) return std::nullopt;
  refuse_init_with_resume(command);
  if (command.resume != "latest") return find_checkpoint(command.resume, CheckpointUse::resume);
  if (command.out.empty()) throw InputError("--out is missing: --resume latest looks for checkpoints there");
  const fs::path folder = RunDirectory(command.out).checkpoints();
  if (const auto latest = checkpoint::latest_checkpoint(folder)) return latest->path;
  if (const auto aside = checkpoint::list_set_aside(folder); !aside.empty())
    throw InputError(
        "--resume: got latest, but a resumed run set all checkpoints of {} aside, expected the path of a checkpoint, "
        "for example {}",
        command.out, aside.back().path.string());
  return std::nullopt;
}

checkpoint::CheckpointReader open_checkpoint(const fs::path& folder, CheckpointUse use, std::int64_t part,
                                             std::int64_t parts) {
  return naming_other_checkpoints(folder, use, [&] {
    checkpoint::CheckpointReader reader(folder);
    reader.verify(static_cast<int>(part), static_cast<int>(parts));
    return reader;
  });
}

StoredRun stored_before_first_checkpoint(const settings::TrainConfig& command) {
  if (command.resume.empty()) return {};
  const fs::path file = RunDirectory(command.out).config();
  std::error_code ignored;
  if (fs::is_regular_file(file, ignored)) {
    StoredRun stored{.state = base::read_json_file(file), .where = file.string()};
    if (stored.state.is_object() && stored.state.contains("config")) return stored;
  }
  if (command.model.empty())
    throw InputError(
        "--resume latest: {} holds no run: expected the folder of a run, or the flags of a new run (--model, --data, "
        "--steps)",
        command.out);
  return {};
}

json stored_state_of(const checkpoint::CheckpointReader& reader) {
  const std::string where = (reader.folder() / checkpoint::kManifestFile).string();
  const double last = settings::find_setting("steps")->range.high;
  if (static_cast<double>(reader.step()) > last)
    throw InputError("{}: step: got {}, expected at most {:.0f}", where, reader.step(), last);
  if (!reader.state().is_null() && !reader.state().is_object())
    throw InputError("{}: state: got {}, expected an object", where, base::shown(reader.state()));
  ops::UpdatePolicy every_rule;
  every_rule.rules = {ops::make_rule(ops::AdamW{}), ops::make_matrix_rule(ops::Muon{})};
  train::check_state(reader, every_rule);
  return reader.state().is_null() ? json::object() : reader.state();
}

void check_stored_weights(const checkpoint::CheckpointReader& reader, const models::ModelConfig& config) {
  const auto stored =
      std::ranges::count(reader.manifest().tensors, checkpoint::Kind::weight, &checkpoint::StoredTensor::kind);
  // Bounds the list of the model's weights. A layer has several weights. The limit leaves room for missing weights, so
  // that the first one can be named.
  if (const std::int64_t layers = config.sizes().num_layers; layers > stored + 1000)
    throw InputError("{}: it holds {} weights, expected at least {} from the model's configuration",
                     reader.folder().string(), stored, layers);
  const std::vector<models::LogicalTensor> tensors = logical_tensors(config.hf_tensors(models::ExpertTensors::fused));
  for (const models::LogicalTensor& tensor : tensors)
    if (const auto& weight = reader.tensor(tensor.name, checkpoint::Kind::weight); weight.dims != tensor.dims)
      throw InputError("{}: weight '{}': expected {} from the model's configuration, got {}", reader.folder().string(),
                       tensor.name, checkpoint::shape_text(tensor.dims), checkpoint::shape_text(weight.dims));
  if (std::ssize(tensors) != stored)
    throw InputError("{}: it holds {} weights, expected {} from the model's configuration", reader.folder().string(),
                     stored, tensors.size());
}

models::ModelConfigPtr model_of_checkpoint(const checkpoint::CheckpointReader& reader) {
  const std::string where = (reader.folder() / checkpoint::kManifestFile).string() + ": state";
  if (!reader.state().is_object() || !reader.state().contains("model"))
    throw InputError("{}: 'model' (the model's configuration) is missing", where);
  models::ModelConfigPtr model = models::parse_model_config(reader.state()["model"], where + ".model");
  check_stored_weights(reader, *model);
  return model;
}

namespace {
StoredRun stored_in(const fs::path& checkpoint) {
  return {.state = naming_other_checkpoints(checkpoint, CheckpointUse::resume,
                                            [&] { return checkpoint::load_manifest(checkpoint).state; }),
          .where = checkpoint.string()};
}
}  // namespace

settings::TrainConfig with_stored_ranks(const settings::TrainConfig& command) {
  // With other backends, the launcher or the plan determines the number of ranks.
  if (command.given.contains("backend") && command.backend == settings::Backend::local) return command;
  const auto path = checkpoint_to_resume(command);
  const StoredRun run = path ? stored_in(*path) : stored_before_first_checkpoint(command);
  if (!run.state.is_object() || !run.state.contains("config")) return command;
  const settings::TrainConfig stored =
      settings::merge_stored(command, run.state["config"], run.where, path.has_value()).config;
  settings::TrainConfig known = command;
  known.mesh = stored.mesh, known.backend = stored.backend;
  return known;
}

void check_name(const checkpoint::CheckpointReader& reader, const fs::path& out) {
  std::error_code ignored;
  if (!fs::equivalent(reader.folder() / "..", RunDirectory(out).checkpoints(), ignored)) return;
  const auto named = checkpoint::step_of_folder(fs::weakly_canonical(reader.folder()).filename().string());
  if (named && *named != reader.step())
    throw InputError("{}: is of step {}, expected the step in its name: give the folder its original name",
                     reader.folder().string(), reader.step());
}

}  // namespace tessera::hub
