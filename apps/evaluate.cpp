#include "tessera/serve/evaluate.h"

#include <CLI/CLI.hpp>

#include "command_line.h"
#include "subcommands.h"
#include "tessera/rendezvous/stop_requests.h"
#include "tessera/settings/text/flags.h"

namespace tessera::apps {

int run_evaluate(const Arguments& arguments) {
  rendezvous::accept_stop_signals();
  CLI::App app("Computes the mean loss of a model on a data set, and its perplexity. Reads every sample once.",
               "tessera evaluate");
  serve::EvaluateCommand command;
  settings::SettingWords words;
  app.add_option("path", command.path, "a run, a checkpoint, or a Hugging Face folder")->required();
  app.add_option("--data", command.data, "PREFIX of PREFIX.bin and PREFIX.idx")->required()->option_text("PREFIX");
  settings::add_flags(app, settings::Command::evaluate, words);
  app.get_option("--dtype")->description("type of weights and activations (default: that of the stored weights)");
  app.get_option("--dp")->description("replicas, which read different samples [1]");
  app.get_option("--backend")->description("ranks are threads on CPUs (local) or GPUs (nccl) [local]");
  app.get_option("--backend")->option_text("local|nccl");
  app.add_flag("--json", command.json, "print as JSON: loss, perplexity, tokens, samples");
  if (!parse(app, arguments)) return 0;
  settings::set_from_words(command.config, words);
  return serve::evaluate(command);
}

}  // namespace tessera::apps
