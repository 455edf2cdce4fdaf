// Saves and loads a trainer's state as a checkpoint. Trainers with other layouts can load the checkpoint.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// Saves the trainer's weights, masters and moments. Collective over the world. `state` is stored with the added key
// "updates", the optimizer's number of updates.
void save_trainer(Trainer& trainer, const std::filesystem::path& folder, std::int64_t step, nlohmann::json state);

// Checks all fields of a checkpoint's state that load_trainer reads. Throws InputError for an invalid field.
void check_state(const checkpoint::CheckpointReader& reader);

// Loads this rank's weights, masters and moments from a checkpoint of any layout. If the checkpoint has no moments (an
// imported checkpoint), the moments become zero. If it has no masters, the masters are made from the weights. Throws
// InputError, also for a parameter without gradients whose values are not finite.
void load_trainer(Trainer& trainer, const checkpoint::CheckpointReader& reader);

// A source from which a trainer's tensors are read.
struct TensorSource {
  bool has_masters = false, has_moments = false;
  // Fills the boxes of the request. `is_counted` is true on exactly one of the ranks that request equal boxes.
  std::function<void(const checkpoint::LoadTensor& request, bool is_counted)> read;
};
// Reads this rank's part of every weight, master and moment. If the source has no moments, they do not change. If the
// source has no masters, they are made from the weights. Throws the errors of source.read, and InputError for a
// parameter without gradients, such as a router's bias, whose values are not finite.
void load_tensors(Trainer& trainer, const TensorSource& source);

}  // namespace tessera::train
