// Writes the planes of weights from their masters after an update of the masters.
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "tessera/runtime/runtime.h"
#include "tessera/shard/cast_masters.h"

namespace tessera::train {

// Returns whether a parameter's only plane is its rounded master. An update may then write the plane in its own pass
// over memory, with the same bits.
bool is_rounded_master(const shard::ShardedParameter& parameter);

// Casts the weights of a run. One object per runtime; the runtime must outlive it.
class WeightCast {
 public:
  explicit WeightCast(runtime::Runtime& runtime) : runtime_(runtime) {}

  // Enqueues the casts on compute's lane. The casts write this rank's state part of every plane of these parameters and
  // of their backward weights. A weight that is its own master needs no cast. If amaxes of whole weights are needed,
  // one message reduces them over all ranks (Program::reduce_amaxes). Every rank therefore calls this with the same
  // parameters. The caller publishes the weights afterwards. Throws Error for planes of an unknown format. has_amaxes:
  // the amaxes of whole weights are already stored where places_of_amaxes(ids) returned.
  void cast(std::span<const schedule::ParameterId> ids, bool has_amaxes = false);
  // Called before an update of these parameters that can compute the amaxes of the new masters. Sets the amaxes to 0
  // and returns where each is stored, or null for a parameter without an encoding. Returns an empty list if the cast
  // must compute the amaxes itself, because they are amaxes of tiles or because backward weights also need amaxes.
  std::vector<float*> places_of_amaxes(std::span<const schedule::ParameterId> ids);

 private:
  // A cast stores the planes' addresses. The encoder is made again after the planes have moved
  // (shard/replace_storage.h).
  struct Encoder {
    std::vector<const std::byte*> places;
    std::unique_ptr<shard::DistributedCast> cast;
  };

  // The parameter that is written, and the parameter whose master is read.
  struct Target {
    schedule::ParameterId id, weight;
    auto operator<=>(const Target&) const = default;
  };

  std::vector<Target> targets_of(std::span<const schedule::ParameterId> ids) const;
  void round(const Target& target);
  shard::DistributedCast& encoder_of(const std::vector<Target>& targets);

  runtime::Runtime& runtime_;
  // The key is a set of parameters that are cast together. A run has few such sets.
  std::map<std::vector<Target>, Encoder> encoders_;
};

}  // namespace tessera::train
