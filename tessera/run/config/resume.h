// --resume: the settings of a stored run under a new command line.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

struct MergedConfig {
  TrainConfig config;                // not resolved yet
  std::vector<std::string> changes;  // what differs from the stored run, one line each: "--gtp: 2 -> 3"
  bool keeps_mesh = false;           // the mesh is the stored one
  std::string stored_mesh;           // mesh_text of the stored run; empty: it names no ranks
};

// `command`: what parse_train_flags gave, nothing resolved. `stored`: to_json of the resolved settings of the run that
// wrote the checkpoint. By setting (Setting::on_resume):
//   what is computed and how (rate schedule, optimizer, model, data, steps, backend, zero, recompute, save_every ...)
//     keeps the stored value unless the command line gives it;
//   the mesh (ranks, tp, gtp, dp) keeps all stored values, unless the command line gives one of them: then it is the
//     command line's, defaults included;
//   what belongs to one call (threads, budgets, keep, trace_step, timeout_s, out ...) is the command line's, defaults
//     included;
//   dtype, seed, seq_len and global_batch keep the stored value: another one is an InputError, since the weights or the
//     order of samples would no longer be those of one run.
// A stored schedule_steps of 0 (a run of --steps 0) follows the new --steps. A kept value without meaning under the new
// settings (ranks_per_node of a run that is no longer hierarchical) becomes the default. has_trained: false for a run
// that ended before its first checkpoint: the command line may change every setting then. InputError, naming `where`,
// when `stored` is no such object.
MergedConfig merge_stored(const TrainConfig& command, const nlohmann::json& stored, const std::string& where,
                          bool has_trained = true);

// "mesh of the checkpoint: 4 ranks (tp 2 x gtp 2 x dp 1)", or the command line's beside the checkpoint's. `config`:
// with its ranks resolved.
std::string mesh_note(const MergedConfig& merged, const TrainConfig& config);

// InputErrors that name what differs: the stored run's model and data must be today's, whatever path they have.
// The fingerprints are TrainingData::fingerprint() (data.h).
void require_same_model(const nlohmann::json& stored, const models::ModelConfig& model, const std::string& where);
void require_same_data(const nlohmann::json& stored, const nlohmann::json& fingerprint, const std::string& where);

}  // namespace tessera::run
