// A run: its settings, its model, and the values that follow from them. All functions are pure.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tessera/data/sampler.h"
#include "tessera/models/model_config.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/optimizer/update_policy.h"
#include "tessera/settings/config.h"
#include "tessera/settings/resolve/batch.h"
#include "tessera/settings/resolve/formats.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/run_mesh.h"

namespace tessera::settings {

// The purpose of a run. It determines which settings are required and which values follow from others.
enum class Use {
  train,    // all settings of a training run are checked
  plan,     // starts no ranks: any number of ranks, and one microbatch in a step if the global batch is not given
  bench,    // as plan, but starts ranks on --backend
  forward,  // a stored model without training: one microbatch for each reader; experts are sharded like dense weights
};

// A run whose model is known and whose settings are checked and complete. Immutable. Only resolve() makes one. Each
// method that returns a run returns this run with one change, without new checks.
class ResolvedRun {
 public:
  // The settings, including the values that follow from others, as config.json stores them.
  const TrainConfig& stored() const { return stored_; }
  const TrainConfig* operator->() const { return &stored_; }
  const models::ModelConfigPtr& model() const { return model_; }
  const RunMesh& mesh() const { return mesh_; }
  // Returns the rules that update the weights. Not null.
  const std::shared_ptr<const ops::UpdatePolicy>& update() const { return update_; }
  const nn::MeshDegrees& degrees() const { return mesh_.degrees; }
  bool has_experts() const { return mesh_.degrees.experts.has_value(); }
  bool has_unused_places() const { return !mesh_.unused.empty(); }

  // Returns whether the tp ranks divide the tokens, and whether these tokens travel in pieces beside products.
  bool splits_tokens() const { return settings::splits_tokens(stored_); }
  bool overlaps_tp() const;
  // Returns the tokens of a microbatch and the lookup, with which a model reads its embedding.
  shard::RowReads embedding_reads() const { return settings::embedding_reads(stored_); }
  // Returns the shares of the number formats of the model's weights.
  shard::FormatTable format_table() const { return settings::format_table(stored_, *model_); }
  // Returns the bytes of the model's masters.
  MasterBytes master_bytes() const { return settings::master_bytes(stored_, *model_); }
  // Returns the number of tokens in a step.
  std::int64_t tokens() const { return stored_.global_batch * stored_.seq_len; }
  // Returns the split of the global batch. Throws the errors of batch_shape (shares.h).
  data::BatchShape batch() const;
  // Returns the number of microbatches of a step; if places are unused, the largest number of any replica.
  std::int64_t microbatches() const;

  // Return the run on another mesh: on one rank with one microbatch, on a mesh without unused places, and on this mesh
  // with these unused places. Settings without meaning on the mesh get their defaults. without() throws the errors of
  // inactive_slots.
  ResolvedRun alone() const;
  ResolvedRun on(const nn::MeshDegrees& degrees) const;
  ResolvedRun without(UnusedPlaces unused) const;
  // Returns one replica of the run, with these unused slots in its tp groups and this global batch.
  ResolvedRun replica(PlaceMap unused, std::int64_t global_batch) const;
  // Returns the run with this number of microbatches of each rank in a step. No place may be unused.
  ResolvedRun with_microbatches(std::int64_t microbatches) const;
  ResolvedRun with_lookup(Lookup lookup) const;
  // Returns the run with other update rules, for programs that bring their own rules.
  ResolvedRun with_update(std::shared_ptr<const ops::UpdatePolicy> update) const;
  // Returns the run on GPUs, which limit the memory for rows of experts.
  ResolvedRun on_gpus() const;

 private:
  friend ResolvedRun resolve(TrainConfig, models::ModelConfigPtr, Use, std::optional<std::int64_t>);
  ResolvedRun(TrainConfig stored, models::ModelConfigPtr model, std::shared_ptr<const ops::UpdatePolicy> update);
  template <typename Change>
  ResolvedRun with(const Change& change) const;

  TrainConfig stored_;
  models::ModelConfigPtr model_;
  RunMesh mesh_;
  std::shared_ptr<const ops::UpdatePolicy> update_;
};

// Checks the settings of a training run before the model is read. Throws the errors of resolve that depend neither on
// the mesh nor on the model.
void check(const TrainConfig& settings);
// Returns the mesh before the model is read, as launchers need it. `world_size` is the number of processes that a
// launcher started, or nullopt for `local`. Throws InputError for degrees that do not fit each other, the number of
// ranks or the global batch, and the errors of inactive_slots.
RunMesh resolve_mesh(TrainConfig settings, Use use, std::optional<std::int64_t> world_size = std::nullopt);
// Checks the settings and returns the run. `world_size` is as in resolve_mesh. Throws InputError for settings that the
// model, the mesh, the data types or each other do not allow.
ResolvedRun resolve(TrainConfig settings, models::ModelConfigPtr model, Use use,
                    std::optional<std::int64_t> world_size = std::nullopt);

}  // namespace tessera::settings
