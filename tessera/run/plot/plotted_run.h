// The steps of a run, as `tessera plot` shows them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/run/metrics/metrics.h"

namespace tessera::run {

struct PlottedRun {
  std::string name;                // the path that the user gave
  std::vector<StepMetrics> steps;  // in ascending order; may be empty
  bool is_cut_short = false;  // whether the last line is incomplete, because the run is writing the line or has crashed
};

// Reads metrics.jsonl. path: the folder of a run, or the file. If a step is in the file twice, the later line counts,
// and lines between the two are dropped: a resumed run has replaced them. Throws InputError if the file does not exist,
// cannot be read, or has a damaged line before its last line.
PlottedRun read_plotted_run(const std::filesystem::path& path);

}  // namespace tessera::run
