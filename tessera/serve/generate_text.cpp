#include "tessera/serve/generate_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"
#include "tessera/serve/frozen_run.h"
#include "tessera/serve/generation.h"

namespace tessera::serve {
namespace {

using Ids = std::vector<std::int64_t>;

void check_flags(const GenerateCommand& command) {
  check_prompt_flags(command.prompt);
  if (command.tokens < 1) throw InputError("--tokens: got {}, expected at least 1", command.tokens);
  if (!std::isfinite(command.temperature) || command.temperature < 0)
    throw InputError("--temperature: got {}, expected a number of at least 0", command.temperature);
  if (!(command.top_p > 0 && command.top_p <= 1))
    throw InputError("--top-p: got {}, expected a number above 0 and at most 1", command.top_p);
}

// The inputs of generation, which are the same on every rank.
struct TextInputs {
  StoredModel stored;
  std::optional<settings::ResolvedRun> run;
  std::filesystem::path tokenizer;  // folder of the tokenizer; empty if no tokenizer is known
  serve::Generation generation;
};

Ids end_tokens(const GenerateCommand& command, const TextInputs& inputs) {
  if (!command.stop_at_eos) return {};
  Ids end;
  if (!inputs.tokenizer.empty()) end = hub::text_tokens_of(inputs.tokenizer).end;
  if (end.empty() && inputs.stored.is_hf) end = hub::text_tokens_of(inputs.stored.folder).end;
  if (end.empty())
    throw InputError(
        "--stop-at-eos: the token that ends a text is not known for {}, expected eos_token_id in "
        "generation_config.json, or eos_token in tokenizer_config.json",
        command.path);
  return end;
}

void check_positions(const serve::Generation& generation, const GenerateCommand& command, std::int64_t most) {
  const auto prompt = static_cast<std::int64_t>(generation.prompt.size());
  if (prompt > most)
    throw InputError("{}: the prompt has {} tokens, expected at most {} (max_position_embeddings of the model)",
                     flag_of_prompt(command.prompt), prompt, most);
  if (generation.tokens > most - prompt + 1)
    throw InputError(
        "--tokens: got {} after a prompt of {} tokens, expected at most {} (max_position_embeddings of the "
        "model is {})",
        command.tokens, prompt, most - prompt + 1, most);
}

// Only rank 0 reads the prompt, because only one process can read standard input.
TextInputs read_inputs(const GenerateCommand& command, const comm::World& world, comm::Communicator& all) {
  TextInputs inputs;
  Ids prompt;
  together(all, [&] {
    inputs.stored = find_stored_model(command.path, world.rank(), world.size());
    inputs.tokenizer = hub::tokenizer_of(inputs.stored.folder);
    inputs.generation.stop = end_tokens(command, inputs);
    if (world.rank() == 0)
      prompt = prompt_tokens(command.prompt, {.folder = inputs.tokenizer,
                                              .begin = inputs.stored.begin_ids,
                                              .pythons = command.pythons,
                                              .model_path = command.path});
  });
  require_same_inputs(all, inputs.stored, {{"the end tokens", inputs.generation.stop}});
  prompt = base::parse_json(checkpoint::broadcast_text(all, nlohmann::json(prompt).dump()), "rank 0").get<Ids>();
  together(all, [&] {
    const models::ModelSizes sizes = inputs.stored.model->sizes();
    check_prompt(prompt, command.prompt, sizes.vocab_size);
    inputs.generation.prompt = prompt;
    inputs.generation.tokens = command.tokens;
    inputs.generation.sampling = {
        .temperature = command.temperature, .top_p = command.top_p, .seed = command.config.seed};
    check_positions(inputs.generation, command, sizes.max_position_embeddings);
    settings::TrainConfig config = command.config;
    config.seq_len = serve::positions_of(inputs.generation);
    inputs.run = frozen_run(std::move(config), inputs.stored, world);
  });
  return inputs;
}

// Texts of tokens.
struct Texts {
  std::string prompt;  // of the prompt alone
  std::string all;     // of the prompt and the new tokens together
};
// Returns nullopt if no tokenizer is known.
std::optional<Texts> texts_of(const GenerateCommand& command, const TextInputs& inputs, const Ids& tokens) {
  const std::filesystem::path file = inputs.tokenizer / "tokenizer.json";
  std::error_code ignored;
  if (inputs.tokenizer.empty() || !std::filesystem::exists(file, ignored)) return std::nullopt;
  Ids all = inputs.generation.prompt;
  all.insert(all.end(), tokens.begin(), tokens.end());
  std::string reason = "no Python with the package tokenizers was found ($TESSERA_PYTHON)";
  try {
    if (const auto texts = hub::PythonTokenizer(file, command.pythons).decode({inputs.generation.prompt, all}))
      return Texts{.prompt = texts->at(0), .all = texts->at(1)};
  } catch (const InputError& error) {
    reason = error.what();
  }
  fmt::print(stderr, "tessera: warning: no text: {}\n", reason);
  return std::nullopt;
}

void print_result(const GenerateCommand& command, const TextInputs& inputs, const Ids& tokens) {
  const std::optional<Texts> texts = texts_of(command, inputs, tokens);
  if (command.json) {
    nlohmann::ordered_json report = {{"prompt_ids", inputs.generation.prompt}, {"ids", tokens}};
    if (texts) report["text"] = continuation_of(texts->prompt, texts->all);
    fmt::print("{}\n", report.dump());
    return;
  }
  fmt::print("{}\n", texts ? texts->all : fmt::format("{}", fmt::join(tokens, ",")));
}

}  // namespace

std::string continuation_of(const std::string& prompt, const std::string& all) {
  auto same = static_cast<std::size_t>(std::ranges::mismatch(prompt, all).in2 - all.begin());
  const auto continues_character = [&](std::size_t at) {
    return at < all.size() && (static_cast<unsigned char>(all[at]) & 0xC0U) == 0x80U;
  };
  while (same > 0 && continues_character(same)) --same;
  return all.substr(same);
}

int generate_text(const GenerateCommand& command) {
  check_flags(command);
  return run_on_ranks(command.config, [&](comm::World& world, comm::Communicator& all) {
    const TextInputs inputs = read_inputs(command, world, all);
    if (world.rank() == 0)
      for (const std::string& warning : inputs.stored.warnings) fmt::print(stderr, "tessera: warning: {}\n", warning);
    const auto model = make_frozen_model(world, inputs.run.value(), inputs.stored);
    const Ids tokens = serve::generate(*model, inputs.generation);
    if (world.rank() == 0) print_result(command, inputs, tokens);
  });
}

}  // namespace tessera::serve
