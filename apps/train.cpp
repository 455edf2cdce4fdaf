#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "subcommands.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/train/config/parse.h"
#include "tessera/train/launch.h"

namespace tessera::apps {
namespace {

int train(const Arguments& arguments, const base::Environment& environment) {
  const train::TrainCommand command = train::parse_train_flags(arguments);
  if (command.help) return fmt::print("{}", train::train_help()), 0;
  return train::launch(command.config, environment.configs.value_or(TESSERA_CONFIGS), environment);
}

}  // namespace

int run_train(const Arguments& arguments) {
  const base::Environment environment = base::read_environment();
  try {
    return train(arguments, environment);
  } catch (const InputError&) {
    // What the user got wrong is the same on every rank: the first one says it. The others wait, since a launcher kills
    // all ranks as soon as one ends with an error.
    if (environment.launcher_rank.value_or(0) == 0) throw;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return 2;
  }
}

}  // namespace tessera::apps
