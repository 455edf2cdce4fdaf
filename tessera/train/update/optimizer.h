// Applies the update rules with clipping to this rank's part of the weights, and sets the initial values of a run.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/ops/optimizer/update_policy.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/update/matrix_update.h"
#include "tessera/train/update/weight_cast.h"

namespace tessera::train {

class Optimizer {
 public:
  // The rules' state starts at zero. `seed` is that of the random bits with which a rule rounds its state. Collective
  // over the world if a rule computes with whole matrices. Throws Error if such a rule would update a parameter without
  // matrices.
  Optimizer(runtime::Runtime& runtime, std::shared_ptr<const ops::UpdatePolicy> policy, std::uint64_t seed);

  // Calls visit(plane, buffer) for each state plane of a parameter: the ops::StatePlane, and the base::Buffer with this
  // rank's numbers in the state layout. A frozen parameter has no planes.
  template <typename Visit>
  void for_each_plane(schedule::ParameterId id, Visit visit);
  const ops::UpdatePolicy& policy() const { return *policy_; }
  const ops::UpdateRule& rule_of(schedule::ParameterId id) const;

  // The largest number of unconfirmed updates. On a GPU, an update is unconfirmed until the host has read whether it
  // was applied.
  static constexpr int kMaxUnconfirmed = ops::kScalarChoices;

  // Sets the learning rate of the next update, which the factors of groups multiply. On a GPU the scalars of all groups
  // are copied to the device. Throws Error if
  // kMaxUnconfirmed updates are unconfirmed.
  void begin_update(double lr);
  // Updates masters and state from main_grad, bucket by bucket (runtime/update_calls.h). After the update of a
  // bucket, its planes are written and its weights are published.
  //
  // `clip` is in device memory. It contains the clip factor, and whether the update applies. If the update does not
  // apply, the bytes of masters, state and planes and the number of updates do not change.
  //
  // On a GPU, every update enqueues the same work on compute's lane, because the host does not know before
  // confirm_update whether the update applies. The weights are always cast, published and gathered for the next step.
  // If the update does not apply, the masters are unchanged, so each cast writes the same bytes as before.
  void update(const ops::Clip* clip);
  // Called when the host has read the clip of the oldest unconfirmed update.
  void confirm_update(const ops::Clip& clip);

  // Returns the bytes of MatrixUpdate::bytes() of all rules.
  std::int64_t matrix_bytes() const;
  // Returns the number of updates applied so far, including updates before a resume. The number is exact only if no
  // update is unconfirmed.
  std::int64_t updates() const { return updates_; }
  // Throws Error if an update is unconfirmed.
  void set_updates(std::int64_t updates);

 private:
  // The rule of a parameter, and its group among the groups of the rule.
  struct Place {
    std::size_t rule = 0;
    int group = 0;
  };
  ops::UpdateShard shard_of(schedule::ParameterId id);
  // Appends the parts of a shard whose logical positions LogicalIndices can describe.
  void append_parts(schedule::ParameterId id, const ops::UpdateShard& whole,
                    std::vector<ops::UpdateShard>& shards) const;
  // Runs the rules of a bucket. `shards`: each parameter of the bucket with this rank's state part.
  void run_rules(std::span<const MatrixShard> shards, const ops::Clip* clip);
  // Updates a bucket, and casts the weights that the update did not write.
  void update_bucket(std::span<const schedule::ParameterId> bucket, const ops::Clip* clip);

  runtime::Runtime& runtime_;
  std::shared_ptr<const ops::UpdatePolicy> policy_;
  std::uint64_t seed_;
  WeightCast cast_;
  std::vector<std::vector<base::Buffer>> state_;  // by parameter id and plane; no planes for a frozen parameter
  std::vector<Place> places_;                     // by parameter id
  std::int64_t updates_ = 0;                      // number of updates that the host has confirmed as applied
  ops::UpdateScalars groups_;
  std::vector<std::unique_ptr<MatrixUpdate>> matrix_updates_;  // by rule; null for a rule of single elements
  base::Buffer scalars_;                                       // of all groups, for the current update
  // Members for a GPU, where the number of updates is in device memory and increases with each update that applies.
  int unconfirmed_ = 0;
  std::vector<base::Buffer> uploads_;  // pinned copies of choices_, one for each unconfirmed update
  std::size_t next_upload_ = 0;
  base::Buffer choices_, counter_;  // ops::UpdateScalars::write_choices, std::int64_t
};

template <typename Visit>
void Optimizer::for_each_plane(schedule::ParameterId id, Visit visit) {
  const std::vector<ops::StatePlane> planes = rule_of(id).planes(runtime_.parameter(id).types.accumulator);
  std::vector<base::Buffer>& state = state_[static_cast<std::size_t>(id)];
  for (std::size_t i = 0; i < state.size(); ++i) visit(planes[i], state[i]);
}

// Fills the master and the weight of every parameter with initial values from the seed. The values of the logical
// tensors are equal for every mesh (docs/numerics.md).
void set_initial_values(runtime::Runtime& runtime, std::uint64_t seed);

}  // namespace tessera::train
