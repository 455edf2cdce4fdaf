// Writes the planes of weights from their masters, after an update of the masters.
#pragma once
#include <compare>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "tessera/runtime/runtime.h"
#include "tessera/shard/formats/cast_masters.h"

namespace tessera::train {

// Returns whether the only plane of a parameter is its rounded master. The update of the master may then also write the
// plane, in the same pass over memory, with the same bits.
bool is_rounded_master(const shard::ShardedParameter& parameter);

// Casts the weights of a run. One object per runtime; the runtime must outlive it.
class WeightCast {
 public:
  explicit WeightCast(runtime::Runtime& runtime) : runtime_(runtime) {}

  // Enqueues the casts on compute's lane. The casts write this rank's state part of every plane of these parameters and
  // of their backward weights. A weight without a separate master is not cast, and neither is one that is a
  // part of a split master, because the split writes it. If amaxes of whole weights are needed,
  // one message reduces them over all ranks (Program::reduce_amaxes), so every rank must pass the same parameters. The
  // caller publishes the weights afterwards. `has_amaxes`: the amaxes of whole weights are already stored at the
  // addresses that places_of_amaxes(ids) returned. Throws Error for planes of an unknown format.
  void cast(std::span<const schedule::ParameterId> ids, bool has_amaxes = false);
  // Called before an update of these parameters that also computes the amaxes of the new masters. Sets the amaxes to 0.
  // Returns the amaxes of each parameter's state; the address is null for a parameter without an encoding. Returns an
  // empty list if the cast must compute the amaxes itself. This is the case for encodings with amaxes of tiles, and if
  // backward weights also need amaxes.
  std::vector<shard::StateAmaxes> places_of_amaxes(std::span<const schedule::ParameterId> ids);

 private:
  // A cast of several weights, which stores the addresses of their planes. It is made again after planes have moved
  // (shard/replace_storage.h).
  struct Encoder {
    std::vector<const std::byte*> places;
    std::unique_ptr<shard::DistributedCast> cast;
  };

  // The parameter whose planes are written, and the parameter whose master is read.
  struct Target {
    schedule::ParameterId id, weight;
    auto operator<=>(const Target&) const = default;
  };

  std::vector<Target> targets_of(std::span<const schedule::ParameterId> ids) const;
  void round(const Target& target);
  shard::DistributedCast& encoder_of(const std::vector<Target>& targets);

  runtime::Runtime& runtime_;
  // By set of parameters that are cast together. A run has few sets.
  std::map<std::vector<Target>, Encoder> encoders_;
};

}  // namespace tessera::train
