// Reads the stored parts of a run that --resume and other commands need first: the checkpoint, the model, the backend
// and the number of ranks.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/checkpoint/reader.h"
#include "tessera/hub/find_checkpoint.h"
#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"

namespace tessera::hub {

// Returns the checkpoint that --resume names. Returns nullopt without --resume, and for `--resume latest` if there is
// no checkpoint yet. Throws InputError for: --init and --resume together; a missing checkpoint; `--resume latest` if a
// resumed run has set aside all checkpoints (RunFiles::open).
std::optional<std::filesystem::path> checkpoint_to_resume(const settings::TrainConfig& command);

// Opens a checkpoint. The checksums are divided into `parts` parts, and this call verifies part `part`. Error messages
// also name other checkpoints.
checkpoint::CheckpointReader open_checkpoint(const std::filesystem::path& folder, CheckpointUse use,
                                             std::int64_t part = 0, std::int64_t parts = 1);

// The stored state of a run, and the file or folder that holds the state.
struct StoredRun {
  nlohmann::json state = nlohmann::json::object();  // the result of stored_state (run_setup.h)
  std::string where;
};

// Returns the content of config.json for `--resume latest` if the run ended before its first checkpoint. The state is
// empty without --resume, and if config.json does not exist. Throws InputError if there is neither a run nor the flags
// of a new run.
StoredRun stored_before_first_checkpoint(const settings::TrainConfig& command);

// Returns the state in a checkpoint as a JSON object. The object is empty if the stored state is null. Throws the
// errors of train::check_state, and InputError for: a state of another type; a step above the largest value of --steps.
nlohmann::json stored_state_of(const checkpoint::CheckpointReader& reader);

// Throws InputError unless the checkpoint holds exactly the weights of this model. Called before the model's sizes
// determine an allocation.
void check_stored_weights(const checkpoint::CheckpointReader& reader, const models::ModelConfig& config);

// Returns the model of a checkpoint. Throws InputError if the checkpoint's state has no valid model, and the errors of
// check_stored_weights.
models::ModelConfigPtr model_of_checkpoint(const checkpoint::CheckpointReader& reader);

// Returns the command, with backend and mesh taken from the resumed run if the command does not set them. Called before
// ranks exist. Reads only the manifest of a checkpoint.
settings::TrainConfig with_stored_ranks(const settings::TrainConfig& command);

// Throws InputError if the checkpoint belongs to the run in `out` and the step in its name differs from the step in its
// manifest. The names must be correct, because they determine the latest checkpoint.
void check_name(const checkpoint::CheckpointReader& reader, const std::filesystem::path& out);

}  // namespace tessera::hub
