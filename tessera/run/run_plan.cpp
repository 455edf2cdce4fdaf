#include "tessera/run/run_plan.h"

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/version.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/registry.h"
#include "tessera/run/config/resolve.h"
#include "tessera/run/config/resume.h"
#include "tessera/run/config/settings.h"
#include "tessera/run/find_checkpoint.h"
#include "tessera/run/initial_weights.h"
#include "tessera/run/plan/step_plan.h"
#include "tessera/run/recompute_choice.h"
#include "tessera/run/stored_run.h"

namespace tessera::run {
namespace {

using nlohmann::json;

// `stored`: state.data of the checkpoint; null without a checkpoint.
std::shared_ptr<const data::TrainingData> open_data(const TrainConfig& config, const models::ModelConfig& model,
                                                    const json& stored, const RunPlaces& places) {
  auto data = std::make_shared<data::TrainingData>(data::TrainingDataOptions{.blend = config.data,
                                                                             .seq_len = config.seq_len,
                                                                             .vocab_size = model.sizes().vocab_size,
                                                                             .seed = config.seed,
                                                                             .mask_documents = config.mask_documents,
                                                                             .stored = stored});
  data->check_vocabulary(places.part, places.parts);
  return data;
}

std::shared_ptr<const data::TrainingData> open_valid(const TrainConfig& config, const models::ModelConfig& model,
                                                     const RunPlaces& places) {
  auto data = std::make_shared<data::TrainingData>(data::TrainingDataOptions{.blend = config.valid,
                                                                             .flag = "--valid",
                                                                             .seq_len = config.seq_len,
                                                                             .vocab_size = model.sizes().vocab_size,
                                                                             .seed = config.seed,
                                                                             .mask_documents = config.mask_documents,
                                                                             .takes_turns = false});
  data->check_vocabulary(places.part, places.parts);
  return data;
}

// Returns the model that --model names, or else the checkpoint's model, whose original file is not needed.
models::ModelConfigPtr model_of(const TrainConfig& config, const json& state, const std::string& checkpoint,
                                const RunPlaces& places) {
  if (config.given.contains("model") || !state.contains("model"))
    return models::read_model_config(models::find_model_config(config.model, places.configs));
  return models::parse_model_config(state["model"], checkpoint + ": state.model");
}

// Returns the model of the --init weights. If --model is given too, both models must be the same.
models::ModelConfigPtr model_of_init(const TrainConfig& config, const json& state, const std::string& where,
                                     const RunPlaces& places) {
  models::ModelConfigPtr of_init = read_init_model(config.init);
  if (!config.given.contains("model") && !state.contains("model")) return of_init;
  const std::filesystem::path file = models::find_model_config(config.model, places.configs);
  std::error_code ignored;
  // The config.json of a folder with quantized weights can be read only by --init.
  if (std::filesystem::equivalent(file, std::filesystem::path(config.init) / "config.json", ignored)) return of_init;
  require_model_of_init(*model_of(config, state, where, places), *of_init, config);
  return of_init;
}

// Returns the model of a run that starts at step 0. Adds a note if the model's folder holds weights that are not read.
models::ModelConfigPtr model_to_start(RunPlan& plan, const json& state, const std::string& where,
                                      const RunPlaces& places) {
  if (!plan.config.init.empty()) {
    plan.notes.push_back(fmt::format("weights of {} (--init)", plan.config.init));
    return model_of_init(plan.config, state, where, places);
  }
  models::ModelConfigPtr model = model_of(plan.config, state, where, places);
  const std::filesystem::path file = models::find_model_config(plan.config.model, places.configs);
  if (std::string warning = unread_weights_warning(file, plan.config.model); !warning.empty())
    plan.notes.push_back(std::move(warning));
  return model;
}

// Returns a name for the checkpoint's model if no run has named it.
std::string name_of_model(const json& state, const std::string& checkpoint) {
  const auto source = state.find("imported_from");
  return source != state.end() && source->is_string() ? source->get<std::string>() : checkpoint;
}

// Throws InputError if the stored type of a weight differs from the run's type, because weights are read without
// conversion.
void check_stored_types(const checkpoint::CheckpointReader& reader, const TrainConfig& config,
                        const models::ModelConfig& model) {
  const shard::ParameterTypes run{.model = config.dtype, .accumulator = quant::accumulator_of(config.dtype)};
  for (const shard::ParameterSpec& spec :
       model.parameters({.tp_size = static_cast<int>(config.tp), .embedding = embedding_reads(config)})) {
    const checkpoint::StoredTensor* stored = reader.find(spec.name, checkpoint::Kind::weight);
    const quant::DType asked = shard::types_of(spec, run).model;
    if (stored != nullptr && stored->dtype != asked)
      throw InputError(
          "--dtype: got {}, expected {}: weight '{}' of {} is stored in this type (tessera convert --dtype converts to "
          "{})",
          name_of(config.dtype), name_of(stored->dtype), spec.name, reader.folder().string(), name_of(config.dtype));
  }
}

void check_stored(const RunPlan& plan, const json& state, const std::string& where) {
  if (state.contains("model")) require_same_model(state["model"], *plan.model, where);
  if (state.contains("data")) require_same_data(state["data"], plan.data->fingerprint(), where);
  if (plan.config.steps < plan.first_step - 1)
    throw InputError("--steps: got {}, expected at least {}, the step of checkpoint {}", plan.config.steps,
                     plan.first_step - 1, where);
  if (plan.config.trace_step > 0 && plan.config.trace_step < plan.first_step)
    throw InputError("--trace-step: got {}, expected at least {}: the run resumes from {}", plan.config.trace_step,
                     plan.first_step, where);
}

// Throws InputError unless the launcher started as many ranks as the kept mesh has.
void check_kept_mesh(const TrainConfig& kept, const RunPlaces& places, const std::string& where) {
  if (!places.world_size || kept.ranks == *places.world_size) return;
  throw InputError(
      "--resume: the launcher started {} ranks, expected the mesh of {}, {} (choose another mesh with --tp, --gtp or "
      "--dp)",
      *places.world_size, where, mesh_text(kept));
}

}  // namespace

RunPlan plan_run(const TrainConfig& command, const RunPlaces& places) {
  RunPlan plan{.config = command};
  plan.checkpoint = checkpoint_to_resume(command);
  if (!command.resume.empty() && !plan.checkpoint)
    plan.notes.push_back(fmt::format("--resume latest: no checkpoint in {}, starting at step 0", command.out));
  std::optional<checkpoint::CheckpointReader> reader;
  if (plan.checkpoint) {
    reader.emplace(open_checkpoint(*plan.checkpoint, places.part, places.parts));
    check_name(*reader, command.out);
    plan.first_step = reader->step() + 1;
  }
  const StoredRun stored = reader ? StoredRun{.state = stored_state_of(*reader), .where = plan.checkpoint->string()}
                                  : stored_before_first_checkpoint(command);
  const auto& [state, where] = stored;
  MergedConfig merged;
  if (state.contains("config")) {
    merged = merge_stored(command, state["config"], where, reader.has_value());
    plan.config = merged.config;
    if (merged.keeps_mesh) check_kept_mesh(plan.config, places, where);
    for (const std::string& change : merged.changes) plan.notes.push_back("changed on resume: " + change);
  }
  if (plan.config.model.empty() && state.contains("model")) plan.config.model = name_of_model(state, where);
  if (plan.config.model.empty()) plan.config.model = plan.config.init;
  plan.config = resolve_ranks(resolve_settings(plan.config), places.world_size);
  if (plan.checkpoint || state.contains("config")) plan.notes.push_back(mesh_note(merged, plan.config));
  plan.model =
      plan.checkpoint ? model_of(plan.config, state, where, places) : model_to_start(plan, state, where, places);
  plan.config = resolve_model(plan.config, *plan.model);
  check_budgets(plan.config, plan.model);
  if (plan.config.recompute == Recompute::automatic)
    plan.notes.push_back("recomputed: " + recompute_text(recompute_choice(plan.config, *plan.model)));
  plan.data = open_data(plan.config, *plan.model, reader ? state.value("data", json()) : json(), places);
  if (!plan.config.valid.empty()) plan.valid = open_valid(plan.config, *plan.model, places);
  if (plan.checkpoint) check_stored(plan, state, where);
  if (reader) check_stored_types(*reader, plan.config, *plan.model);
  if (const std::string note = plan.data->note(); !note.empty()) plan.notes.push_back(note);
  for (const std::string& warning : warnings_of(plan.config)) plan.notes.push_back(warning);
  return plan;
}

json stored_state(const RunPlan& plan) {
  return {{"config", to_json(plan.config)},
          {"model", plan.model->to_json()},
          {"data", plan.data->fingerprint()},
          {"version", std::string(base::kVersion)}};
}

}  // namespace tessera::run
