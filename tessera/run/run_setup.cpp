#include "tessera/run/run_setup.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/version.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/held_out.h"
#include "tessera/hub/find_checkpoint.h"
#include "tessera/hub/initial_weights.h"
#include "tessera/hub/stored_run.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"
#include "tessera/hub/tokenizer/tokenizer_warnings.h"
#include "tessera/models/registry.h"
#include "tessera/plan/step_plan.h"
#include "tessera/predict/recompute_choice.h"
#include "tessera/settings/resolve.h"
#include "tessera/settings/resume.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/train/trainer_checkpoint.h"

namespace tessera::run {
namespace {

using nlohmann::json;

// Opens the data and checks it. `options` has the blend, its flag, and the members that differ between training data
// and held-out data.
std::shared_ptr<const data::TrainingData> open_data(data::TrainingDataOptions options, const RunSetup& setup,
                                                    const RunPlaces& places) {
  options.seq_len = setup.run->seq_len;
  options.vocab_size = setup.run.model()->sizes().vocab_size;
  options.seed = setup.run->seed;
  options.mask_documents = setup.run->mask_documents;
  auto data = std::make_shared<data::TrainingData>(options);
  data->check_vocabulary(places.part, places.parts);
  data->check_targets();
  return data;
}

// Returns the model that --model names, or else the checkpoint's model, whose original file is not needed.
models::ModelConfigPtr model_of(const settings::TrainConfig& config, const json& state, const std::string& checkpoint,
                                const RunPlaces& places) {
  if (config.given.contains("model") || !state.contains("model"))
    return models::read_model_config(models::find_model_config(config.model, places.configs));
  return models::parse_model_config(state["model"], checkpoint + ": state.model");
}

// Returns the model of the folder of --init. If --model is also given, it must name the same model.
models::ModelConfigPtr model_of_init(const settings::TrainConfig& config, const json& state, const std::string& where,
                                     const RunPlaces& places) {
  models::ModelConfigPtr init_model = hub::read_init_model(config.init);
  if (!config.given.contains("model") && !state.contains("model")) return init_model;
  const std::filesystem::path file = models::find_model_config(config.model, places.configs);
  std::error_code ignored;
  // The config.json of a folder with quantized weights can be read only by --init.
  if (std::filesystem::equivalent(file, std::filesystem::path(config.init) / "config.json", ignored)) return init_model;
  hub::require_model_of_init(*model_of(config, state, where, places), *init_model, config);
  return init_model;
}

// The inputs of a run before its model is read.
struct Start {
  settings::TrainConfig config;
  std::optional<std::filesystem::path> checkpoint = {};     // RunSetup::checkpoint
  std::optional<checkpoint::CheckpointReader> reader = {};  // of the checkpoint
  hub::StoredRun stored = {};
  std::vector<std::string> notes = {};  // RunSetup::notes
};

// Returns the model of a run that starts at step 0. Adds a note if the model's folder holds weights that are not read.
models::ModelConfigPtr model_to_start(Start& start, const RunPlaces& places) {
  const settings::TrainConfig& config = start.config;
  const auto& [state, where] = start.stored;
  if (!config.init.empty()) {
    start.notes.push_back(fmt::format("weights of {} (--init)", config.init));
    return model_of_init(config, state, where, places);
  }
  models::ModelConfigPtr model = model_of(config, state, where, places);
  const std::filesystem::path file = models::find_model_config(config.model, places.configs);
  if (std::string warning = hub::unread_weights_warning(file, config.model); !warning.empty())
    start.notes.push_back(std::move(warning));
  return model;
}

// Returns the config.json from which the model of the run is read, or an empty path if the model is stored in a
// checkpoint.
std::filesystem::path model_file_of(const Start& start, const RunPlaces& places) {
  if (start.checkpoint && !start.config.given.contains("model")) return {};
  if (!start.config.init.empty()) return std::filesystem::path(start.config.init) / "config.json";
  return models::find_model_config(start.config.model, places.configs);
}

// Returns the name of the checkpoint's model. If no run has named the model, makes a name.
std::string name_of_model(const json& state, const std::string& checkpoint) {
  const auto source = state.find("imported_from");
  return source != state.end() && source->is_string() ? source->get<std::string>() : checkpoint;
}

// Throws InputError if the stored type of a weight differs from the run's type, because weights are read without
// conversion.
void check_stored_types(const checkpoint::CheckpointReader& reader, const settings::ResolvedRun& run) {
  const shard::ParameterTypes types = settings::types_of(run);
  for (const shard::ParameterSpec& spec :
       run.model()->parameters({.tp_size = run.degrees().tp, .embedding = run.embedding_reads()})) {
    const checkpoint::StoredTensor* stored = reader.find(spec.name, checkpoint::Kind::weight);
    const quant::DType requested = shard::types_of(spec, types).model;
    if (stored != nullptr && stored->dtype != requested)
      throw InputError(
          "--dtype: got {}, expected {}: weight '{}' of {} is stored in this type (tessera convert --dtype converts to "
          "{})",
          name_of(run->dtype), name_of(stored->dtype), spec.name, reader.folder().string(), name_of(run->dtype));
  }
}

void check_stored(const RunSetup& setup, const json& state, const std::string& where) {
  if (state.contains("data")) settings::require_same_data(state["data"], setup.data->fingerprint(), where);
  if (setup.run->steps < setup.first_step - 1)
    throw InputError("--steps: got {}, expected at least {}, the step of checkpoint {}", setup.run->steps,
                     setup.first_step - 1, where);
  if (setup.run->trace_step > 0 && setup.run->trace_step < setup.first_step)
    throw InputError("--trace-step: got {}, expected at least {}: the run resumes from {}", setup.run->trace_step,
                     setup.first_step, where);
}

// Returns the folder of the tokenizer that was stored with the weights with which the run starts.
std::filesystem::path tokenizer_of_weights(const RunSetup& setup) {
  std::filesystem::path folder;
  if (setup.checkpoint) folder = hub::tokenizer_of(*setup.checkpoint);
  if (folder.empty() && !setup.run->init.empty()) folder = hub::tokenizer_of(setup.run->init);
  return folder;
}

// Chooses the tokenizer to copy to the run, and the begin tokens. Stored weights need the tokenizer that was stored
// with them. Random weights use the tokenizer of the data. `state` is that of the checkpoint. Only the process that
// checks the first part adds warnings.
void add_tokenizer(RunSetup& setup, const json& state, const std::string& where, const RunPlaces& places) {
  const hub::BeginIds stored = hub::begin_ids_in(state, where), read = hub::begin_ids_of_data(setup.run->data);
  const std::filesystem::path of_weights = tokenizer_of_weights(setup);
  setup.begin_ids = read ? read : stored;
  setup.tokenizer = of_weights.empty() ? hub::tokenizer_of_data(setup.run->data) : of_weights;
  if (places.part > 0) return;
  std::vector<hub::FlagData> data{{.flag = "--data", .blend = setup.run->data}};
  for (const data::HeldOutSet& set : data::parse_held_out(setup.run->valid, "--valid"))
    data.push_back({.flag = "--valid", .blend = set.blend});
  const hub::ReadingModel model{.name = setup.run->model,
                                .vocab_size = setup.run.model()->sizes().vocab_size,
                                .tokenizer = of_weights,
                                .begin = stored};
  for (const std::string& warning : hub::tokenizer_warnings(data, model)) setup.notes.push_back("warning: " + warning);
}

// Throws InputError unless the launcher started as many ranks as the kept mesh has.
void check_kept_mesh(const settings::TrainConfig& kept, const RunPlaces& places, const std::string& where) {
  if (!places.world_size || kept.mesh.ranks == *places.world_size) return;
  throw InputError("--resume: {}, expected the mesh of {}: {}{} (choose another mesh with --tp, --gtp or --dp)",
                   settings::started_text(*places.world_size), where, settings::mesh_text(kept.mesh),
                   settings::start_text(kept.backend, kept.mesh.ranks));
}

hub::StoredRun stored_in(const checkpoint::CheckpointReader& reader, const std::filesystem::path& checkpoint) {
  return {.state = hub::naming_other_checkpoints(checkpoint, hub::CheckpointUse::resume,
                                                 [&] { return hub::stored_state_of(reader); }),
          .where = checkpoint.string()};
}

Start start_of(const settings::TrainConfig& command, const RunPlaces& places) {
  Start start{.config = command, .checkpoint = hub::checkpoint_to_resume(command)};
  if (!command.resume.empty() && !start.checkpoint)
    start.notes.push_back(fmt::format("--resume latest: no checkpoint in {}, starting at step 0", command.out));
  if (start.checkpoint) {
    start.reader.emplace(
        hub::open_checkpoint(*start.checkpoint, hub::CheckpointUse::resume, places.part, places.parts));
    hub::check_name(*start.reader, command.out);
  }
  start.stored =
      start.reader ? stored_in(*start.reader, *start.checkpoint) : hub::stored_before_first_checkpoint(command);
  return start;
}

// Returns the run before its data is opened.
RunSetup resolved_setup(Start& start, const RunPlaces& places) {
  const auto& [state, where] = start.stored;
  settings::TrainConfig& config = start.config;
  settings::MergedConfig merged;
  if (state.contains("config")) {
    merged = settings::merge_stored(config, state["config"], where, start.reader.has_value());
    config = merged.config;
    if (merged.keeps_mesh) check_kept_mesh(config, places, where);
    for (const std::string& change : merged.changes) start.notes.push_back("changed on resume: " + change);
    if (!merged.note.empty()) start.notes.push_back(merged.note);
  }
  if (config.model.empty() && state.contains("model")) config.model = name_of_model(state, where);
  if (config.model.empty()) config.model = config.init;
  settings::check(config);
  const settings::RunMesh mesh = settings::resolve_mesh(config, settings::Use::train, places.world_size);
  if (start.reader || state.contains("config")) start.notes.push_back(settings::mesh_note(merged, mesh));
  models::ModelConfigPtr model = start.reader ? model_of(config, state, where, places) : model_to_start(start, places);
  for (const std::string& warning : models::model_config_warnings(model_file_of(start, places)))
    start.notes.push_back("warning: " + warning);
  if (start.reader && state.contains("model")) settings::require_same_model(state["model"], *model, where);
  if (start.reader) hub::check_stored_weights(*start.reader, *model);
  RunSetup setup{.run = settings::resolve(config, std::move(model), settings::Use::train, places.world_size),
                 .checkpoint = start.checkpoint,
                 .first_step = start.reader ? start.reader->step() + 1 : 1,
                 .evaluation_due = start.reader && state.is_object() && state.value(kEvaluationDue, json()) == true,
                 .notes = start.notes};
  plan::check_budgets(setup.run);
  if (setup.run->recompute == settings::RecomputeSetting::automatic)
    setup.notes.push_back("recomputed: " + predict::recompute_text(settings::recompute_choice(setup.run)));
  return setup;
}

}  // namespace

RunSetup make_run_setup(const settings::TrainConfig& command, const RunPlaces& places) {
  Start start = start_of(command, places);
  const auto& [state, where] = start.stored;
  RunSetup setup = resolved_setup(start, places);
  setup.data = open_data({.blend = setup.run->data, .stored = start.reader ? state.value("data", json()) : json()},
                         setup, places);
  for (const data::HeldOutSet& set : data::parse_held_out(setup.run->valid, "--valid"))
    setup.valid.push_back(
        {.name = set.name,
         .data = open_data({.blend = set.blend, .flag = "--valid", .uses_weights = false}, setup, places)});
  if (start.reader) check_stored(setup, state, where);
  if (start.reader) {
    check_stored_types(*start.reader, setup.run);
    for (const std::string& note : train::notes_of_state(*start.reader, *setup.run.update()))
      setup.notes.push_back(note);
  }
  if (const std::string note = setup.data->note(); !note.empty()) setup.notes.push_back(note);
  for (const std::string& warning : settings::warnings_of(setup.run.stored())) setup.notes.push_back(warning);
  add_tokenizer(setup, state, where, places);
  return setup;
}

json stored_state(const RunSetup& setup) {
  json state = {{"config", to_json(setup.run.stored())},
                {"model", setup.run.model()->to_json()},
                {"data", setup.data->fingerprint()},
                {"version", std::string(base::kVersion)}};
  if (setup.begin_ids) state[hub::kBeginIds] = *setup.begin_ids;
  return state;
}

json equal_on_all_ranks(const RunSetup& setup) {
  constexpr std::array<std::string_view, 7> kMayDiffer = {"model",  "init", "data",      "valid",
                                                          "resume", "out",  "peak_flops"};
  json all = json::object();
  for (const settings::Setting& setting : settings::settings())
    if (std::ranges::find(kMayDiffer, setting.name) == kMayDiffer.end())
      all[settings::flag_of(setting.name)] = settings::value_of(setup.run.stored(), setting);
  all["the model"] = setup.run.model()->to_json();
  all["the data"] = setup.data->fingerprint();
  for (const HeldOut& set : setup.valid)
    all["the held-out data" + (set.name.empty() ? "" : " " + set.name)] = set.data->fingerprint();
  all["the first step"] = setup.first_step;
  all["the first weights"] = setup.checkpoint ? "of a checkpoint" : setup.run->init.empty() ? "random" : "of --init";
  return all;
}

}  // namespace tessera::run
