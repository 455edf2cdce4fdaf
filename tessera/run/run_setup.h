// The checked inputs of a run before its first step: the resolved run, its data, and the first step.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/data.h"
#include "tessera/hub/tokenizer/begin_ids.h"
#include "tessera/settings/resolved_run.h"

namespace tessera::run {

// A held-out set of the run.
struct HeldOut {
  std::string name;  // empty: the set without a name
  std::shared_ptr<const data::TrainingData> data;
};

struct RunSetup {
  settings::ResolvedRun run;
  std::shared_ptr<const data::TrainingData> data = {};
  std::vector<HeldOut> valid = {};                       // may be empty
  std::optional<std::filesystem::path> checkpoint = {};  // checkpoint to start from
  std::int64_t first_step = 1;                           // the next step to train
  bool evaluation_due = false;  // whether a stop request dropped the evaluation after the step of the checkpoint
  std::filesystem::path tokenizer = {};  // folder of the tokenizer that is copied to the run; empty: unknown
  hub::BeginIds begin_ids = {};          // the begin tokens of the training data
  std::vector<std::string> notes = {};   // lines to print at the start
};

// Inputs that no flag sets.
struct RunPlaces {
  std::filesystem::path configs;           // folder of named models
  std::optional<std::int64_t> world_size;  // ranks that a launcher started; absent for `local`
  std::int64_t part = 0, parts = 1;        // this process checks part `part` of `parts` of all tokens
};

// Reads and checks all inputs without writing a file. `command` is the result of parse_train_flags. Throws InputError.
RunSetup make_run_setup(const settings::TrainConfig& command, const RunPlaces& places);

// The member of a checkpoint's state, true, that sets RunSetup::evaluation_due. Absent otherwise.
inline constexpr const char* kEvaluationDue = "evaluation_due";

// Returns the state that the run stores in its checkpoints and in config.json: settings, model, data, versions.
nlohmann::json stored_state(const RunSetup& setup);

// Returns what must be equal on all ranks, as an object of names and values: the settings by flag, the model, the data
// sets, the first step, and the kind of the first weights. A checkpoint of step 0 and no checkpoint have the same first
// step, but only a checkpoint is loaded by all ranks together. Leaves out paths and the peak rate of the hardware,
// which may differ between hosts.
nlohmann::json equal_on_all_ranks(const RunSetup& setup);

}  // namespace tessera::run
