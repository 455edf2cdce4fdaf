#include "tessera/bench/schedule_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::bench {
namespace {

std::vector<comm::Link> links_of(const TimedModel& model) {
  double received = 0, gathers = 0;
  for (const schedule::Event& event : model.step.microbatch) {
    if (event.kind != schedule::EventKind::consume || event.pass != schedule::Pass::forward) continue;
    const std::int64_t bytes = total_bytes(model.parameters[static_cast<std::size_t>(event.parameter)].size.gather);
    received += static_cast<double>(bytes);
    gathers += bytes > 0 ? 1 : 0;
  }
  const double forward = model.forward_seconds();
  std::vector<comm::Link> links;
  for (const double share : {0.1, 0.5, 1.0, 2.0}) links.push_back({.bytes_per_second = received / (share * forward)});
  links.push_back({.latency_s = 0.5 * forward / gathers, .bytes_per_second = received / (0.5 * forward)});
  return links;
}

void check(const ScheduleBench& bench) {
  if (bench.run->mesh.gtp < 2)
    throw InputError("--gtp: got {}, expected 2 or more, since weights move only over gtp", bench.run->mesh.gtp);
  if (bench.run->embedding == shard::Lookup::rows)
    throw InputError(
        "--embedding: got rows, expected auto or gather: without tokens, the rows that a step reads are unknown");
}

std::string link_text(const comm::Link& link) {
  std::string text = fmt::format("{:.0f} MB/s", link.bytes_per_second / 1e6);
  return link.latency_s > 0 ? text + fmt::format(" + {:.2f} ms", link.latency_s * 1e3) : text;
}

std::string number_text(const std::optional<double>& number, double scale = 1) {
  return number ? fmt::format("{:.3f}", *number * scale) : "-";
}
nlohmann::ordered_json number_json(const std::optional<double>& number) {
  return number ? nlohmann::ordered_json(*number) : nlohmann::ordered_json();
}

}  // namespace

std::vector<ScheduleRow> schedule_rows(const ScheduleBench& bench) {
  check(bench);
  const TimedModel model = timed_model(bench.run.with_lookup(shard::Lookup::gather), bench.machine);
  ScheduleRun run{
      .steps = steps_of(model), .degrees = bench.run.degrees(), .microbatches = model.microbatches, .real = bench.real};
  run.options = model.options.step.runtime;
  run.options.coalesce_bytes = bench.coalesce_bytes;
  std::vector<ScheduleRow> rows;
  for (const comm::Link& link : links_of(model)) {
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
                      .longest_path = model.equal_ranks ? std::optional(times.longest_path_seconds) : std::nullopt});
    }
  }
  return rows;
}

std::string schedule_text(const ScheduleBench& bench, const std::vector<ScheduleRow>& rows) {
  const settings::ResolvedRun& run = bench.run;
  std::string text = fmt::format(
      "{}, {} microbatches of {} x {} tokens a rank, {}, compute of '{}', {} time; ms\n\n"
      "{:>20} {:12} {:>10} {:>18} {:>18} {:>10} {:>8} {:>6}\n{:>20} {:12} {:>10} {:>9}{:>9} {:>9}{:>9} {:>10} {:>8} "
      "{:>6}\n",
      run->model, run.microbatches(), run->micro_batch, run->seq_len, run.mesh().text, bench.machine.name,
      bench.real ? "real" : "virtual", "", "", "arenas", "step", "exposed", "step on", "longest", "step /", "link",
      "budget", "KiB", "predicted", "measured", "predicted", "measured", "demand", "path", "path");
  for (const ScheduleRow& row : rows)
    text += fmt::format("{:>20} {:12} {:>10} {:>9.3f}{:>9.3f} {:>9.3f}{:>9.3f} {:>10.3f} {:>8} {:>6}\n",
                        link_text(row.link), row.budget, row.arena_bytes / 1024, row.step_predicted * 1e3,
                        row.step_measured * 1e3, row.exposed_predicted * 1e3, row.exposed_measured * 1e3,
                        row.on_demand * 1e3, number_text(row.longest_path, 1e3), number_text(row.ratio()));
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
                     {"longest_path_s", number_json(row.longest_path)},
                     {"step_over_longest_path", number_json(row.ratio())}});
  const settings::ResolvedRun& run = bench.run;
  nlohmann::ordered_json json{{"benchmark", "schedule"},
                              {"time", bench.real ? "real" : "virtual"},
                              {"model", run->model},
                              {"layers", run.model()->sizes().num_layers},
                              {"machine", bench.machine.name}};
  for (const auto& [axis, degree] : settings::axes_of(run.degrees())) json[axis] = degree;
  json.update({{"microbatches", run.microbatches()},
               {"micro_batch", run->micro_batch},
               {"seq_len", run->seq_len},
               {"rows", table}});
  return json;
}

}  // namespace tessera::bench
