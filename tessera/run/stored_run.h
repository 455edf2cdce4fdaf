// The stored parts of a run that --resume and other commands read first: the checkpoint, the model, the backend and the
// number of ranks.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/checkpoint/reader.h"
#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

// Returns the checkpoint that --resume names. Returns nullopt without --resume, and for `latest` if there is no
// checkpoint yet. Throws InputError if --init is given together with --resume, if the checkpoint does not exist, or for
// `latest` if a resumed run has set all checkpoints aside.
std::optional<std::filesystem::path> checkpoint_to_resume(const TrainConfig& command);

// Opens a checkpoint and verifies part `part` of `parts` of its checksums. Error messages also name the previous
// checkpoint.
checkpoint::CheckpointReader open_checkpoint(const std::filesystem::path& folder, std::int64_t part,
                                             std::int64_t parts);

// The stored state of a run, and the file or folder that holds the state.
struct StoredRun {
  nlohmann::json state = nlohmann::json::object();  // the result of stored_state (run_setup.h)
  std::string where;
};

// Returns the content of config.json for `--resume latest` of a run that ended before its first checkpoint. The state
// is empty without --resume, and if the file does not exist. Throws InputError if there is neither a run nor the flags
// of a new run.
StoredRun stored_before_first_checkpoint(const TrainConfig& command);

// Returns the state that a run stored, a JSON object. The object is empty if the checkpoint has no state (null). Throws
// InputError if the state has another type, if the step is above the largest value of --steps, and for faults that
// train::check_state finds.
nlohmann::json stored_state_of(const checkpoint::CheckpointReader& reader);

// Returns the model of a checkpoint. Throws InputError if the checkpoint's state has no valid model.
models::ModelConfigPtr model_of_checkpoint(const checkpoint::CheckpointReader& reader);

// Returns the command with the backend and the mesh of the resumed run, unless the command gives them. Called before
// ranks exist. Reads at most the manifest of a checkpoint.
TrainConfig with_stored_ranks(const TrainConfig& command);

// Throws InputError if the checkpoint is one of the checkpoints of `out` and the step in its name differs from that in
// its manifest. In that folder, names decide which checkpoint is newer.
void check_name(const checkpoint::CheckpointReader& reader, const std::filesystem::path& out);

}  // namespace tessera::run
