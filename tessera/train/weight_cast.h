// Writes the planes of weights from their masters, after an update of the masters.
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "tessera/runtime/runtime.h"
#include "tessera/shard/cast_masters.h"

namespace tessera::train {

// Returns whether the only plane of a parameter is its master, rounded. An update may then write the plane in its own
// pass over memory, with the same bits.
bool is_rounded_master(const shard::ShardedParameter& parameter);

// Casts the weights of a run. One object a runtime, which outlives it.
class WeightCast {
 public:
  explicit WeightCast(runtime::Runtime& runtime) : runtime_(runtime) {}

  // Enqueues the casts on the lane of compute. They write this rank's state part of every plane of these parameters and
  // of their backward weights; a weight that is its own master needs no cast. Where amaxes of whole weights
  // are needed, they are taken together over all ranks in one message (Runtime::reduce_amaxes): every rank calls it
  // with the same parameters. The caller publishes the weights afterwards. Errors: planes whose format is unknown.
  // has_amaxes: the amaxes of whole weights stand where places_of_amaxes(ids) said.
  void cast(std::span<const schedule::ParameterId> ids, bool has_amaxes = false);
  // Before an update of these parameters that can take the amaxes of the new masters: sets them to 0 and returns where
  // each goes, null for a parameter without an encoding. Empty if the cast of these parameters has to take amaxes of
  // its own: for tiles, or for backward weights too.
  std::vector<float*> places_of_amaxes(std::span<const schedule::ParameterId> ids);

 private:
  // A cast knows where the planes lie, so it is made again when they have moved (shard/replace_storage.h).
  struct Encoder {
    std::vector<const std::byte*> places;
    std::unique_ptr<shard::DistributedCast> cast;
  };

  // What is written, and whose master it is written from.
  struct Target {
    schedule::ParameterId id, weight;
    auto operator<=>(const Target&) const = default;
  };

  std::vector<Target> targets_of(std::span<const schedule::ParameterId> ids) const;
  void round(const Target& target);
  shard::DistributedCast& encoder_of(const std::vector<Target>& targets);

  runtime::Runtime& runtime_;
  // One for each set of parameters that are cast together. A run has few such sets.
  std::map<std::vector<Target>, Encoder> encoders_;
};

}  // namespace tessera::train
