#include "tessera/telemetry/plot/plotted_run.h"

#include <fmt/format.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"

namespace tessera::telemetry {

PlottedRun read_plotted_run(const std::filesystem::path& path) {
  const std::filesystem::path file =
      std::filesystem::is_directory(path) ? std::filesystem::path(path) / kMetricsFile : std::filesystem::path(path);
  if (!std::filesystem::is_regular_file(file))
    throw InputError("'{}' is not a run: expected a folder with metrics.jsonl, or such a file", path.string());
  std::ifstream input(file, std::ios::binary);
  if (!input) throw InputError("'{}' cannot be read", file.string());
  PlottedRun run{.name = path.string()};
  std::string line;
  for (std::int64_t number = 1; std::getline(input, line); ++number) {
    if (input.eof() && !base::is_json(line)) {
      run.is_cut_short = true;
      break;
    }
    StepMetrics metrics = parse_metrics_line(line, fmt::format("{}:{}", file.string(), number));
    const auto drop_from = [&](std::vector<StepMetrics>& list) {
      while (!list.empty() && list.back().step >= metrics.step) list.pop_back();
    };
    drop_from(run.evaluations);
    if (metrics.trained) drop_from(run.steps);
    (metrics.trained ? run.steps : run.evaluations).push_back(std::move(metrics));
  }
  return run;
}

}  // namespace tessera::telemetry
