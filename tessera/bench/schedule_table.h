// The benchmark `schedule`: link speeds x budgets, what was predicted beside what was measured.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/bench/model_steps.h"
#include "tessera/bench/schedule_run.h"

namespace tessera::bench {

struct ScheduleBench {
  run::TrainConfig config;  // resolved for a plan
  models::ModelConfigPtr model;
  predict::Machine machine;  // its operators' times; its links are not used
  std::int64_t coalesce_bytes = std::int64_t{1} << 20;
  bool real = false;  // sleep instead of counting time
};

struct ScheduleRow {
  comm::Link link;
  std::string budget;  // "minimum", "2 x minimum", "chosen", "unlimited"
  std::int64_t arena_bytes = 0;
  double step_predicted = 0, step_measured = 0;  // seconds, all of them
  double exposed_predicted = 0, exposed_measured = 0;
  double on_demand = 0;  // measured
  // No step with this link is shorter. Known where the tp ranks' parts are alike (TimedModel).
  std::optional<double> longest_path;

  // The measured step divided by it.
  std::optional<double> ratio() const {
    return longest_path ? std::optional(step_measured / *longest_path) : std::nullopt;
  }
};

// Links with which the weights of a microbatch's forward take 0.1, 0.5, 1 and 2 times as long to gather as it computes,
// and one with half of that as latency and half for the bytes. Errors (InputError): a gtp below 2, rows by index.
std::vector<ScheduleRow> schedule_rows(const ScheduleBench& bench);

// What is not known is "-" in the text and null in JSON.
std::string schedule_text(const ScheduleBench& bench, const std::vector<ScheduleRow>& rows);
nlohmann::ordered_json schedule_json(const ScheduleBench& bench, const std::vector<ScheduleRow>& rows);

}  // namespace tessera::bench
