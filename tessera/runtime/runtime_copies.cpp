// Weights that backward passes read in another number format.
#include "tessera/base/error.h"
#include "tessera/runtime/runtime.h"

namespace tessera::runtime {

void Runtime::add_backward_copies() {
  TESSERA_CHECK(!in_step_ && step_replays_.empty(), "backward copies are added after the first step began");
  TESSERA_CHECK(weights_ < 0, "backward copies are added twice");
  weights_ = size();
  for (schedule::ParameterId id = 0; id < weights_; ++id) {
    ParameterEntry& weight = entry(id, "add_backward_copies");
    if (weight.parameter.spec.backward) weight.copy = register_parameter(shard::backward_copy(weight.parameter.spec));
  }
}

void Runtime::check_copies() const {
  if (weights_ >= 0) return;
  for (const auto& entry : entries_)
    TESSERA_CHECK(!entry->parameter.spec.backward,
                  "'{}' has another format in backward passes: add_backward_copies is missing", entry->name());
}

schedule::ParameterId Runtime::backward_copy(schedule::ParameterId id) const {
  TESSERA_CHECK(id >= 0 && id < weights(), "backward_copy: weight {} of {}", id, weights());
  return entries_[static_cast<std::size_t>(id)]->copy;
}

// What a consume of a weight reads.
schedule::ParameterId Runtime::read_in(schedule::Pass pass, schedule::ParameterId id) const {
  TESSERA_CHECK(id >= 0 && id < weights(), "a pass uses weight {} of {}", id, weights());
  const schedule::ParameterId copy = entries_[static_cast<std::size_t>(id)]->copy;
  return pass == schedule::Pass::backward && copy != schedule::kNoParameter ? copy : id;
}

// Each weight with its copy behind it.
std::vector<schedule::ParameterId> Runtime::with_copies(std::span<const schedule::ParameterId> ids) const {
  std::vector<schedule::ParameterId> all;
  for (const schedule::ParameterId id : ids) {
    all.push_back(id);
    if (const schedule::ParameterId copy = backward_copy(id); copy != schedule::kNoParameter) all.push_back(copy);
  }
  return all;
}

}  // namespace tessera::runtime
