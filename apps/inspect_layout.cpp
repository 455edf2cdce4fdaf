#include <fmt/format.h>

#include <algorithm>

#include "command_line.h"
#include "configs_folder.h"
#include "subcommands.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/models/registry.h"
#include "tessera/plan/inspect_layout.h"
#include "tessera/plan/step_plan.h"
#include "tessera/settings/text/parse.h"

namespace tessera::apps {

int run_inspect_layout(Arguments arguments) {
  const auto json = std::ranges::find(arguments, "--json");
  const bool prints_json = json != arguments.end();
  if (prints_json) arguments.erase(json);
  const settings::TrainCommand command = settings::parse_train_flags(arguments);
  if (command.help) {
    fmt::print(
        "tessera inspect layout: shows the mesh of a run, its groups of ranks, and the parts of every parameter that "
        "each rank holds.\n\n  --json     print as JSON, on one line\n\nThe other flags are those of train; only "
        "--model is "
        "required.\n");
    return 0;
  }
  if (command.config.model.empty())
    throw InputError("--model is missing: expected a name under configs/ or a config.json");
  const std::filesystem::path file =
      models::find_model_config(command.config.model, configs_folder(base::read_environment()));
  const models::ModelConfigPtr model = models::read_model_config(file);
  print_warnings(models::model_config_warnings(file));
  const nlohmann::ordered_json inspected =
      plan::inspect_layout(settings::resolve(command.config, model, settings::Use::plan));
  fmt::print("{}", prints_json ? inspected.dump() + "\n" : plan::layout_text(inspected));
  return 0;
}

}  // namespace tessera::apps
