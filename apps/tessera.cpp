// The command line: runs the subcommand and turns errors into one line and an exit code.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>
#include <string_view>

#include "standard_streams.h"
#include "subcommands.h"
#include "tessera/base/bus_error.h"
#include "tessera/base/error.h"
#include "tessera/base/memory/out_of_memory.h"
#include "tessera/base/text/printable.h"
#include "tessera/launch/failure_line.h"
#include "tessera/run/version_text.h"

namespace {

using tessera::apps::Arguments;

struct Subcommand {
  std::string_view name, summary;
  int (*run)(const Arguments&);
};

constexpr Subcommand kSubcommands[] = {
    {"train", "train a model", tessera::apps::run_train},
    {"generate", "continue a prompt with a model", tessera::apps::run_generate},
    {"evaluate", "compute the loss of a model on a data set", tessera::apps::run_evaluate},
    {"inspect", "show a checkpoint or a data file", tessera::apps::run_inspect},
    {"convert", "convert a checkpoint to a Hugging Face folder, or such a folder to a checkpoint",
     tessera::apps::run_convert},
    {"plan", "plan a training step without running it", tessera::apps::run_plan},
    {"plot", "show the metrics of runs as an SVG and in the terminal", tessera::apps::run_plot},
    {"resume-command", "print the command that continues a run without lost ranks", tessera::apps::run_resume_command},
    {"bench", "measure this machine and this program", tessera::apps::run_bench},
};

void print_usage(std::FILE* to) {
  fmt::print(to,
             "usage: tessera SUBCOMMAND [ARGUMENTS]; tessera SUBCOMMAND --help lists its flags; tessera --version\n\n");
  for (const Subcommand& subcommand : kSubcommands) fmt::print(to, "  {:14} {}\n", subcommand.name, subcommand.summary);
}

// Libraries add backtraces to their messages; the user gets only the first line.
std::string_view first_line(std::string_view text) {
  return text.substr(0, text.find('\n'));
}

int run_subcommand(const Arguments& words) {
  if (words.empty()) return print_usage(stderr), 2;
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") return print_usage(stdout), 0;
  if (words[0] == "--version") return fmt::print("{}", tessera::run::version_text()), 0;
  for (const Subcommand& subcommand : kSubcommands)
    if (words[0] == subcommand.name) return subcommand.run({words.begin() + 1, words.end()});
  throw tessera::InputError(
      "unknown subcommand '{}': expected train, generate, evaluate, inspect, convert, plan, plot, resume-command or "
      "bench (see tessera --help)",
      words[0]);
}

bool is_training(const Arguments& words) {
  return !words.empty() && words[0] == "train";
}

void print_error(const Arguments& words, const std::exception& error) {
  constexpr std::size_t kLongest = 4000;  // a message may quote text of any length
  const std::string_view line = first_line(error.what());
  fmt::print(stderr, "tessera: {}{}\n", tessera::base::excerpt(line, kLongest),
             tessera::launch::full_disk_advice(line, is_training(words)));
}

// The results of a training run are in its folder. All other commands print their results.
bool prints_results(const Arguments& words) {
  return !is_training(words) ||
         std::ranges::any_of(words, [](const std::string& word) { return word == "--help" || word == "-h"; });
}

// Returns the exit code of the command line. Prints errors as one line.
int run_reporting_errors(const Arguments& words, tessera::apps::StandardStreams& streams) {
  try {
    if (!prints_results(words)) streams.continue_without_output();
    const int code = tessera::base::naming_failed_allocations([&] { return run_subcommand(words); });
    streams.check();
    return code;
  } catch (const tessera::InputError& error) {
    print_error(words, error);
    return 2;
  } catch (const tessera::base::OutOfMemory& error) {
    print_error(words, error);
    return 2;
  } catch (const std::exception& error) {
    print_error(words, error);
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Streams that share a hardware queue wait for each other, so this is the maximum number of queues. The variable must
  // be set before CUDA or a thread starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  tessera::base::report_bus_errors();
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  tessera::apps::StandardStreams streams;
  const int code = run_reporting_errors({words.begin() + 1, words.end()}, streams);
  streams.finish();
  // Not std::exit: on a GPU host with g++ 13, libtorch's exit-time destructors freed memory that they did not own,
  // after all work was done. All objects of this program are destroyed and all output is written by now.
  std::_Exit(code);
}
