#include "tessera/plan/search/plan_flags.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"
#include "tessera/schedule/events_json.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve/expert_checks.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::plan {
namespace {

void apply(settings::TrainConfig& config, const PlanCommandFlags& flags) {
  for (const auto& [name, words] : flags.settings)
    if (!words.empty() && !flags.measured.empty())
      throw InputError("{}: got {} with --measured, which takes the value from the run", settings::flag_of(name),
                       words.front());
  settings::set_from_words(config, flags.settings);
}

// Reads the events. Throws InputError unless their parameters are those of the model.
schedule::Trace load_events(const PlanCommandFlags& flags, const StepPlanRequest& request) {
  schedule::NamedTrace named = schedule::load_trace(flags.events);
  const std::string& model = request.run->model;
  const std::vector<shard::ParameterSpec> specs = predict::dry_step(settings::dry_options(request.run, {})).parameters;
  if (named.names.size() != specs.size())
    throw InputError("{}: holds {} parameters, expected the {} of model '{}'", flags.events, named.names.size(),
                     specs.size(), model);
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (named.names[i] != specs[i].name)
      throw InputError("{}: parameter {} is '{}', expected '{}' of model '{}'", flags.events, i, named.names[i],
                       specs[i].name, model);
  if (named.trace.empty()) throw InputError("{}: holds no event, expected a step", flags.events);
  return std::move(named.trace);
}

// Returns the run with the number of microbatches of the events. Without --global-batch, the global batch is computed
// from this number.
settings::ResolvedRun with_batch_of(const schedule::Trace& trace, const std::string& events,
                                    const settings::ResolvedRun& run) {
  int last = 0;
  for (const schedule::Event& event : trace) last = std::max(last, event.microbatch);
  const settings::ResolvedRun read = run.with_microbatches(last + 1);
  if (run->given.contains("global_batch") && run->global_batch != read->global_batch)
    throw InputError("--global-batch: is {}, expected {}: {} holds {} microbatches of {} sequences", run->global_batch,
                     read->global_batch, events, last + 1, read->global_batch / (last + 1));
  return read;
}

// Sets the budgets to the arenas that the run chose from its measured times.
void keep_arenas(const MeasuredRun& run, StepPlanRequest& request) {
  if (!request.gather_budget) request.gather_budget = run.gather_arena_bytes;
  if (!request.reduce_budget && run.reduce_arena_bytes && run.scratch_bytes)
    request.reduce_budget = *run.reduce_arena_bytes + *run.scratch_bytes;
}

double checked_load(std::optional<double> load, const settings::ResolvedRun& run) {
  if (!load) return 1;
  const std::int64_t experts = run.model()->sizes().num_experts;
  if (experts == 0) throw InputError("--expert-load: got {}, but model '{}' has no experts", *load, run->model);
  if (!(*load >= 1 && *load <= static_cast<double>(experts)))
    throw InputError("--expert-load: got {}, expected 1 to {}, the experts of model '{}'", *load, experts, run->model);
  return *load;
}

// Returns the model with another number of layers. Throws InputError if the result is not a valid model.
models::ModelConfigPtr with_layers(const PlanCommandFlags& flags, const models::ModelConfig& model) {
  if (!flags.measured.empty())
    throw InputError("--layers: got {} with --measured, which takes the model from the run", *flags.layers);
  nlohmann::json config = model.to_json();
  config["num_hidden_layers"] = *flags.layers;
  return models::parse_model_config(config, fmt::format("--layers {}", *flags.layers));
}

// Returns whether the command chooses the mesh: it has several ranks and no degree.
bool proposes_mesh(const PlanCommandFlags& flags, const settings::TrainConfig& config) {
  if (!flags.measured.empty() || !flags.events.empty() || config.mesh.ranks < 2) return false;
  return std::ranges::none_of(std::array{"tp", "gtp", "dp", "etp", "ep", "egtp"},
                              [&](const char* degree) { return config.given.contains(degree); });
}

// Returns the settings for search_meshes. If `is_proposal` is true, the global batch may be absent. In this case the
// global batch is one microbatch for each rank.
settings::TrainConfig searched(settings::TrainConfig config, bool is_proposal) {
  const auto require = [&](const char* name) {
    if (!config.given.contains(name)) throw InputError("{} is missing: --search needs it", settings::flag_of(name));
  };
  require("ranks");
  if (!is_proposal) require("global_batch");
  if (!config.given.contains("global_batch")) config.global_batch = config.micro_batch * config.mesh.ranks;
  config.given.insert("global_batch");
  return config;
}

// Returns the run of a search before its mesh is known, on the degrees that the user asked for. Checks all settings
// that do not depend on the mesh.
settings::ResolvedRun run_without_mesh(const settings::TrainConfig& asked, const models::ModelConfigPtr& model) {
  settings::tp_chunks_of(asked);  // refuses a bad value
  nn::MeshDegrees degrees = settings::degrees_in(asked.mesh);
  degrees.dp = static_cast<int>(std::max<std::int64_t>(1, asked.mesh.ranks / asked.mesh.replica_places()));
  return settings::resolve(settings::alone(asked), model, settings::Use::plan).on(degrees);
}

void check_search(const PlanCommandFlags& flags) {
  for (const auto& [flag, is_given] : {std::pair{"--measured", !flags.measured.empty()},
                                       {"--events", !flags.events.empty()},
                                       {"--evaluate", flags.evaluate}})
    if (flags.search && is_given) throw InputError("{}: got it with --search, expected one of them", flag);
}

}  // namespace

namespace {

// Throws InputError for flags that do not apply to a mesh with unused places.
void check_places(const PlanCommandFlags& flags, const settings::TrainConfig& config) {
  std::string_view given = "--dead-share";
  if (!flags.dead_share) given = !config.mesh.unused.dead.empty() ? "--dead" : "--idle";
  for (const auto& [flag, is_given] : {std::pair{"--search", flags.search},
                                       {"--evaluate", flags.evaluate},
                                       {"--events", !flags.events.empty()},
                                       {"--measured", flags.dead_share && !flags.measured.empty()}})
    if (is_given) throw InputError("{}: got it with {}, expected one of them", flag, given);
}

// Throws InputError unless the share is at least 0 and below 1.
double checked_share(double share, const char* flag, double example) {
  if (!(share >= 0 && share < 1))
    throw InputError("{}: got {}, expected 0 or more and below 1, such as {}", flag, share, example);
  return share;
}

DeadDraws checked_draws(const PlanCommandFlags& flags, const settings::MeshSettings& mesh) {
  const settings::UnusedPlaces& unused = mesh.unused;
  if (mesh.has_unused_places() || !unused.reduced_batch.empty())
    throw InputError("--dead-share: got {} with {}, expected one of them", *flags.dead_share,
                     !unused.dead.empty()        ? "--dead"
                     : !unused.idle.empty()      ? "--idle"
                     : !unused.tp_spares.empty() ? "--tp-spares"
                                                 : "--reduced-batch");
  const DeadDraws draws{.share = checked_share(*flags.dead_share, "--dead-share", 0.001),
                        .seeds = flags.dead_seeds.value_or(DeadDraws().seeds)};
  if (draws.seeds < 1 || draws.seeds > 1000) throw InputError("--dead-seeds: got {}, expected 1 to 1000", draws.seeds);
  return draws;
}

}  // namespace

namespace {

// The settings and the model of a plan.
struct PlanSource {
  settings::TrainConfig config;
  models::ModelConfigPtr model;
  std::optional<MeasuredRun> run;
  std::vector<std::string> warnings;
};

PlanSource read_source(const PlanCommandFlags& flags, const std::filesystem::path& configs) {
  PlanSource source;
  apply(source.config, flags);
  check_search(flags);
  if (flags.evaluate && !(flags.measured.empty() && flags.events.empty()))
    throw InputError("--evaluate: got it with {}, which determines the kind of step",
                     flags.events.empty() ? "--measured" : "--events");
  if (!flags.measured.empty() && !flags.events.empty())
    throw InputError("--events: got {} with --measured, expected one of them", flags.events);
  if (!flags.measured.empty()) {
    source.run = read_measured_run(flags.measured);
    source.config = source.run->config;
    source.model = source.run->model;
  } else {
    if (source.config.model.empty())
      throw InputError("--model is missing: expected a name under configs/ or a config.json");
    const std::filesystem::path file = models::find_model_config(source.config.model, configs);
    source.model = models::read_model_config(file);
    source.warnings = models::model_config_warnings(file);
  }
  if (flags.layers) source.model = with_layers(flags, *source.model);
  return source;
}

}  // namespace

PlanCommandInputs plan_command_inputs(const PlanCommandFlags& flags, const std::filesystem::path& configs) {
  PlanSource source = read_source(flags, configs);
  const settings::TrainConfig& config = source.config;
  if (flags.dead_seeds && !flags.dead_share)
    throw InputError("--dead-seeds: got {} without --dead-share", *flags.dead_seeds);
  std::optional<DeadDraws> draws;
  if (flags.dead_share) draws = checked_draws(flags, config.mesh);
  if (draws && source.model->sizes().num_experts > 0)
    throw InputError("--dead-share: model '{}' has experts, which need a whole mesh in this version", config.model);
  const bool has_unused = config.mesh.has_unused_places();
  if (draws || has_unused) check_places(flags, config);
  const bool propose = flags.may_propose && !flags.search && !draws && !has_unused && proposes_mesh(flags, config);
  const bool has_given_batch = config.given.contains("global_batch") || !flags.events.empty();
  std::optional<settings::TrainConfig> asked;
  if (flags.search || propose) asked = searched(config, propose);
  PlanCommandInputs task{.request = {.run = asked ? run_without_mesh(*asked, source.model)
                                                  : settings::resolve(config, source.model, flags.use)},
                         .run = std::move(source.run),
                         .search = std::move(asked),
                         .has_unused = has_unused,
                         .draws = draws,
                         .propose = propose,
                         .warnings = std::move(source.warnings)};
  StepPlanRequest& request = task.request;
  request.has_given_batch = has_given_batch;
  request.expert_load = checked_load(flags.expert_load, request.run);
  if (flags.memory_margin) request.memory_margin = checked_share(*flags.memory_margin, "--memory-margin", 0.03);
  request.machine = predict::find_machine(flags.machine, configs / "machines");
  if (request.machine.has_gpus()) settings::check_device_experts(request.run->model, request.run.model()->sizes());
  request.kind = flags.evaluate ? schedule::StepKind::evaluate : schedule::StepKind::train;
  if (task.run && !task.has_unused) keep_arenas(*task.run, request);
  if (flags.events.empty()) return task;
  request.trace = load_events(flags, request);
  request.kind = request.trace->front().step;
  request.run = with_batch_of(*request.trace, flags.events, request.run);
  return task;
}

}  // namespace tessera::plan
