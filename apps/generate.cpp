#include "tessera/serve/generate_text.h"

#include <CLI/CLI.hpp>

#include "command_line.h"
#include "subcommands.h"
#include "tessera/base/env.h"
#include "tessera/rendezvous/stop_requests.h"
#include "tessera/settings/text/flags.h"

namespace tessera::apps {

int run_generate(const Arguments& arguments) {
  rendezvous::accept_stop_signals();
  CLI::App app(
      "Continues a prompt. With a tokenizer it prints the prompt and its continuation, else the new token ids. See "
      "docs/generate.md.",
      "tessera generate");
  serve::GenerateCommand command;
  settings::SettingWords words;
  app.add_option("path", command.path, "a run, a checkpoint, or a Hugging Face folder")->required();
  app.add_option("--prompt", command.prompt.text, "text to continue")->option_text("TEXT");
  app.add_option("--prompt-file", command.prompt.file, "file with the text to continue; -: standard input")
      ->option_text("FILE|-");
  app.add_option("--prompt-ids", command.prompt.ids, "tokens to continue, such as 5,17,3")->option_text("ID,...");
  app.add_option("--tokens", command.tokens, "number of new tokens")->capture_default_str()->option_text("N [64]");
  app.add_option("--temperature", command.temperature, "divides the logits; 0: always the most probable token")
      ->option_text("X [0]");
  app.add_option("--top-p", command.top_p, "draw from the most probable tokens with this sum of probabilities")
      ->option_text("X [1]");
  app.add_flag("--stop-at-eos", command.stop_at_eos, "stop after the token that ends a text");
  settings::add_flags(app, settings::Command::generate, words);
  app.get_option("--seed")->description("seed of the drawn tokens [1]");
  app.get_option("--dtype")->description("type of weights and activations (default: that of the stored weights)");
  app.get_option("--backend")->description("ranks are threads on CPUs (local) or GPUs (nccl) [local]");
  app.get_option("--backend")->option_text("local|nccl");
  app.add_flag("--json", command.json, "print as JSON: prompt_ids, ids, and text if a tokenizer is known");
  if (!parse(app, arguments)) return 0;
  settings::set_from_words(command.config, words);
  command.pythons = hub::pythons_to_try(base::read_environment().python, TESSERA_OWN_PYTHON);
  return serve::generate_text(command);
}

}  // namespace tessera::apps
