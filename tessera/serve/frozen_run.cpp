#include "tessera/serve/frozen_run.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/comm/local/world.h"
#include "tessera/launch/equal_ranks.h"
#include "tessera/launch/gpu_launch.h"
#include "tessera/launch/launcher_check.h"
#include "tessera/launch/process_settings.h"
#include "tessera/settings/resolve/run_limits.h"

namespace tessera::serve {
namespace {

std::int64_t ranks_of(const settings::MeshSettings& mesh) {
  return mesh.replica_places() * std::max<std::int64_t>(1, mesh.dp);
}

// If all ranks have the same error, the first rank prints it. A launcher ends the other ranks when one rank exits, so
// the other ranks wait for this time.
constexpr std::chrono::seconds kFirstRankSpeaks{1};

std::unique_ptr<comm::Communicator> everyone(comm::World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return world.make_group("inputs", {ranks});
}

models::StepOptions frozen_options(const settings::ResolvedRun& run) {
  const models::ModelOptions options{
      .max_positions = run->seq_len, .embedding = run.embedding_reads(), .is_frozen = true};
  const quant::DType accumulator = quant::accumulator_of(run->dtype);
  const bool gathers = run->mesh.gtp > 1;  // steps without a schedule gather weights on demand
  return {
      .build = [model = run.model(), options](const nn::Context& context) { return model->build(context, options); },
      .layout = nn::rank_layout(run.degrees()),
      .types = {.model = run->dtype, .accumulator = accumulator, .wire = accumulator},
      .sequence_parallel = run->mesh.tp > 1 && run->sequence_parallel.value_or(false),
      .runtime = {.scheduled = gathers, .pushes = gathers}};
}

}  // namespace

int run_on_ranks(const settings::TrainConfig& command, const RankBody& body) {
  if (command.backend == settings::Backend::mpi) throw InputError("--backend: got mpi, expected local or nccl");
  settings::check_mesh_limits(command.mesh);
  launch::check_launcher(command.backend, "nccl");
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(command.timeout_s * 1000));
  launch::set_up_process(command.threads, /*deterministic=*/false);
  const auto with_threads = [&](comm::World& world) {
    launch::set_up_rank_thread();
    body(world, *everyone(world));
  };
  try {
    if (command.backend == settings::Backend::nccl)
      return launch::run_with_nccl({.timeout = timeout, .ranks = static_cast<int>(ranks_of(command.mesh))},
                                   with_threads);
    comm::LocalOptions options;
    options.timeout = timeout;
    comm::run_local(static_cast<int>(settings::resolve_mesh(command, settings::Use::forward).ranks), options,
                    with_threads);
  } catch (const checkpoint::AgreedInputError& error) {
    if (command.backend == settings::Backend::local || error.rank() == 0) throw InputError(error.what());
    std::this_thread::sleep_for(kFirstRankSpeaks);
    return 2;
  }
  return 0;
}

void together(comm::Communicator& inputs, const std::function<void()>& read) {
  checkpoint::run_together(inputs, "", [&](const std::stop_token&) { read(); });
}

void require_same_inputs(comm::Communicator& inputs, const StoredModel& stored, nlohmann::json others) {
  others["the model"] = stored.model->to_json();
  others["the weights"] = stored.folder.filename().string();
  launch::require_equal(inputs, others);
}

settings::ResolvedRun frozen_run(settings::TrainConfig command, const StoredModel& stored, const comm::World& world) {
  if (!command.given.contains("dtype")) command.dtype = stored.dtype;
  command.model = stored.folder.string();
  return settings::resolve(std::move(command), stored.model, settings::Use::forward, world.size());
}

std::unique_ptr<serve::FrozenModel> make_frozen_model(comm::World& world, const settings::ResolvedRun& run,
                                                      const StoredModel& stored) {
  auto model = std::make_unique<serve::FrozenModel>(world, frozen_options(run));
  checkpoint::run_together(*model->parallel().world, "loading " + stored.folder.string(),
                           [&](const std::stop_token&) { model->load(weight_reader(stored)); });
  return model;
}

}  // namespace tessera::serve
