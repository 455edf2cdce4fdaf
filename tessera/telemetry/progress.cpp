#include "tessera/telemetry/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace tessera::telemetry {
namespace {

constexpr std::size_t kPaceSteps = 31;  // odd, so that the median is the time of one step

constexpr char kToLineStart[] = "\r", kClearToEnd[] = "\x1b[K";

std::string clock_text(double seconds) {
  constexpr double longest = 3600.0 * 24 * 365 * 100;
  if (!std::isfinite(seconds) || seconds > longest) return "?";
  const auto total = static_cast<std::int64_t>(std::max(0.0, std::round(seconds)));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60)
                   : fmt::format("{}:{:02}", minutes, total % 60);
}

// A NaN may have a sign, which has no meaning.
std::string loss_text(const StepMetrics& m) {
  if (!std::isnan(m.loss)) return fmt::format("{:.4f}", m.loss);
  return m.tokens == 0 ? "none (no target)" : "nan";
}

}  // namespace

void StepPace::add(double step_ms) {
  if (std::exchange(has_begun_, true)) latest_.push_back(step_ms);
  if (latest_.size() > kPaceSteps) latest_.pop_front();
}

std::optional<double> StepPace::step_ms() const {
  if (latest_.empty()) return std::nullopt;
  std::vector<double> sorted(latest_.begin(), latest_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

std::string progress_text(const StepMetrics& m, std::int64_t last_step, std::optional<double> pace_ms,
                          double other_seconds) {
  std::string text = fmt::format("step {}/{}  loss {}  grad_norm {:.3g}  lr {:.2e}  {:.0f} tokens/s  {:.0f} ms", m.step,
                                 last_step, loss_text(m), m.grad_norm, m.lr, m.tokens_per_second, m.step_ms);
  if (m.expert_load) text += fmt::format("  expert load {:.2f}", *m.expert_load);
  if (m.skipped) text += "  SKIPPED: the gradient is not finite";
  if (m.suppressed > 0) text += fmt::format("  repeated after {} suppressed updates", m.suppressed);
  if ((m.step < last_step || other_seconds > 0) && pace_ms)
    text += "  left " + clock_text(static_cast<double>(last_step - m.step) * *pace_ms / 1000 + other_seconds);
  return text;
}

std::string evaluation_text(std::int64_t step, std::int64_t last_step, const LossBySet& losses, double seconds) {
  std::string text = fmt::format("step {}/{}", step, last_step);
  for (const auto& [name, loss] : losses)
    text += fmt::format("  {} {}", key_of_set(name), std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss));
  return text + fmt::format("  {:.3g} s", seconds);
}

Progress::Progress(std::ostream& out, bool terminal, std::int64_t last_step)
    : out_(out), terminal_(terminal), last_step_(last_step) {}

Progress::~Progress() {
  end_line();
}

void Progress::end_line() {
  if (line_open_) out_ << '\n' << std::flush;
  line_open_ = false;
}

void Progress::step(const StepMetrics& metrics, double other_seconds, bool is_evaluated) {
  pace_.add(metrics.step_ms);
  const std::string text = progress_text(metrics, last_step_, pace_.step_ms(), other_seconds);
  if (!terminal_) {
    out_ << text << '\n' << std::flush;
    return;
  }
  out_ << kToLineStart << text << kClearToEnd << std::flush;
  line_open_ = true;
  if (is_evaluated || metrics.skipped || metrics.suppressed > 0 || metrics.step == last_step_)
    end_line();  // ends the line, so that later output does not overwrite it
}

void Progress::evaluating(std::int64_t step, double share, double seconds) {
  if (!terminal_) return;
  out_ << kToLineStart
       << fmt::format("step {}/{}  evaluating {:.0f} %  left {}", step, last_step_, 100 * share,
                      clock_text(seconds * (1 / share - 1)))
       << kClearToEnd << std::flush;
  line_open_ = true;
}

void Progress::evaluated(std::int64_t step, const LossBySet& losses, double seconds) {
  print(evaluation_text(step, last_step_, losses, seconds));
}

void Progress::print(const std::string& line) {
  if (terminal_ && line_open_) out_ << kToLineStart << kClearToEnd;
  line_open_ = false;
  out_ << line << '\n' << std::flush;
}

}  // namespace tessera::telemetry
