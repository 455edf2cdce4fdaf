// Merges the settings of a stored run with a new command line, for --resume.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"
#include "tessera/settings/run_mesh.h"

namespace tessera::settings {

struct MergedConfig {
  TrainConfig config;                // not resolved yet
  std::vector<std::string> changes;  // differences from the stored run, one line each: "--gtp: 2 -> 3"
  std::string note;                  // a line about settings that the stored run lacks; may be empty
  bool keeps_mesh = false;           // whether the mesh, with its unused places, equals the stored mesh
  std::string stored_mesh;           // mesh_text of the stored run; empty if the run did not store its ranks
  bool has_trained = true;  // whether the settings are those of a checkpoint; false: of a run without checkpoints
};

// Sets the settings that runs of earlier versions did not store. Such a run with nvfp4 products did not transform
// operands and rounded gradients to nearest. `stored` is the result of apply_json. Returns whether `stored` changed.
bool complete_earlier_run(TrainConfig& stored);

// Merges the settings of a stored run with a new command line. `command`: the result of parse_train_flags, not
// resolved. `stored`: to_json of the resolved settings of the run that wrote the checkpoint. Setting::on_resume
// determines the value of each setting:
//   kept          The value of the command line if it sets the setting, otherwise the stored value. Examples: rate
//                 schedule, optimizer, model, data, steps, backend, zero, recompute, save_every.
//   mesh          If the command line sets a setting of the mesh (ranks, tp, gtp, dp, etp, ep, egtp), all values of the
//                 command line, including defaults. Otherwise all stored values. If the command line only changes the
//                 unused places, ranks is not stored: it follows from the mesh and the places.
//   places        (dead, idle, tp_spares, reduced_batch) Like mesh if the command line sets a setting of the mesh.
//                 Otherwise like kept.
//   command_line  The value of the command line, including defaults. Examples: threads, budgets, keep, trace_step,
//                 timeout_s, out.
//   fixed         The stored value (dtype, seed, seq_len, global_batch). Another value on the command line is an
//                 InputError, because the weights or the order of samples would change within a run.
// If the stored schedule_steps is 0 (a run of --steps 0), the new --steps replaces it. A kept value that the new
// settings do not use becomes the default. An example is ranks_per_node after --reduce-order changes to sequential.
// `has_trained` is false for a run that ended before its first checkpoint; then the command line may change every
// setting. Throws InputError, which names `where`, if `stored` is not an object of settings.
MergedConfig merge_stored(const TrainConfig& command, const nlohmann::json& stored, const std::string& where,
                          bool has_trained = true);

// Returns a text like "mesh of the checkpoint: 4 ranks (tp 2 x gtp 2 x dp 1)". If the meshes differ, the text contains
// the command line's mesh and the checkpoint's mesh.
std::string mesh_note(const MergedConfig& merged, const RunMesh& mesh);

// Throw InputError, which names the difference, if the model or the data differ from those of the stored run. Paths may
// differ. `fingerprint` is a result of TrainingData::fingerprint() (data.h).
void require_same_model(const nlohmann::json& stored, const models::ModelConfig& model, const std::string& where);
void require_same_data(const nlohmann::json& stored, const nlohmann::json& fingerprint, const std::string& where);

}  // namespace tessera::settings
