// What --resume takes from a checkpoint before a run is planned: which checkpoint, on which backend, how many ranks.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/checkpoint/reader.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

// The checkpoint that --resume means; none without --resume, or for `latest` where there is none yet. Errors
// (InputError): --init beside --resume; it is not there; `latest` where a resumed run has set all checkpoints aside.
std::optional<std::filesystem::path> checkpoint_to_resume(const TrainConfig& command);

// Opens a checkpoint and compares this process's share, `part` of `parts`, of the checksums. Errors name the checkpoint
// before it.
checkpoint::CheckpointReader open_checkpoint(const std::filesystem::path& folder, std::int64_t part,
                                             std::int64_t parts);

// What a run has stored of itself, and where.
struct StoredRun {
  nlohmann::json state = nlohmann::json::object();  // run_setup.h, stored_state
  std::string where;
};

// Returns what config.json says of the run that `--resume latest` means, which ended before its first checkpoint. An
// empty state without --resume, and where there is no such file. Errors (InputError): neither a run nor the flags of
// one.
StoredRun stored_before_first_checkpoint(const TrainConfig& command);

// The state that a run stored, an object; an empty one where the checkpoint has none (null). Errors (InputError): a
// state of another type; a step beyond those that --steps can ask for; faults that train::check_state finds.
nlohmann::json stored_state_of(const checkpoint::CheckpointReader& reader);

// The command with the backend and the mesh of the run that it resumes, where it leaves them open: what must be known
// before there are ranks. Reads no more than the manifest.
TrainConfig with_stored_ranks(const TrainConfig& command);

// Errors (InputError): the checkpoint lies among those of `out` and its name says another step than its manifest. There
// names decide which checkpoints are newer.
void check_name(const checkpoint::CheckpointReader& reader, const std::filesystem::path& out);

}  // namespace tessera::run
