#include "tessera/run/deadlines.h"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <string>

namespace tessera::run {
namespace {

constexpr double kMinute = 60;

}  // namespace

double process_seconds() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // Field 22 is the start of the process in ticks since the boot. Field 2, the name, is in parentheses.
  constexpr int kFirstAfterName = 3, kStart = 22;
  std::size_t at = text.rfind(')');
  for (int field = kFirstAfterName; field <= kStart && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  timespec now{};
  if (at == std::string::npos || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  const double start = std::stod(text.substr(at)) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - start;
}

Deadlines::Deadlines(std::optional<double> save_minutes, std::optional<double> stop_minutes, double now)
    : saved_at_(now) {
  if (save_minutes) save_every_ = *save_minutes * kMinute;
  if (stop_minutes) stop_at_ = *stop_minutes * kMinute;
}

void Deadlines::add_save(double now, double seconds) {
  saved_at_ = now;
  save_ = seconds;
}

bool Deadlines::is_save_due(double now) const {
  return (save_every_ && now - saved_at_ >= *save_every_) || (stop_at_ && !save_ && now >= *stop_at_ / 2);
}

bool Deadlines::is_stop_due(double now) const {
  return stop_at_ && now + save_.value_or(0) + kStepsAhead * step_ >= *stop_at_;
}

}  // namespace tessera::run
