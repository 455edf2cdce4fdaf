// Weights that backward passes read in another number format.
#include "tessera/base/error.h"
#include "tessera/runtime/runtime.h"

namespace tessera::runtime {

void Runtime::add_backward_weights() {
  TESSERA_CHECK(!in_step_ && step_replays_.empty(), "backward weights are added after the first step began");
  TESSERA_CHECK(weights_ < 0, "backward weights are added twice");
  weights_ = size();
  for (schedule::ParameterId id = 0; id < weights_; ++id) {
    ParameterEntry& weight = entry(id, "add_backward_weights");
    if (weight.parameter.spec.backward)
      weight.backward_weight = register_parameter(shard::backward_weight(weight.parameter.spec));
  }
}

void Runtime::check_backward_weights() const {
  if (weights_ >= 0) return;
  for (const auto& entry : entries_)
    TESSERA_CHECK(!entry->parameter.spec.backward,
                  "'{}' has another format in backward passes: add_backward_weights is missing", entry->name());
}

schedule::ParameterId Runtime::backward_weight(schedule::ParameterId id) const {
  TESSERA_CHECK(id >= 0 && id < weights(), "backward_weight: weight {} of {}", id, weights());
  return entries_[static_cast<std::size_t>(id)]->backward_weight;
}

// What a consume of a weight reads.
schedule::ParameterId Runtime::read_in(schedule::Pass pass, schedule::ParameterId id) const {
  TESSERA_CHECK(id >= 0 && id < weights(), "a pass uses weight {} of {}", id, weights());
  const schedule::ParameterId backward_weight = entries_[static_cast<std::size_t>(id)]->backward_weight;
  return pass == schedule::Pass::backward && backward_weight != schedule::kNoParameter ? backward_weight : id;
}

// Each weight with its backward weight behind it.
std::vector<schedule::ParameterId> Runtime::with_backward_weights(std::span<const schedule::ParameterId> ids) const {
  std::vector<schedule::ParameterId> all;
  for (const schedule::ParameterId id : ids) {
    all.push_back(id);
    if (const schedule::ParameterId other = backward_weight(id); other != schedule::kNoParameter) all.push_back(other);
  }
  return all;
}

}  // namespace tessera::runtime
