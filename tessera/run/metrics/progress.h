// The progress output of a run: a line that is rewritten on a terminal, plain lines in a pipe or a file.
#pragma once
#include <cstdint>
#include <ostream>
#include <string>

#include "tessera/run/metrics/metrics.h"

namespace tessera::run {

// Returns a text like "step 12/200  loss 5.1234  grad_norm 1.23  lr 3.00e-04  12345 tokens/s  81 ms  left 0:15".
std::string progress_text(const StepMetrics& metrics, std::int64_t last_step);

class Progress {
 public:
  // `out` must outlive this object. `terminal`: whether `out` is a terminal (::isatty).
  Progress(std::ostream& out, bool terminal, std::int64_t last_step);
  ~Progress();  // ends a line that is still rewritten with a newline

  void step(const StepMetrics& metrics);
  void print(const std::string& line);  // prints a line that is not rewritten

 private:
  void end_line();
  std::ostream& out_;
  bool terminal_, line_open_ = false;
  std::int64_t last_step_;
};

}  // namespace tessera::run
