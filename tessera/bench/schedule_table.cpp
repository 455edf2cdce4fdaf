#include "tessera/bench/schedule_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::bench {
namespace {

std::vector<comm::Link> links_of(const ScheduleBench& bench) {
  const auto bytes = static_cast<double>(bench.layer.weight_bytes) / bench.degrees.tp;
  const double received = bytes * (bench.degrees.gtp - 1) / bench.degrees.gtp, forward = bench.layer.forward_seconds;
  std::vector<comm::Link> links;
  for (const double share : {0.1, 0.5, 1.0, 2.0}) links.push_back({.bytes_per_second = received / (share * forward)});
  links.push_back({.latency_s = 0.5 * forward, .bytes_per_second = received / (0.5 * forward)});
  return links;
}

void check(const ScheduleBench& bench) {
  const auto at_least_one = [](const char* what, int value) {
    if (value < 1) throw InputError("{}: expected 1 or more, got {}", what, value);
  };
  at_least_one("layers", bench.layers);
  at_least_one("microbatches", bench.microbatches);
  at_least_one("tp", bench.degrees.tp);
  at_least_one("dp", bench.degrees.dp);
  if (bench.degrees.gtp < 2)
    throw InputError("gtp: expected 2 or more, else no weight moves, got {}", bench.degrees.gtp);
  if (bench.layer.weight_bytes < 1)
    throw InputError("weight bytes: expected 1 or more, got {}", bench.layer.weight_bytes);
  if (!(bench.layer.forward_seconds > 0))
    throw InputError("forward: expected more than 0 s, got {}", bench.layer.forward_seconds);
}

std::string link_text(const comm::Link& link) {
  std::string text = fmt::format("{:.0f} MB/s", link.bytes_per_second / 1e6);
  return link.latency_s > 0 ? text + fmt::format(" + {:.2f} ms", link.latency_s * 1e3) : text;
}

}  // namespace

std::vector<ScheduleRow> schedule_rows(const ScheduleBench& bench) {
  check(bench);
  ScheduleRun run{.degrees = bench.degrees, .microbatches = bench.microbatches, .real = bench.real};
  run.model.layers.assign(static_cast<std::size_t>(bench.layers), bench.layer);
  run.model.tied = bench.tied;
  std::vector<ScheduleRow> rows;
  for (const comm::Link& link : links_of(bench)) {
    run.link = link;
    run.options.scheduled = false;
    const ScheduleTimes on_demand = measure_schedule(run);
    run.options.scheduled = true;
    for (const Budgets& budget : budgets_of(on_demand)) {
      run.options.gather_budget = budget.gather;
      run.options.reduce_budget = budget.reduce;
      const ScheduleTimes times = measure_schedule(run);
      rows.push_back({.link = link,
                      .budget = budget.name,
                      .arena_bytes = times.arena_bytes(),
                      .step_predicted = times.predicted.step_seconds,
                      .step_measured = times.step_seconds,
                      .exposed_predicted = times.predicted.exposed_seconds(),
                      .exposed_measured = times.exposed_seconds,
                      .on_demand = on_demand.step_seconds,
                      .longest_path = times.longest_path_seconds});
    }
  }
  return rows;
}

std::string schedule_text(const ScheduleBench& bench, const std::vector<ScheduleRow>& rows) {
  std::string text = fmt::format(
      "{} layers of {} bytes and {:.3f} ms forward, {} microbatches, tp {} x gtp {} x dp {}, {} time; ms\n\n"
      "{:>20} {:12} {:>10} {:>18} {:>18} {:>10} {:>8} {:>6}\n{:>20} {:12} {:>10} {:>9}{:>9} {:>9}{:>9} {:>10} {:>8} "
      "{:>6}\n",
      bench.layers, bench.layer.weight_bytes, bench.layer.forward_seconds * 1e3, bench.microbatches, bench.degrees.tp,
      bench.degrees.gtp, bench.degrees.dp, bench.real ? "real" : "virtual", "", "", "arenas", "step", "exposed",
      "step on", "longest", "step /", "link", "budget", "KiB", "predicted", "measured", "predicted", "measured",
      "demand", "path", "path");
  for (const ScheduleRow& row : rows)
    text += fmt::format("{:>20} {:12} {:>10} {:>9.3f}{:>9.3f} {:>9.3f}{:>9.3f} {:>10.3f} {:>8.3f} {:>6.3f}\n",
                        link_text(row.link), row.budget, row.arena_bytes / 1024, row.step_predicted * 1e3,
                        row.step_measured * 1e3, row.exposed_predicted * 1e3, row.exposed_measured * 1e3,
                        row.on_demand * 1e3, row.longest_path * 1e3, row.ratio());
  return text;
}

nlohmann::ordered_json schedule_json(const ScheduleBench& bench, const std::vector<ScheduleRow>& rows) {
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const ScheduleRow& row : rows)
    table.push_back({{"bytes_per_second", row.link.bytes_per_second},
                     {"latency_s", row.link.latency_s},
                     {"budget", row.budget},
                     {"arena_bytes", row.arena_bytes},
                     {"step_predicted_s", row.step_predicted},
                     {"step_measured_s", row.step_measured},
                     {"exposed_predicted_s", row.exposed_predicted},
                     {"exposed_measured_s", row.exposed_measured},
                     {"on_demand_measured_s", row.on_demand},
                     {"longest_path_s", row.longest_path},
                     {"step_over_longest_path", row.ratio()}});
  return {{"benchmark", "schedule"},
          {"time", bench.real ? "real" : "virtual"},
          {"layers", bench.layers},
          {"weight_bytes", bench.layer.weight_bytes},
          {"forward_s", bench.layer.forward_seconds},
          {"update_s", bench.layer.update_seconds},
          {"tied", bench.tied},
          {"tp", bench.degrees.tp},
          {"gtp", bench.degrees.gtp},
          {"dp", bench.degrees.dp},
          {"microbatches", bench.microbatches},
          {"rows", table}};
}

}  // namespace tessera::bench
