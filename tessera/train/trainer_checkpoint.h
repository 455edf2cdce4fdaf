// A trainer's state to and from a checkpoint, in whatever layout the trainer has.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// Collective over the world. `state` is stored as it is, with the optimizer's update count added as "updates".
void save_trainer(Trainer& trainer, const std::filesystem::path& folder, std::int64_t step, nlohmann::json state);

// Checks all that load_trainer reads of a checkpoint's state, whatever the trainer. Errors: InputError.
void check_state(const checkpoint::CheckpointReader& reader);

// Weights, masters and moments of this rank from a checkpoint of any layout. A checkpoint without moments (one that was
// imported) leaves them zero; one without masters takes them from the weights. Errors: InputError.
void load_trainer(Trainer& trainer, const checkpoint::CheckpointReader& reader);

// A source of a trainer's tensors.
struct TensorSource {
  bool has_masters = false, has_moments = false;
  // Fills the boxes of the request. is_counted: true on one of the ranks that ask for the same boxes.
  std::function<void(const checkpoint::LoadTensor& request, bool is_counted)> read;
};
// Reads this rank's part of every weight, master and moment. Moments that the source lacks stay as they are; masters
// that it lacks are made from the weights. Errors: those of source.read.
void load_tensors(Trainer& trainer, const TensorSource& source);

}  // namespace tessera::train
