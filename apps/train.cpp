#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "configs_folder.h"
#include "stop_signals.h"
#include "subcommands.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/run/config/parse.h"
#include "tessera/run/launch/launch.h"

namespace tessera::apps {
namespace {

int train(const Arguments& arguments, const base::Environment& environment) {
  const run::TrainCommand command = run::parse_train_flags(arguments);
  if (command.help) return fmt::print("{}", run::train_help()), 0;
  return run::launch(command.config, configs_folder(environment), environment, StopSignals::is_stop_requested);
}

// The first rank reports errors that all ranks share. A launcher kills every rank as soon as one rank exits with an
// error, so the other ranks wait first. A rank that still runs after the longer time reports its own error.
constexpr std::chrono::seconds kFirstRankSpeaks{1}, kOthersEnd{5};

// Returns 0 without a launcher, and if the launcher's variables are invalid.
int launched_rank() {
  try {
    return rendezvous::read_ranks(rendezvous::own_variables()).rank;
  } catch (const InputError&) {
    return 0;
  }
}

}  // namespace

int run_train(const Arguments& arguments) {
  const StopSignals signals(launched_rank() == 0);
  try {
    return train(arguments, base::read_environment());
  } catch (const checkpoint::AgreedInputError& error) {
    if (error.rank() == 0) throw;
    std::this_thread::sleep_for(kFirstRankSpeaks);
    return 2;
  } catch (const InputError& error) {
    const int rank = launched_rank();
    if (rank == 0) throw;
    std::this_thread::sleep_for(kOthersEnd);
    throw InputError("rank {}: {}", rank, error.what());
  }
}

}  // namespace tessera::apps
