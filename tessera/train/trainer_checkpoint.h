// Saves and loads a trainer's state as a checkpoint. Trainers with other layouts can load the checkpoint.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// Saves the trainer's weights, masters and optimizer state. Collective over the world. `state` is stored with the added
// key "updates", the optimizer's number of updates.
void save_trainer(Trainer& trainer, const std::filesystem::path& folder, std::int64_t step, nlohmann::json state);

// Returns the bytes of the tensors of a checkpoint, of all ranks together.
std::int64_t checkpoint_bytes(Trainer& trainer);

// Checks all fields of a checkpoint's state that load_trainer reads. Throws InputError for an invalid field, and if a
// weight has only some of a rule's planes.
void check_state(const checkpoint::CheckpointReader& reader, const ops::UpdatePolicy& policy);

// Loads this rank's weights, masters and optimizer state from a checkpoint of any layout. The state of a
// parameter is not changed if the checkpoint has no state of its rule: the checkpoint is imported, or its run updated
// the parameter by another rule. If it has no masters, the masters are made from the weights. Throws InputError, also
// for a parameter without gradients whose values are not finite.
void load_trainer(Trainer& trainer, const checkpoint::CheckpointReader& reader);

// Returns a line for each rule with parameters whose state starts at zero, because the run that wrote the checkpoint
// updated them by another rule.
std::vector<std::string> notes_of_state(const checkpoint::CheckpointReader& reader, const ops::UpdatePolicy& policy);

// A source from which a trainer's tensors are read.
struct TensorSource {
  bool has_masters = false;
  // Returns whether the source has the state of this parameter, which the rule updates. Null: it has no state.
  std::function<bool(const std::string& parameter, const ops::UpdateRule& rule)> has_state;
  // Fills the boxes of the request. `is_counted` is true on exactly one of the ranks that request equal boxes.
  std::function<void(const checkpoint::LoadTensor& request, bool is_counted)> read;
};
// Reads this rank's part of every weight, master and state plane. State that the source does not have is not changed.
// If the source has no masters, they are made from the weights. Throws the errors of source.read, and InputError for a
// parameter without gradients, such as a router's bias, whose values are not finite.
void load_tensors(Trainer& trainer, const TensorSource& source);

}  // namespace tessera::train
