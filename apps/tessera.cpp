// The command line: runs the subcommand and turns errors into one line and an exit code.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <span>
#include <string_view>

#include "subcommands.h"
#include "tessera/base/bus_error.h"
#include "tessera/base/error.h"
#include "tessera/base/out_of_memory.h"
#include "tessera/base/printable.h"
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

void print_error(const std::exception& error) {
  constexpr std::size_t kLongest = 4000;  // a message may quote text of any length
  fmt::print(stderr, "tessera: {}\n", tessera::base::excerpt(first_line(error.what()), kLongest));
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

// Returns the exit code of the command line. Prints errors as one line.
int run_reporting_errors(const Arguments& words) {
  try {
    return tessera::base::naming_failed_allocations([&] { return run_subcommand(words); });
  } catch (const tessera::InputError& error) {
    return print_error(error), 2;
  } catch (const tessera::base::OutOfMemory& error) {
    return print_error(error), 2;
  } catch (const std::exception& error) {
    return print_error(error), 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Streams that share a hardware queue wait for each other, so this is the maximum number of queues. The variable must
  // be set before CUDA or a thread starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  tessera::base::report_bus_errors();
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  const int code = run_reporting_errors({words.begin() + 1, words.end()});
  std::cout.flush();
  std::fflush(nullptr);
  // Not std::exit: on a GPU host with g++ 13, libtorch's exit-time destructors freed memory that they did not own,
  // after all work was done. All objects of this program are destroyed and all output is written by now.
  std::_Exit(code);
}
