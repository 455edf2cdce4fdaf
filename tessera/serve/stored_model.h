// The model and the weights at a path that a user gives: a run, a checkpoint or a Hugging Face folder.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/hub/tokenizer/begin_ids.h"
#include "tessera/models/model_config.h"
#include "tessera/quant/dtype.h"
#include "tessera/serve/frozen_model.h"

namespace tessera::serve {

struct StoredModel {
  models::ModelConfigPtr model;
  quant::DType dtype = quant::DType::fp32;  // type of the stored weights; half precision counts as fp32
  std::filesystem::path folder;             // the checkpoint or the Hugging Face folder
  bool is_hf = false;
  std::vector<std::string> warnings =
      {};                        // about the config.json of a Hugging Face folder, or the run's number formats
  hub::BeginIds begin_ids = {};  // the begin tokens of the training data, if the checkpoint stores them
};

// Opens and checks the model at `path`. The checksums of a checkpoint are divided into `parts` parts, and this call
// verifies part `part`. Throws InputError.
StoredModel find_stored_model(const std::filesystem::path& path, std::int64_t part = 0, std::int64_t parts = 1);

// Returns a function that reads weights in any type. If the requested type is wider than the stored weights of a
// checkpoint, the function reads the checkpoint's masters where they exist. Each rank needs its own function. The
// function throws InputError for a damaged file.
serve::FrozenModel::ReadWeight weight_reader(const StoredModel& stored);

}  // namespace tessera::serve
