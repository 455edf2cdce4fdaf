#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "subcommands.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/comm/launcher.h"
#include "tessera/train/checkpoint/together.h"
#include "tessera/train/config/parse.h"
#include "tessera/train/launch.h"

namespace tessera::apps {
namespace {

int train(const Arguments& arguments, const base::Environment& environment) {
  const train::TrainCommand command = train::parse_train_flags(arguments);
  if (command.help) return fmt::print("{}", train::train_help()), 0;
  return train::launch(command.config, environment.configs.value_or(TESSERA_CONFIGS), environment);
}

// 0: on its own, or by a launcher whose variables say nothing sensible.
int launched_rank() {
  try {
    return comm::read_ranks(comm::own_variables()).rank;
  } catch (const InputError&) {
    return 0;
  }
}

}  // namespace

int run_train(const Arguments& arguments) {
  try {
    return train(arguments, base::read_environment());
  } catch (const InputError& error) {
    const int rank = launched_rank();
    if (rank == 0) throw;
    // The first rank says what is wrong on all. The others wait, since a launcher kills every rank as soon as one ends
    // with an error; who is still here after the longer time may be wrong alone.
    const bool is_agreed = dynamic_cast<const train::AgreedInputError*>(&error) != nullptr;
    std::this_thread::sleep_for(std::chrono::seconds(is_agreed ? 1 : 5));
    if (is_agreed) return 2;
    throw InputError("rank {}: {}", rank, error.what());
  }
}

}  // namespace tessera::apps
