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
#include "tessera/settings/checks/run_limits.h"
#include "tessera/settings/resolve.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::serve {
namespace {

// Sets the global batch so that every reader has one microbatch in a step.
settings::TrainConfig with_ranks(settings::TrainConfig config, std::optional<std::int64_t> world_size) {
  const std::int64_t part = config.tp * config.gtp;
  const std::int64_t replicas = config.dp > 0 ? config.dp : std::max<std::int64_t>(1, world_size.value_or(part) / part);
  config.global_batch = config.micro_batch * config.gtp * replicas;
  return settings::resolve_ranks(std::move(config), world_size);
}

std::int64_t ranks_of(const settings::TrainConfig& config) {
  return config.tp * config.gtp * std::max<std::int64_t>(1, config.dp);
}

// If all ranks have the same error, the first rank prints it. A launcher ends the other ranks when one rank exits, so
// the other ranks wait for this time.
constexpr std::chrono::seconds kFirstRankSpeaks{1};

std::unique_ptr<comm::Communicator> everyone(comm::World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return world.make_group("inputs", {ranks});
}

models::StepOptions frozen_options(const settings::TrainConfig& config, const models::ModelConfig& model) {
  const models::ModelOptions options{
      .max_positions = config.seq_len, .embedding = settings::embedding_reads(config), .is_frozen = true};
  const quant::DType accumulator = quant::accumulator_of(config.dtype);
  const bool gathers = config.gtp > 1;  // steps without a schedule gather weights on demand
  return {.build = [&model, options](nn::Context& context) { return model.build(context, options); },
          .layout = nn::rank_layout(settings::mesh_of(config)),
          .types = {.model = config.dtype, .accumulator = accumulator, .wire = accumulator},
          .sequence_parallel = config.tp > 1 && config.sequence_parallel.value_or(false),
          .runtime = {.scheduled = gathers, .pushes = gathers}};
}

}  // namespace

int run_on_ranks(const settings::TrainConfig& command, const RankBody& body) {
  if (command.backend == settings::Backend::mpi) throw InputError("--backend: got mpi, expected local or nccl");
  settings::check_mesh_limits(command);
  launch::check_launcher(command.backend, "nccl");
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(command.timeout_s * 1000));
  launch::set_up_process(command.threads, /*deterministic=*/false);
  const auto with_threads = [&](comm::World& world) {
    launch::set_up_rank_thread();
    body(world, *everyone(world));
  };
  try {
    if (command.backend == settings::Backend::nccl)
      return launch::run_with_nccl({.timeout = timeout, .ranks = static_cast<int>(ranks_of(command))}, with_threads);
    comm::LocalOptions options;
    options.timeout = timeout;
    comm::run_local(static_cast<int>(with_ranks(command, std::nullopt).ranks), options, with_threads);
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

settings::TrainConfig resolve_frozen(settings::TrainConfig config, const StoredModel& stored,
                                     const comm::World& world) {
  if (!config.given.contains("dtype")) config.dtype = stored.dtype;
  config.model = stored.folder.string();
  config = with_ranks(std::move(config), world.size());
  if (stored.model->sizes().num_experts > 0) {
    config.etp = config.tp;
    config.egtp = config.gtp;
    config.sequence_parallel = config.tp > 1;
  }
  return settings::resolve_model(std::move(config), *stored.model);
}

std::unique_ptr<serve::FrozenModel> make_frozen_model(comm::World& world, const settings::TrainConfig& resolved,
                                                      const StoredModel& stored) {
  auto model = std::make_unique<serve::FrozenModel>(world, frozen_options(resolved, *stored.model));
  checkpoint::run_together(*model->parallel().world, "loading " + stored.folder.string(),
                           [&](const std::stop_token&) { model->load(weight_reader(stored)); });
  return model;
}

}  // namespace tessera::serve
