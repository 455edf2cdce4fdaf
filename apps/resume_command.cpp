#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>

#include "command_line.h"
#include "subcommands.h"
#include "tessera/base/error.h"
#include "tessera/launch/lost_ranks.h"

namespace tessera::apps {
namespace {

int rank_of(const std::string& text) {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (text.empty() || error != std::errc() || end != text.data() + text.size())
    throw InputError("--lost: got '{}', expected numbers of ranks such as 5,6", text);
  return rank;
}

}  // namespace

int run_resume_command(const Arguments& arguments) {
  CLI::App app(
      "Prints the dead places and the command that continues a run without lost ranks, and writes them to "
      "RUN/resume-without.json",
      "tessera resume-command");
  std::string run;
  std::vector<std::string> lost_ranks;
  app.add_option("run", run, "folder of the run")->required();
  app.add_option("--lost", lost_ranks, "numbers of the ranks that have ended, such as 5,6")->required()->delimiter(',');
  if (!parse(app, arguments)) return 0;
  std::vector<int> ranks;
  for (const std::string& text : lost_ranks) ranks.push_back(rank_of(text));
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const launch::LostRanks lost = launch::lost_ranks_of_run(run, ranks, program_invocation_name);
  launch::write_lost_ranks(lost, run);
  fmt::print("{}", launch::lost_ranks_text(lost));
  return lost.run ? 0 : 1;
}

}  // namespace tessera::apps
