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
};

// `command`: what parse_train_flags gave, nothing resolved. `stored`: to_json of the resolved settings of the run that
// wrote the checkpoint. By setting (Setting::on_resume):
//   what is computed (rate schedule, optimizer, micro_batch, wire, model, data, steps ...) keeps the stored value
//   unless
//     the command line gives it;
//   where and how (backend, ranks, threads, tp, gtp, dp, recompute, sequence_parallel, saving, out ...) is the command
//     line's, defaults included;
//   dtype, seed, seq_len and global_batch keep the stored value: another one is an InputError, since the weights or the
//     order of samples would no longer be those of one run.
// A stored schedule_steps of 0 (a run of --steps 0) follows the new --steps. InputError, naming `where`, when `stored`
// is no such object. has_trained: false for a run that ended before its first checkpoint: the command line may change
// every setting then.
MergedConfig merge_stored(const TrainConfig& command, const nlohmann::json& stored, const std::string& where,
                          bool has_trained = true);

// InputErrors that name what differs: the stored run's model and data must be today's, whatever path they have.
// The fingerprints are TrainingData::fingerprint() (data.h).
void require_same_model(const nlohmann::json& stored, const models::ModelConfig& model, const std::string& where);
void require_same_data(const nlohmann::json& stored, const nlohmann::json& fingerprint, const std::string& where);

}  // namespace tessera::run
