#include "tessera/run/run_plan.h"

#include "tessera/base/error.h"
#include "tessera/base/version.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/registry.h"
#include "tessera/run/config/resolve.h"
#include "tessera/run/config/resume.h"
#include "tessera/run/config/settings.h"
#include "tessera/run/plan/step_plan.h"
#include "tessera/run/recompute_choice.h"

namespace tessera::run {
namespace {

using nlohmann::json;

// The checkpoint that --resume means; none for `latest` where there is none yet.
std::optional<std::filesystem::path> checkpoint_of(const TrainConfig& command, std::vector<std::string>& notes) {
  if (command.resume.empty()) return std::nullopt;
  if (command.resume != "latest") return checkpoint::resolve_checkpoint(command.resume);
  if (command.out.empty()) throw InputError("--out is missing: --resume latest looks for checkpoints there");
  const auto latest = checkpoint::latest_checkpoint(std::filesystem::path(command.out) / "checkpoints");
  if (latest) return latest->path;
  notes.push_back(fmt::format("--resume latest: no checkpoint in {}, starting at step 0", command.out));
  return std::nullopt;
}

std::shared_ptr<const data::TrainingData> open_data(const TrainConfig& config, const models::ModelConfig& model,
                                                    bool held_out, const RunPlaces& places) {
  const std::string flag = held_out ? "--valid" : "--data";
  auto data =
      std::make_shared<data::TrainingData>(data::TrainingDataOptions{.blend = held_out ? config.valid : config.data,
                                                                     .flag = flag,
                                                                     .seq_len = config.seq_len,
                                                                     .vocab_size = model.sizes().vocab_size,
                                                                     .seed = config.seed,
                                                                     .mask_documents = config.mask_documents});
  data->check_vocabulary(places.part, places.parts);
  return data;
}

void check_stored(const RunPlan& plan, const json& state, const std::string& where) {
  if (state.contains("model")) require_same_model(state["model"], *plan.model, where);
  if (state.contains("data")) require_same_data(state["data"], plan.data->fingerprint(), where);
  if (plan.config.steps < plan.first_step - 1)
    throw InputError("--steps: got {}, expected at least {}: the checkpoint {} is of that step", plan.config.steps,
                     plan.first_step - 1, where);
  if (plan.config.trace_step > 0 && plan.config.trace_step < plan.first_step)
    throw InputError("--trace-step: got {}, expected at least {}: the run goes on from {}", plan.config.trace_step,
                     plan.first_step, where);
}

}  // namespace

RunPlan plan_run(const TrainConfig& command, const RunPlaces& places) {
  RunPlan plan{.config = command};
  plan.checkpoint = checkpoint_of(command, plan.notes);
  json state;
  std::string where;
  if (plan.checkpoint) {
    const checkpoint::CheckpointReader reader(*plan.checkpoint);
    reader.verify(static_cast<int>(places.part), static_cast<int>(places.parts));
    where = plan.checkpoint->string();
    state = reader.state();
    plan.first_step = reader.step() + 1;
    if (state.contains("config")) {
      MergedConfig merged = merge_stored(command, state["config"], where);
      plan.config = std::move(merged.config);
      for (const std::string& change : merged.changes) plan.notes.push_back("changed on resume: " + change);
    }
  }
  plan.config = resolve_ranks(resolve_settings(plan.config), places.world_size);
  plan.model = models::read_model_config(models::find_model_config(plan.config.model, places.configs));
  plan.config = resolve_model(plan.config, *plan.model);
  check_budgets(plan.config, plan.model);
  if (plan.config.recompute == Recompute::automatic)
    plan.notes.push_back("computed again: " + recompute_text(recompute_choice(plan.config, *plan.model)));
  plan.data = open_data(plan.config, *plan.model, false, places);
  if (!plan.config.valid.empty()) plan.valid = open_data(plan.config, *plan.model, true, places);
  if (plan.checkpoint) check_stored(plan, state, where);
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
