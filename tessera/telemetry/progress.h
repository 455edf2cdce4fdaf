// The progress output of a run: a line that is rewritten on a terminal, plain lines in a pipe or a file.
#pragma once
#include <cstdint>
#include <deque>
#include <optional>
#include <ostream>
#include <string>

#include "tessera/telemetry/metrics.h"

namespace tessera::telemetry {

// The usual time of a step, from which the time left is estimated. A single slow step, for example a step during which
// the process was stopped, does not change the estimate much. The first step is not counted, because it includes
// preparations.
class StepPace {
 public:
  void add(double step_ms);
  // Returns the median of the latest steps, or nullopt before the second step.
  std::optional<double> step_ms() const;

 private:
  bool has_begun_ = false;
  std::deque<double> latest_;
};

// Returns a text like "step 12/200  loss 5.1234  grad_norm 1.23  lr 3.00e-04  12345 tokens/s  81 ms  left 0:15".
// `pace_ms` is the usual time of a step; without it the text has no time left. The time left includes `other_seconds`,
// the time of evaluations and checkpoints that follow. If other_seconds is above 0, the last step has a time left too.
std::string progress_text(const StepMetrics& metrics, std::int64_t last_step, std::optional<double> pace_ms,
                          double other_seconds = 0);
// Returns a text like "step 12/200  valid_loss 4.8125  valid_loss/code 3.2500  12 s".
std::string evaluation_text(std::int64_t step, std::int64_t last_step, const LossBySet& losses, double seconds);

class Progress {
 public:
  // `out` must outlive this object. `terminal`: whether `out` is a terminal (::isatty).
  Progress(std::ostream& out, bool terminal, std::int64_t last_step);
  ~Progress();  // ends a line that is still rewritten with a newline

  // `other_seconds`: expected time of the evaluations and checkpoints that follow. `is_evaluated`: whether an
  // evaluation follows at once.
  void step(const StepMetrics& metrics, double other_seconds = 0, bool is_evaluated = false);
  // Shows the share of an evaluation after the step, on a terminal only. `seconds` is the time since its begin.
  void evaluating(std::int64_t step, double share, double seconds);
  void evaluated(std::int64_t step, const LossBySet& losses, double seconds);
  void print(const std::string& line);  // prints a line that is not rewritten

 private:
  void end_line();
  std::ostream& out_;
  bool terminal_, line_open_ = false;
  std::int64_t last_step_;
  StepPace pace_;
};

}  // namespace tessera::telemetry
