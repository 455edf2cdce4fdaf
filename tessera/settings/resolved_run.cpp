#include "tessera/settings/resolved_run.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve.h"
#include "tessera/settings/resolve/graph_checks.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/resolve/update_rules.h"
#include "tessera/settings/shares.h"

namespace tessera::settings {
namespace {

TrainConfig plan_settings(TrainConfig config) {
  check_tp_tokens(config);
  if (!config.grad_wire) config.grad_wire = config.dtype;
  // A plan starts no ranks, so it accepts any number of ranks and has no backend. Benchmarks that start ranks have a
  // backend.
  if (!config.given.contains("backend")) {
    config.backend = Backend::mpi;
    config.formats.kernels = GemmKernels::automatic;  // without a backend, no product is known to be emulated
  }
  if (config.mesh.has_unused_places() && config.mesh.dp == 0) config.mesh.dp = nominal_replicas(config.mesh);
  check_mesh_limits(config.mesh);
  if (!config.given.contains("global_batch")) config.global_batch = one_microbatch(config, config.mesh.ranks);
  return config;
}

TrainConfig settings_of(Use use, TrainConfig config, std::optional<std::int64_t> world_size) {
  switch (use) {
    case Use::train:
      return resolve_settings(std::move(config));
    case Use::plan:
    case Use::bench:
      return plan_settings(std::move(config));
    case Use::forward:
      config.global_batch = one_microbatch(config, world_size.value_or(0));
  }
  return config;
}

void leave_out(UnusedPlaces unused, MeshSettings& mesh) {
  mesh.unused = std::move(unused);
  mesh.ranks = mesh.places() - count(inactive_slots(mesh));
}

}  // namespace

void check(const TrainConfig& settings) {
  resolve_settings(settings);
}

RunMesh resolve_mesh(TrainConfig settings, Use use, std::optional<std::int64_t> world_size) {
  if (use != Use::train) settings = settings_of(use, std::move(settings), world_size);
  return mesh_of(resolve_ranks(std::move(settings), world_size).mesh, /*has_experts=*/false);
}

ResolvedRun resolve(TrainConfig settings, models::ModelConfigPtr model, Use use,
                    std::optional<std::int64_t> world_size) {
  settings = resolve_ranks(settings_of(use, std::move(settings), world_size), world_size);
  if (use == Use::forward && model->sizes().num_experts > 0) {
    settings.mesh.etp = settings.mesh.tp, settings.mesh.egtp = settings.mesh.gtp;
    settings.sequence_parallel = settings.mesh.tp > 1;
  }
  settings = resolve_model(std::move(settings), *model);
  if (use == Use::bench) {
    if (settings.backend == Backend::mpi) throw InputError("--backend: got mpi, expected local or nccl");
    check_graph(settings);
    check_muon(settings);
  }
  auto update = std::make_shared<const ops::UpdatePolicy>(update_policy(settings, *model));
  return {std::move(settings), std::move(model), std::move(update)};
}

ResolvedRun::ResolvedRun(TrainConfig stored, models::ModelConfigPtr model,
                         std::shared_ptr<const ops::UpdatePolicy> update)
    : stored_(std::move(stored)),
      model_(std::move(model)),
      mesh_(mesh_of(stored_.mesh, /*has_experts=*/model_->sizes().num_experts > 0)),
      update_(std::move(update)) {}

template <typename Change>
ResolvedRun ResolvedRun::with(const Change& change) const {
  TrainConfig changed = stored_;
  change(changed);
  return {std::move(changed), model_, update_};
}

bool ResolvedRun::overlaps_tp() const {
  return settings::overlaps_tp(stored_, has_long_pieces(stored_, model_->sizes()));
}

data::BatchShape ResolvedRun::batch() const {
  return batch_shape(stored_, stored_.mesh.unused.reduced_batch == "auto" ? units_of(*model_) : TpUnits());
}

std::int64_t ResolvedRun::microbatches() const {
  if (has_unused_places()) return std::ranges::max(data::microbatches_by_replica(batch()));
  return stored_.global_batch / (stored_.micro_batch * stored_.mesh.gtp * stored_.mesh.dp);
}

ResolvedRun ResolvedRun::alone() const {
  return {settings::alone(stored_), model_, update_};
}

ResolvedRun ResolvedRun::on(const nn::MeshDegrees& degrees) const {
  return {settings::on(stored_, degrees), model_, update_};
}

ResolvedRun ResolvedRun::without(UnusedPlaces unused) const {
  return with([&](TrainConfig& config) { leave_out(std::move(unused), config.mesh); });
}

ResolvedRun ResolvedRun::replica(PlaceMap unused, std::int64_t global_batch) const {
  return with([&](TrainConfig& config) {
    config.mesh.dp = 1;
    config.global_batch = global_batch;
    leave_out({.dead = std::move(unused)}, config.mesh);
  });
}

ResolvedRun ResolvedRun::with_microbatches(std::int64_t microbatches) const {
  return with([&](TrainConfig& config) {
    config.global_batch = microbatches * config.micro_batch * config.mesh.gtp * config.mesh.dp;
  });
}

ResolvedRun ResolvedRun::with_lookup(Lookup lookup) const {
  return with([&](TrainConfig& config) { config.embedding = lookup; });
}

ResolvedRun ResolvedRun::with_update(std::shared_ptr<const ops::UpdatePolicy> update) const {
  return {stored_, model_, std::move(update)};
}

ResolvedRun ResolvedRun::on_gpus() const {
  return with([](TrainConfig& config) { config.backend = Backend::nccl; });
}

}  // namespace tessera::settings
