// The benchmark `schedule`: predicted and measured step times for combinations of link speeds and budgets.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/bench/model_steps.h"
#include "tessera/bench/schedule_run.h"

namespace tessera::bench {

struct ScheduleBench {
  settings::ResolvedRun run;
  predict::Machine machine;  // gives the times of the operators; its links are not used
  std::int64_t coalesce_bytes = std::int64_t{1} << 20;
  bool real = false;  // true: steps sleep; false: time is virtual
};

struct ScheduleRow {
  comm::Link link;
  std::string budget;  // "minimum", "2 x minimum", "chosen", "unlimited"
  std::int64_t arena_bytes = 0;
  double step_predicted = 0, step_measured = 0;  // in seconds, as all times below
  double exposed_predicted = 0, exposed_measured = 0;
  double on_demand = 0;  // measured step time without a schedule
  // Lower bound of the step time with this link. Nullopt if the tp ranks have unequal parts (TimedModel::equal_ranks).
  std::optional<double> longest_path;

  // Returns the measured step time divided by longest_path.
  std::optional<double> ratio() const {
    return longest_path ? std::optional(step_measured / *longest_path) : std::nullopt;
  }
};

// Measures five links. On the first four links, gathering all weights takes 0.1, 0.5, 1 and 2 times as long as the
// forward pass of a microbatch. On the fifth link, half of the gather time is latency and half depends on the bytes.
// Throws InputError for a gtp below 2 or for rows by index.
std::vector<ScheduleRow> schedule_rows(const ScheduleBench& bench);

// An unknown value is "-" in the text and null in JSON.
std::string schedule_text(const ScheduleBench& bench, const std::vector<ScheduleRow>& rows);
nlohmann::ordered_json schedule_json(const ScheduleBench& bench, const std::vector<ScheduleRow>& rows);

}  // namespace tessera::bench
