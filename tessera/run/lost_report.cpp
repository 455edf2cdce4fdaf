#include "tessera/run/lost_report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tessera/base/device.h"
#include "tessera/launch/lost_ranks.h"
#include "tessera/rendezvous/launcher.h"

namespace tessera::run {
namespace {

void report_with(std::string (*text)(const launch::LostRanks&), const RunSetup& setup, const std::vector<int>& ranks) {
  try {
    launch::CommandPlace place{.program = program_invocation_name,
                               .launch = rendezvous::read_ranks(rendezvous::own_variables()),
                               .devices = static_cast<int>(base::cuda_device_count())};
    if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) place.visible = visible;
    const launch::LostRanks lost =
        launch::lost_ranks(setup.run, ranks, place, setup.checkpoint.value_or(std::filesystem::path()));
    fmt::print(stderr, "{}", text(lost));
    std::fflush(stderr);
    launch::write_lost_ranks(lost, setup.run->out);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tessera: no command to continue without the lost ranks: {}\n", error.what());
  }
}

}  // namespace

void report_lost(const RunSetup& setup, const std::vector<int>& ranks) {
  report_with(launch::lost_ranks_text, setup, ranks);
}

void report_continuation(const RunSetup& setup, const std::vector<int>& ranks) {
  report_with(launch::continuation_text, setup, ranks);
}

}  // namespace tessera::run
