#include "tessera/train/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/comm/launcher.h"
#include "tessera/comm/local.h"
#include "tessera/comm/mpi.h"
#include "tessera/comm/nccl.h"
#include "tessera/comm/tcp_store.h"
#include "tessera/train/checkpoint_together.h"
#include "tessera/train/loop.h"
#include "tessera/train/processes.h"
#include "tessera/train/run_plan.h"

namespace tessera::train {
namespace {

std::chrono::milliseconds timeout_of(const TrainConfig& config) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(config.timeout_s * 1000));
}

int launch_local(const TrainConfig& command, const std::filesystem::path& configs) {
  const RunPlan plan = plan_run(command, {.configs = configs});
  RunFiles files(plan);
  comm::LocalOptions options;
  options.timeout = timeout_of(plan.config);
  comm::run_local(static_cast<int>(plan.config.ranks), options,
                  [&](comm::World& world) { run_training(world, plan, world.rank() == 0 ? &files : nullptr); });
  return 0;
}

// All ranks, or none, get past this point. Rank 0 alone looks at the folder of the run.
void train_with_processes(comm::World& world, const TrainConfig& command, const std::filesystem::path& configs) {
  RunPlan plan;
  std::unique_ptr<RunFiles> files;
  std::vector<int> everyone;
  for (int rank = 0; rank < world.size(); ++rank) everyone.push_back(rank);
  const auto group = world.make_group("launch", {everyone});
  run_together(*group, "settings", [&](std::stop_token) {
    plan = plan_run(command,
                    {.configs = configs, .world_size = world.size(), .part = world.rank(), .parts = world.size()});
  });
  run_together(*group, "--out", [&](std::stop_token) {
    if (world.rank() == 0) files = std::make_unique<RunFiles>(plan);
  });
  run_training(world, plan, files.get());
}

int launch_mpi(const TrainConfig& command, const std::filesystem::path& configs, bool check_mismatch) {
  const auto world = comm::make_mpi_world({.timeout = timeout_of(command), .check_mismatch = check_mismatch});
  try {
    train_with_processes(*world, command, configs);
    return 0;
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera: rank {}: {}\n", world->rank(), error.what());
    std::fflush(nullptr);
    comm::abort_mpi(1);
  }
}

comm::Variables own_variables() {
  comm::Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

// One process a GPU: as many as --ranks, or the mesh, or the visible GPUs say.
int ranks_of_node(const TrainConfig& command) {
  if (command.ranks > 0) return static_cast<int>(command.ranks);
  const std::int64_t part = command.tp * command.gtp;
  const int devices = base::cuda_device_count();
  return static_cast<int>(command.dp > 0 ? part * command.dp : std::max<std::int64_t>(devices / part, 1) * part);
}

int join_nccl(const TrainConfig& command, const std::filesystem::path& configs, const comm::Launch& place,
              bool check_mismatch) {
  comm::NcclOptions options;
  options.timeout = timeout_of(command);
  options.check_mismatch = check_mismatch;
  options.rank = place.rank;
  options.size = place.size;
  options.device = base::cuda_device(comm::device_of(place, base::cuda_device_count()));
  base::set_device(options.device);
  options.store = comm::make_tcp_store(place, options.timeout);
  try {
    const auto world = comm::make_nccl_world(options);
    train_with_processes(*world, command, configs);
    return 0;
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera: rank {}: {}\n", place.rank, error.what());
    std::fflush(nullptr);
    std::_Exit(1);  // what is under way on the device has no end
  }
}

int launch_nccl(const TrainConfig& command, const std::filesystem::path& configs, bool check_mismatch) {
  if (!comm::nccl_available()) throw InputError("--backend: got nccl: this build has no CUDA, expected local or mpi");
  const comm::Launch place = comm::read_launch(own_variables());
  if (!place.launcher.empty()) return join_nccl(command, configs, place, check_mismatch);
  const int ranks = ranks_of_node(command), devices = base::cuda_device_count();
  if (ranks > devices)
    throw InputError("--ranks: {} with --backend nccl, expected at most {}: the GPUs that are visible", ranks, devices);
  return run_processes(ranks);
}

}  // namespace

int launch(const TrainConfig& command, const std::filesystem::path& configs, const base::Environment& environment) {
  if (command.backend == Backend::mpi) return launch_mpi(command, configs, environment.check_collectives);
  if (command.backend == Backend::nccl) return launch_nccl(command, configs, environment.check_collectives);
  if (environment.launcher_size.value_or(1) > 1)
    throw InputError("--backend: got {}, expected mpi or nccl: a launcher started {} processes",
                     name_of(command.backend), *environment.launcher_size);
  return launch_local(command, configs);
}

}  // namespace tessera::train
