// Saves and loads a trainer's state as a checkpoint, independent of the trainer's layout.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// Saves the trainer. Collective over the world. `state` is stored unchanged, except for the added key "updates", the
// optimizer's update count.
void save_trainer(Trainer& trainer, const std::filesystem::path& folder, std::int64_t step, nlohmann::json state);

// Checks every field that load_trainer reads from a checkpoint's state. Does not depend on a trainer. Throws
// InputError.
void check_state(const checkpoint::CheckpointReader& reader);

// Loads this rank's weights, masters and moments from a checkpoint of any layout. Without stored moments (an imported
// checkpoint), the moments become zero. Without stored masters, the masters are made from the weights. Throws
// InputError.
void load_trainer(Trainer& trainer, const checkpoint::CheckpointReader& reader);

// A source of a trainer's tensors.
struct TensorSource {
  bool has_masters = false, has_moments = false;
  // Fills the boxes of the request. is_counted is true on exactly one of the ranks that request the same boxes.
  std::function<void(const checkpoint::LoadTensor& request, bool is_counted)> read;
};
// Reads this rank's part of every weight, master and moment. Moments that the source lacks stay unchanged; masters that
// the source lacks are made from the weights. Throws the errors of source.read.
void load_tensors(Trainer& trainer, const TensorSource& source);

}  // namespace tessera::train
