#include "standard_streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>

#include "tessera/base/error.h"
#include "tessera/rendezvous/stop_requests.h"

namespace tessera::apps {
namespace {

// Opens closed standard streams for reading only, so that writes to them fail.
void reserve_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
}

// A write to a pipe without a reader then fails instead of ending the program. Programs that this program starts get
// the default action again.
void report_closed_pipes() {
  if (rendezvous::is_ignored(SIGPIPE)) return;
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigaction(SIGPIPE, &action, nullptr);
}

}  // namespace

StandardStreams::StandardStreams() {
  reserve_standard_descriptors();
  report_closed_pipes();
  output_.emplace(STDOUT_FILENO, ::isatty(STDOUT_FILENO) == 1 ? _IOLBF : _IOFBF);
  errors_.emplace(STDERR_FILENO, _IONBF);
  std::cout.flush();
  stdout = output_->stream();
  stderr = errors_->stream();
  std::cout.rdbuf(&cout_.emplace(stdout));
}

void StandardStreams::continue_without_output() {
  continues_ = true;
  output_->hold_for_slow_readers();  // otherwise the other ranks would wait for the rank that writes
  output_->on_failure([](const std::string& reason) {
    fmt::print(stderr, "tessera: standard output: {}: the run continues; its results are in the folder of --out\n",
               reason);
  });
}

void StandardStreams::check() {
  std::cout.flush();
  output_->finish();
  const std::string reason = output_->failure();
  if (!reason.empty() && !continues_) throw Error("standard output: {}: the output is incomplete", reason);
}

void StandardStreams::finish() {
  std::cout.flush();
  std::fflush(nullptr);
  output_->finish();
}

}  // namespace tessera::apps
