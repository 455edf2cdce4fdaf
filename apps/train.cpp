#include <fmt/format.h>

#include <cstdlib>

#include "subcommands.h"
#include "tessera/train/config_parse.h"
#include "tessera/train/launch.h"

namespace tessera::apps {

int run_train(const Arguments& arguments) {
  const train::TrainCommand command = train::parse_train_flags(arguments);
  if (command.help) return fmt::print("{}", train::train_help()), 0;
  const char* configs = std::getenv("TESSERA_CONFIGS");
  return train::launch(command.config, configs != nullptr ? configs : TESSERA_CONFIGS);
}

}  // namespace tessera::apps
