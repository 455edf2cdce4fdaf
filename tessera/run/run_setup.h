// All that a run needs to know before its first step, checked: settings in force, model, data, where it goes on.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/data.h"
#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

struct RunSetup {
  TrainConfig config;  // resolved
  models::ModelConfigPtr model;
  std::shared_ptr<const data::TrainingData> data, valid;  // valid: null without held-out data
  std::optional<std::filesystem::path> checkpoint;        // to start from
  std::int64_t first_step = 1;                            // the next step to train
  std::vector<std::string> notes;                         // what deserves a line at the start
};

// Where things are that no flag names.
struct RunPlaces {
  std::filesystem::path configs;           // folder of named models
  std::optional<std::int64_t> world_size;  // ranks that a launcher started; absent for `local`
  std::int64_t part = 0, parts = 1;        // this process's share of reading the data through
};

// Reads and checks everything, writes nothing. `command`: what parse_train_flags gave. Errors: InputError.
RunSetup make_run_setup(const TrainConfig& command, const RunPlaces& places);

// What a checkpoint of this run stores as its state, and config.json holds: settings, model, data, versions.
nlohmann::json stored_state(const RunSetup& setup);

}  // namespace tessera::run
