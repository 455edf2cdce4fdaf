#include <fmt/format.h>

#include "subcommands.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/train/config_parse.h"
#include "tessera/train/launch.h"

namespace tessera::apps {

int run_train(const Arguments& arguments) {
  const base::Environment environment = base::read_environment();
  train::TrainCommand command;
  try {
    command = train::parse_train_flags(arguments);
  } catch (const InputError&) {
    if (environment.launcher_rank.value_or(0) == 0) throw;
    return 2;  // every rank has the same command line: one of them says what is wrong with it
  }
  if (command.help) return fmt::print("{}", train::train_help()), 0;
  return train::launch(command.config, environment.configs.value_or(TESSERA_CONFIGS), environment);
}

}  // namespace tessera::apps
