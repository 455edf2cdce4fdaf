#include "stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "tessera/rendezvous/stop_requests.h"

namespace tessera::apps {
namespace {

using namespace std::string_view_literals;

// On a terminal, a line starts a new line after a progress line and the terminal's own "^C".
constexpr auto kTerminalLine =
    "\ntessera: stopping after this step and saving; a second signal ends the run at once\n"sv;
constexpr auto kTerminalLineOfRank =
    "\ntessera: stop requested: if all ranks still run, the run saves after this step; a second signal ends the run at "
    "once\n"sv;
constexpr auto kLine = kTerminalLine.substr(1), kLineOfRank = kTerminalLineOfRank.substr(1);

// Global state, because a signal handler can access nothing else.
rendezvous::StopRequests requests;
std::atomic<const std::string_view*> acknowledgement{nullptr};
static_assert(std::atomic<const std::string_view*>::is_always_lock_free);

void record_signal(int signal) {
  const int before = errno;
  const bool is_first = !requests.any();
  if (requests.add(signal, rendezvous::steady_now()) > 1) {
    std::signal(signal, SIG_DFL);
    raise(signal);
  }
  const std::string_view* const line = acknowledgement;
  // A failed write does not matter: the request counts anyway.
  if (is_first && line != nullptr && ::write(STDERR_FILENO, line->data(), line->size()) < 0) errno = before;
  errno = before;
}

void set_handlers(void (*handler)(int)) {
  for (const int signal : rendezvous::kStopSignals) {
    if (rendezvous::is_ignored(signal)) continue;
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
  }
}

}  // namespace

StopSignals::StopSignals(Acknowledgement kind) {
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  if (kind == Acknowledgement::saves) acknowledgement = is_terminal ? &kTerminalLine : &kLine;
  if (kind == Acknowledgement::saves_if_all_run) acknowledgement = is_terminal ? &kTerminalLineOfRank : &kLineOfRank;
  set_handlers(record_signal);
  rendezvous::accept_stop_signals();
}

StopSignals::~StopSignals() {
  set_handlers(SIG_DFL);
}

bool StopSignals::is_stop_requested() {
  return requests.any();
}

}  // namespace tessera::apps
