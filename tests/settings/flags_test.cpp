// Tests flags: every command takes its flags from the table of settings.
#include "tessera/settings/text/flags.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/settings/places.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr Command kOthers[] = {Command::plan,           Command::bench_step,  Command::bench_schedule,
                               Command::bench_products, Command::bench_links, Command::bench_kernels};

// The result of a command line with one flag: the value of the setting, or the error.
struct Outcome {
  std::string value, refusal;
};

Outcome in_train(const Setting& setting, const Words& line) {
  try {
    return {.value = value_of(parse(line), setting).dump(), .refusal = ""};
  } catch (const InputError& error) {
    return {.value = "", .refusal = error.what()};
  }
}

Outcome in_command(Command command, const Setting& setting, const Words& line) {
  CLI::App app;
  SettingWords words;
  add_flags(app, command, words);
  try {
    app.parse(Words(line.rbegin(), line.rend()));
    TrainConfig config;
    set_from_words(config, words);
    return {.value = value_of(config, setting).dump(), .refusal = ""};
  } catch (const InputError& error) {
    return {.value = "", .refusal = error.what()};
  } catch (const CLI::ParseError& error) {
    return {.value = "", .refusal = fmt::format("{} (see tessera train --help)", parse_error_text(error))};
  }
}

// Lines with words that some settings accept and some refuse.
std::vector<Words> lines_of(const Setting& setting) {
  const std::string flag = flag_of(setting.name);
  std::vector<Words> lines{{flag}, {flag, "on", flag, "on"}, {flag + "=3"}, {flag + "=off"}};
  for (const char* word : {"", "on", "off", "yes", "true", "3", "0", "-1", "2.5", "1e3", "99999999999", "abc", "1GB",
                           "auto", "min", "a=b", "llama-tiny"})
    lines.push_back({flag, word});
  for (const std::string& word : CLI::detail::split(std::string(setting.placeholder), '|'))
    lines.push_back({flag, word});
  return lines;
}

TEST(Flags, AreParsedInTheSameWayByEveryCommand) {
  int accepted = 0, refused = 0;
  for (const Command command : kOthers) {
    const std::vector<const Setting*> taken = settings_of(command);
    EXPECT_FALSE(taken.empty());
    for (const Setting* setting : taken)
      for (const Words& line : lines_of(*setting)) {
        SCOPED_TRACE(::testing::Message() << static_cast<int>(command) << ": " << ::testing::PrintToString(line));
        const Outcome expected = in_train(*setting, line), got = in_command(command, *setting, line);
        EXPECT_EQ(got.value, expected.value);
        EXPECT_EQ(got.refusal, expected.refusal);
        ++(expected.refusal.empty() ? accepted : refused);
      }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

TEST(Flags, TrainTakesAllAndBenchStepThoseThatChangeSteps) {
  const std::set<std::string_view> of_places{"dead", "idle", "tp_spares", "reduced_batch"};  // only train and plan
  EXPECT_EQ(settings_of(Command::train).size(), settings().size());
  for (const char* name : {"cuda_graph", "deterministic", "pushes", "coalesce", "backend", "threads", "gather_budget"})
    EXPECT_TRUE(find_setting(name)->accepted_by.contains(Command::bench_step)) << name;
  for (const Command command : {Command::plan, Command::bench_schedule})
    for (const Setting* setting : settings_of(command)) {
      const bool is_of_places = of_places.contains(setting->name);
      EXPECT_NE(setting->accepted_by.contains(Command::bench_step), is_of_places) << setting->name;
    }
}

TEST(Flags, ShowTheirHelpAndDefaults) {
  CLI::App app;
  SettingWords words{{"gtp", {"2"}}};
  add_flags(app, Command::plan, words);
  const auto help_of = [&](const char* flag) {
    const CLI::Option* option = app.get_option(flag);
    return option->get_option_text() + ": " + option->get_description();
  };
  EXPECT_EQ(help_of("--sequence-parallel"),
            "on|off: shard activations outside the tensor-parallel parts by tokens (default: on with --tp above 1)");
  EXPECT_EQ(help_of("--tp"), "N: tensor parallel ranks [1]");
  EXPECT_THAT(help_of("--gtp"), HasSubstr(" [2]"));
  EXPECT_EQ(help_of("--global-batch"), "N: sequences of a step (default: one microbatch a step)");
  app.parse(Words{});
  EXPECT_EQ(words.at("gtp"), Words{"2"});
}

// Every flag of tessera train. tests/e2e/test_messages.py has the other commands.
TEST(TrainFlags, ValuesThatAreNotUtf8AreRefusedByFlag) {
  const std::string bad = "caf\xE9";
  std::vector<std::string> flags{"--config"};
  for (const Setting& setting : settings()) flags.push_back(flag_of(setting.name));
  for (const std::string& flag : flags) {
    const std::string expected =
        flag + ": got '" + bad + "', expected UTF-8: byte 4 is not; rename the file or the folder if this is a path";
    EXPECT_EQ(base::refusal([&] { parse_train_flags({"--steps", "3", flag, bad}); }), expected);
    EXPECT_EQ(base::refusal([&] { parse_train_flags({flag + "=" + bad}); }), expected);
  }
  EXPECT_EQ(base::refusal([&] { parse_train_flags({"--data", "0.5", "a", "0.5", bad}); }).substr(0, 6), "--data");
  EXPECT_EQ(parse_train_flags({"--out", "caf\xC3\xA9"}).config.out, "caf\xC3\xA9");
}

}  // namespace
}  // namespace tessera::settings
