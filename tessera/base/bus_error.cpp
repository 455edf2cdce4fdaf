#include "tessera/base/bus_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <string_view>

namespace tessera::base {
namespace {

// These functions run in a signal handler. Such functions may only use system calls and arithmetic, and must not
// allocate memory.

// Text of limited length. Longer text is truncated.
class Line {
 public:
  void append(std::string_view text) {
    for (const char c : text)
      if (size_ < text_.size()) text_[size_++] = c;
  }
  void clear() { size_ = 0; }
  std::string_view text() const { return {text_.data(), size_}; }

 private:
  std::array<char, 4096> text_;
  std::size_t size_ = 0;
};

// Returns false at the end of the file.
bool read_line(int file, Line& line) {
  line.clear();
  for (char c = 0; ::read(file, &c, 1) == 1; line.append({&c, 1}))
    if (c == '\n') return true;
  return false;
}

// Returns whether the range of a line of /proc/self/maps, like "7f00-7f20 r--s ... /data/tokens.bin", contains
// `address`.
bool holds(std::string_view line, std::uintptr_t address) {
  const char* const stop = line.data() + line.size();
  std::uintptr_t begin = 0, end = 0;
  const auto [dash, error] = std::from_chars(line.data(), stop, begin, 16);
  if (error != std::errc() || dash == stop || *dash != '-') return false;
  const auto [rest, end_error] = std::from_chars(dash + 1, stop, end, 16);
  return end_error == std::errc() && begin <= address && address < end;
}

void append_path_of(std::uintptr_t address, Line& target) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  Line line;
  while (maps >= 0 && read_line(maps, line)) {
    const std::size_t slash = line.text().find('/');
    if (holds(line.text(), address) && slash != std::string_view::npos) return target.append(line.text().substr(slash));
  }
  target.append("a mapped file");
}

void end(int signal, siginfo_t* info, void*) {
  if (info->si_code <= 0) {  // another process sent the signal
    std::signal(signal, SIG_DFL);
    raise(signal);
    return;
  }
  static std::atomic_flag ending;  // other threads may access the file at the same time
  while (ending.test_and_set()) ::pause();
  Line line;
  line.append("tessera: ");
  append_path_of(reinterpret_cast<std::uintptr_t>(info->si_addr), line);
  line.append(": cannot be accessed: the file became shorter, or its disk is full or fails\n");
  // The process ends even if the message cannot be written.
  if (::write(STDERR_FILENO, line.text().data(), line.text().size()) < 0) ::_exit(1);
  ::_exit(1);
}

}  // namespace

void report_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = end;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace tessera::base
