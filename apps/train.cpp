#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "configs_folder.h"
#include "stop_signals.h"
#include "subcommands.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/launch/resume_command.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/run/launch.h"
#include "tessera/settings/text/parse.h"

namespace tessera::apps {
namespace {

int train(const Arguments& arguments, const base::Environment& environment) {
  const settings::TrainCommand command = settings::parse_train_flags(arguments);
  if (command.help) return fmt::print("{}", settings::train_help()), 0;
  return run::launch(command.config, configs_folder(environment), environment, StopSignals::is_stop_requested);
}

// The first rank reports errors that all ranks share. A launcher kills every rank as soon as one rank exits with an
// error, so the other ranks wait first. A rank that still runs after the longer time reports its own error.
constexpr std::chrono::seconds kFirstRankSpeaks{1}, kOthersEnd{5};

// Returns rank 0 without a launcher, and if the launcher's variables are invalid.
rendezvous::Launch own_ranks() {
  try {
    return rendezvous::read_ranks(rendezvous::own_variables());
  } catch (const InputError&) {
    return {};
  }
}

Acknowledgement acknowledgement_of(const rendezvous::Launch& launch) {
  if (launch.rank > 0) return Acknowledgement::none;
  return launch::calls_launcher(launch) ? Acknowledgement::saves_if_all_run : Acknowledgement::saves;
}

}  // namespace

int run_train(const Arguments& arguments) {
  const rendezvous::Launch launch = own_ranks();
  const StopSignals signals(acknowledgement_of(launch));
  try {
    return train(arguments, base::read_environment());
  } catch (const checkpoint::AgreedInputError& error) {
    if (error.rank() == 0) throw;
    std::this_thread::sleep_for(kFirstRankSpeaks);
    return 2;
  } catch (const InputError& error) {
    if (launch.rank == 0) throw;
    std::this_thread::sleep_for(kOthersEnd);
    throw InputError("rank {}: {}", launch.rank, error.what());
  }
}

}  // namespace tessera::apps
