// The table of the benchmark `schedule` holds every link and budget, and what it prints is what it measured.
#include "tessera/bench/schedule_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"

namespace tessera::bench {
namespace {

TEST(ScheduleTable, HoldsEveryLinkAndBudget) {
  const ScheduleBench bench{.layers = 4, .layer = {.weight_bytes = 8192}, .degrees = {.gtp = 2}, .microbatches = 2};
  const std::vector<ScheduleRow> rows = schedule_rows(bench);
  std::set<std::string> budgets;
  std::set<std::pair<double, double>> links;
  for (const ScheduleRow& row : rows) {
    budgets.insert(row.budget);
    links.emplace(row.link.latency_s, row.link.bytes_per_second);
    EXPECT_NEAR(row.step_measured, row.step_predicted, 1e-9 * row.step_measured);
    EXPECT_GE(row.ratio(), 1 - 1e-9);
    EXPECT_LT(row.step_measured, row.on_demand);
    EXPECT_GT(row.arena_bytes, 0);
  }
  EXPECT_EQ(rows.size(), budgets.size() * links.size());
  EXPECT_GE(links.size(), 4u);

  const nlohmann::ordered_json json = schedule_json(bench, rows);
  ASSERT_EQ(json.at("rows").size(), rows.size());
  EXPECT_EQ(json.at("rows").back().at("step_measured_s"), rows.back().step_measured);
  const std::string text = schedule_text(bench, rows);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(text, '\n')), rows.size() + 4);  // a line on top, two of heads
}

TEST(ScheduleTable, RefusesWhatCannotRun) {
  EXPECT_THROW(schedule_rows({.layers = 0}), InputError);
  EXPECT_THROW(schedule_rows({.layer = {.weight_bytes = 0}}), InputError);
  EXPECT_THROW(schedule_rows({.degrees = {.gtp = 1}}), InputError);
  EXPECT_THROW(schedule_rows({.layer = {.forward_seconds = 0}}), InputError);
}

}  // namespace
}  // namespace tessera::bench
