// The steps of a run, as `tessera plot` shows them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/telemetry/metrics.h"

namespace tessera::telemetry {

struct PlottedRun {
  std::string name;                // the path that the user gave
  std::vector<StepMetrics> steps;  // the trained steps, in ascending order; may be empty
  // Evaluations by processes that did not train the step, such as that of --eval-first; in ascending order of steps.
  std::vector<StepMetrics> evaluations = {};
  bool is_cut_short = false;  // whether the last line is incomplete, because the run is writing it or has crashed
};

// Reads the metrics.jsonl of a run. `path` is the folder of the run or the file. If the file contains a step twice, a
// resumed run has repeated the step. The later line then replaces the earlier line and all lines between the two.
// Throws InputError if the file does not exist, cannot be read, or has a damaged line before its last line.
PlottedRun read_plotted_run(const std::filesystem::path& path);

}  // namespace tessera::telemetry
