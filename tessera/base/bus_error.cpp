#include "tessera/base/bus_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tessera::base {
namespace {

// Everything here runs within a signal handler: system calls and arithmetic, no memory from the heap.

// Whether a line of /proc/self/maps, as "7f00-7f20 r--s ... /data/tokens.bin", is of memory that holds `address`.
bool holds(std::string_view line, std::uintptr_t address) {
  std::uintptr_t begin = 0, end = 0;
  const auto [dash, error] = std::from_chars(line.data(), line.data() + line.size(), begin, 16);
  if (error != std::errc() || dash == line.data() + line.size() || *dash != '-') return false;
  const auto [rest, end_error] = std::from_chars(dash + 1, line.data() + line.size(), end, 16);
  return end_error == std::errc() && begin <= address && address < end;
}

class Maps {
 public:
  Maps() : file_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~Maps() {
    if (file_ >= 0) ::close(file_);
  }
  Maps(const Maps&) = delete;
  Maps& operator=(const Maps&) = delete;

  // The path of what is mapped there; empty: none is known. Valid as long as this.
  std::string_view path_at(std::uintptr_t address) {
    while (next_line())
      if (holds({line_.data(), length_}, address)) {
        const std::string_view line(line_.data(), length_);
        const std::size_t slash = line.find('/');
        return slash == std::string_view::npos ? std::string_view() : line.substr(slash);
      }
    return {};
  }

 private:
  // Longer lines are cut off. False at the end.
  bool next_line() {
    length_ = 0;
    for (char c = 0; next(c);) {
      if (c == '\n') return true;
      if (length_ < line_.size()) line_[length_++] = c;
    }
    return false;
  }
  bool next(char& c) {
    if (at_ == count_) {
      const ssize_t got = file_ < 0 ? 0 : ::read(file_, chunk_.data(), chunk_.size());
      if (got <= 0) return false;
      at_ = 0;
      count_ = static_cast<std::size_t>(got);
    }
    c = chunk_[at_++];
    return true;
  }

  const int file_;
  std::array<char, 1024> chunk_;
  std::array<char, 2048> line_;
  std::size_t at_ = 0, count_ = 0, length_ = 0;
};

void write_text(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void end(int, siginfo_t* info, void*) {
  Maps maps;
  const std::string_view path = maps.path_at(reinterpret_cast<std::uintptr_t>(info->si_addr));
  write_text("tessera: ");
  write_text(path.empty() ? "memory" : path);
  write_text(": cannot be read any more: expected the file as it was when this run began, and a disk that answers\n");
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
