#include "tessera/run/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/base/memory/out_of_memory.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/comm/local/world.h"
#include "tessera/comm/mpi/world.h"
#include "tessera/hub/stored_run.h"
#include "tessera/launch/equal_ranks.h"
#include "tessera/launch/failure_line.h"
#include "tessera/launch/gpu_launch.h"
#include "tessera/launch/launcher_check.h"
#include "tessera/launch/process_settings.h"
#include "tessera/rendezvous/connecting.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/states/rank_state.h"
#include "tessera/rendezvous/stop_requests.h"
#include "tessera/run/hang_watch.h"
#include "tessera/run/loop.h"
#include "tessera/run/rank_watch.h"
#include "tessera/run/run_setup.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/resolved_run.h"

namespace tessera::run {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

int launch_local(const settings::TrainConfig& command, const std::filesystem::path& configs,
                 const StopRequested& stop_requested) {
  const RunSetup setup = make_run_setup(command, {.configs = configs});
  launch::set_up_process(setup.run->threads, setup.run->deterministic);
  RunFiles files(setup);
  if (files.is_finished()) return 0;
  const TablePrinter printer;
  comm::LocalOptions options;
  options.timeout = milliseconds(setup.run->timeout_s);
  try {
    comm::run_local(static_cast<int>(setup.run.mesh().ranks), options, [&](comm::World& world) {
      run_training(world, setup, world.rank() == 0 ? &files : nullptr, stop_requested);
    });
  } catch (const checkpoint::AgreedInputError& error) {
    throw InputError(error.what());  // all ranks are in this process, so this may be an error of any rank
  }
  return 0;
}

// All ranks prepare the run together, so a fault on any rank is an error on every rank. The ranks compare their setups
// before they make the groups of the mesh. Only rank 0 checks and opens the run's folder.
void train_with_processes(comm::World& world, const settings::TrainConfig& command,
                          const std::filesystem::path& configs, const StopRequested& stop_requested, RankWatch& watch) {
  std::optional<RunSetup> made;
  std::unique_ptr<RunFiles> files;
  std::vector<int> everyone;
  for (int rank = 0; rank < world.size(); ++rank) everyone.push_back(rank);
  const auto group = world.make_group("launch", {everyone});
  checkpoint::run_together(*group, "", [&](const std::stop_token&) {
    made = make_run_setup(
        command, {.configs = configs, .world_size = world.size(), .part = world.rank(), .parts = world.size()});
  });
  const RunSetup& setup = made.value();
  launch::require_equal(*group, equal_on_all_ranks(setup));
  launch::set_up_process(setup.run->threads, setup.run->deterministic);
  checkpoint::run_together(*group, "", [&](const std::stop_token&) {
    if (world.rank() == 0) files = std::make_unique<RunFiles>(setup);
  });
  const std::string finished = files && files->is_finished() ? "finished" : "";
  if (!checkpoint::broadcast_text(*group, finished).empty()) return;
  watch.start(*group, setup, stop_requested);
  try {
    run_training(world, setup, files.get(), stop_requested);
  } catch (const std::exception& error) {
    watch.leave(error.what());
    throw;
  }
  watch.leave();
}

// Throws InputError if a launcher other than MPI's started the processes, because each process would train alone.
// `ranks` is the number of processes that have a rank.
void check_mpi_processes(const comm::World& world, const rendezvous::Launch& launch, int ranks) {
  if (world.size() > 1 || ranks == 1) return;
  const bool by_srun = launch.launcher == "srun";
  throw InputError(
      "--backend: got mpi, but MPI has 1 process where {} started {}: expected `{} tessera train ...` for ranks on "
      "CPUs, or --backend nccl for ranks on GPUs",
      launch.launcher, launch.size, by_srun ? "srun --mpi=pmix" : fmt::format("mpirun -n {}", launch.size));
}

// When one rank aborts, the launcher ends the other ranks with SIGTERM. In this case SIGTERM is not a request to stop
// the run.
[[noreturn]] void abort_with(const std::string& line, int code = 1) {
  for (const int signal : rendezvous::kStopSignals) std::signal(signal, SIG_IGN);
  fmt::print(stderr, "{}", line);
  std::fflush(nullptr);
  comm::abort_mpi(code);
}

// Rank 0 prints the error that all ranks have in common. The other ranks wait first, because a rank that aborts would
// end rank 0 before this line is printed.
[[noreturn]] void abort_together(int rank, const std::string& message, int code) {
  constexpr std::chrono::seconds kFirstRankPrints{1};
  if (rank == 0) abort_with(fmt::format("tessera: {}{}\n", message, launch::full_disk_advice(message, true)), code);
  std::this_thread::sleep_for(kFirstRankPrints);
  abort_with("", code);
}

int launch_mpi(const settings::TrainConfig& command, const settings::TrainConfig& known,
               const std::filesystem::path& configs, bool check_mismatch, const StopRequested& stop_requested) {
  const rendezvous::Launch launched = rendezvous::read_ranks(rendezvous::own_variables());
  const settings::StartedRank started = settings::started_rank(known.mesh, launched.rank, launched.size);
  const auto world = comm::make_mpi_world(
      {.timeout = milliseconds(command.timeout_s), .check_mismatch = check_mismatch}, rendezvous::kConnecting,
      started.size < launched.size ? std::optional(started.takes_part()) : std::nullopt);
  if (!started.takes_part()) {
    fmt::print("{}\n", started.text);
    return 0;
  }
  check_mpi_processes(*world, launched, started.size);
  RankWatch watch;
  try {
    train_with_processes(*world, command, configs, stop_requested, watch);
    return 0;
  } catch (const InputError&) {
    throw;
  } catch (const checkpoint::AgreedError& error) {
    abort_together(world->rank(), error.what(), 1);
  } catch (const checkpoint::AgreedOutOfMemory& error) {
    abort_together(world->rank(), error.what(), 2);
  } catch (const base::OutOfMemory& error) {
    abort_with(launch::failure_line(world->rank(), error.what()) + "\n", 2);
  } catch (const std::exception& error) {
    abort_with(watch.is_hang_reported() ? "" : launch::failure_line(world->rank(), error.what()) + "\n");
  }
}

// Returns the number of ranks that the command requests. Without a request, returns the largest number for which there
// are GPUs.
int requested_ranks(const settings::TrainConfig& command) {
  const settings::MeshSettings& mesh = command.mesh;
  const std::int64_t part = mesh.replica_places();
  if (mesh.has_unused_places()) return static_cast<int>(settings::resolve_mesh(command, settings::Use::train).ranks);
  if (mesh.ranks > 0) return static_cast<int>(mesh.ranks);
  if (mesh.dp > 0) return static_cast<int>(mesh.places());
  return static_cast<int>(base::cuda_device_count() / part * part);
}

// Returns the device of each rank that this program starts, given the number of visible GPUs: all in order, or, if
// there is a device for each place, those of the active places.
std::vector<int> devices_of(const settings::TrainConfig& known, int visible) {
  const settings::RunMesh mesh = settings::resolve_mesh(known, settings::Use::train);
  const auto places = static_cast<int>(mesh.degrees.places());
  if (visible != mesh.ranks && visible != places)
    throw InputError("--dead: {} GPUs are visible, expected {} (one for each active rank) or {} (one for each place)",
                     visible, mesh.ranks, places);
  std::vector<int> devices;
  for (int place = 0; place < visible; ++place)
    if (visible != places || !std::ranges::binary_search(mesh.degrees.unused, place)) devices.push_back(place);
  return devices;
}

int launch_nccl(const settings::TrainConfig& command, const settings::TrainConfig& known,
                const std::filesystem::path& configs, bool check_mismatch, int ranks,
                const StopRequested& stop_requested) {
  RankWatch watch;
  launch::NcclRun run{
      .timeout = milliseconds(command.timeout_s),
      .check_mismatch = check_mismatch,
      .stop_requested = stop_requested,
      .ranks = ranks,
      .started = [&known](int rank, int processes) { return settings::started_rank(known.mesh, rank, processes); },
      .before_exit =
          [&](const std::string& error) {
            watch.leave(error);
            return !watch.is_hang_reported();
          }};
  if (known.mesh.has_unused_places()) run.devices = [&known](int visible) { return devices_of(known, visible); };
  return launch::run_with_nccl(
      run, [&](comm::World& world) { train_with_processes(world, command, configs, stop_requested, watch); });
}

// Returns the number of replicas if a launcher has started a process for each place, otherwise 0.
std::int64_t replicas_of_launcher(const settings::TrainConfig& known) {
  const rendezvous::Launch launched = rendezvous::read_ranks(rendezvous::own_variables());
  const bool is_launched = !launched.launcher.empty() && !launched.is_self_started;
  return is_launched && known.backend != settings::Backend::local
             ? settings::replicas_of_processes(known.mesh, launched.size)
             : 0;
}

}  // namespace

int launch(settings::TrainConfig command, const std::filesystem::path& configs, const base::Environment& environment,
           const StopRequested& stop_requested) {
  rendezvous::accept_table_requests();
  settings::TrainConfig known = hub::with_stored_ranks(command);
  settings::check_mesh_limits(known.mesh);
  if (known.mesh.dp == 0 && known.mesh.has_unused_places())
    command.mesh.dp = known.mesh.dp = replicas_of_launcher(known);
  const bool check = environment.check_collectives;
  launch::check_launcher(known.backend);
  if (known.backend == settings::Backend::mpi) return launch_mpi(command, known, configs, check, stop_requested);
  if (known.backend == settings::Backend::nccl)
    return launch_nccl(command, known, configs, check, requested_ranks(known), stop_requested);
  return launch_local(command, configs, stop_requested);
}

}  // namespace tessera::run
