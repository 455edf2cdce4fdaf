// Checks that the benchmark `schedule` lists every link and budget and prints its measurements.
#include "tessera/bench/schedule_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"
#include "tessera/plan/search/plan_flags.h"

namespace tessera::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Settings = std::map<std::string, std::vector<std::string>, std::less<>>;

ScheduleBench bench_of(Settings settings) {
  settings.merge(Settings{{"model", {"llama-tiny-odd"}}, {"seq_len", {"16"}}, {"gtp", {"2"}}, {"coalesce", {"1"}}});
  const plan::PlanCommandInputs task = plan::plan_command_inputs({.settings = settings}, TESSERA_CONFIGS);
  return {.run = task.request.run, .machine = task.request.machine, .coalesce_bytes = task.request.coalesce_bytes};
}

// Returns whether the tp ranks' parts are equal. The sizes of llama-tiny give equal parts.
bool are_ranks_equal(const ScheduleBench& bench) {
  return (bench.run->mesh.tp == 1 && bench.run->mesh.ep == 1) || bench.run->model == "llama-tiny";
}

// On the virtual clock, a model's step takes the simulated time, up to the rounding of sums, if the tp ranks' parts are
// equal. Otherwise the times differ slightly, since the prediction uses the largest part for all ranks, and one group
// for weights whose parts overlap. The prediction does not determine the slowest rank, so no longest path is given.
class ScheduleTable : public ::testing::TestWithParam<std::pair<const char*, Settings>> {};

TEST_P(ScheduleTable, ListsEveryLinkAndBudget) {
  const ScheduleBench bench = bench_of(GetParam().second);
  const std::vector<ScheduleRow> rows = schedule_rows(bench);
  const double near = are_ranks_equal(bench) ? 1e-9 : 0.05;
  std::set<std::string> budgets;
  std::set<std::pair<double, double>> links;
  for (const ScheduleRow& row : rows) {
    budgets.insert(row.budget);
    links.emplace(row.link.latency_s, row.link.bytes_per_second);
    EXPECT_NEAR(row.step_measured, row.step_predicted, near * row.step_measured) << row.budget;
    EXPECT_NEAR(row.exposed_measured, row.exposed_predicted, near * row.step_measured) << row.budget;
    EXPECT_EQ(row.longest_path.has_value(), are_ranks_equal(bench));
    EXPECT_GE(row.ratio().value_or(1), 1 - near);
    EXPECT_LT(row.step_measured, row.on_demand);
    EXPECT_GT(row.arena_bytes, 0);
  }
  EXPECT_EQ(rows.size(), budgets.size() * links.size());
  EXPECT_GE(links.size(), 4u);

  const nlohmann::ordered_json json = schedule_json(bench, rows);
  ASSERT_EQ(json.at("rows").size(), rows.size());
  EXPECT_EQ(json.at("rows").back().at("step_measured_s"), rows.back().step_measured);
  EXPECT_EQ(json.at("rows").back().at("step_over_longest_path").is_null(), !are_ranks_equal(bench));
  const std::string text = schedule_text(bench, rows);
  EXPECT_EQ(text.ends_with("       -      -\n"), !are_ranks_equal(bench));
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(text, '\n')),
            rows.size() + 4);  // a title line and two header lines
}

INSTANTIATE_TEST_SUITE_P(
    Models, ScheduleTable,
    ::testing::Values(
        std::pair("one_microbatch", Settings{}), std::pair("microbatches", Settings{{"global_batch", {"6"}}}),
        std::pair("gtp3", Settings{{"gtp", {"3"}}}), std::pair("replicas", Settings{{"dp", {"2"}}, {"zero", {"off"}}}),
        std::pair("split_states", Settings{{"dp", {"2"}}, {"zero", {"on"}}}),
        std::pair("recompute", Settings{{"recompute", {"full"}}}),
        std::pair("egtp", Settings{{"model", {"mixtral-tiny-odd"}}, {"gtp", {"4"}}, {"egtp", {"4"}}}),
        std::pair("edp", Settings{{"model", {"mixtral-tiny-odd"}}, {"gtp", {"4"}}, {"egtp", {"2"}}}),
        std::pair("owners", Settings{{"model", {"mixtral-tiny-odd"}}, {"gtp", {"4"}}, {"ep", {"2"}}, {"egtp", {"2"}}}),
        std::pair("heads", Settings{{"model", {"qwen3-tiny-odd"}}}),
        std::pair("tp", Settings{{"tp", {"2"}}, {"sequence_parallel", {"off"}}}),
        std::pair("even_tp", Settings{{"model", {"llama-tiny"}}, {"tp", {"2"}}, {"sequence_parallel", {"off"}}}),
        std::pair("even_tokens",
                  Settings{{"model", {"llama-tiny"}}, {"tp", {"2"}}, {"gtp", {"4"}}, {"sequence_parallel", {"on"}}}),
        std::pair("even_pieces", Settings{{"model", {"llama-tiny"}},
                                          {"tp", {"2"}},
                                          {"sequence_parallel", {"on"}},
                                          {"tp_chunks", {"2"}},
                                          {"tp_overlap", {"on"}}}),
        std::pair(
            "even_tp_odd_tokens",
            Settings{{"model", {"llama-tiny"}}, {"seq_len", {"31"}}, {"tp", {"2"}}, {"sequence_parallel", {"off"}}}),
        std::pair("even_sums_together", Settings{{"model", {"llama-tiny"}},
                                                 {"dtype", {"bf16"}},
                                                 {"coalesce", {"1MB"}},
                                                 {"tp", {"2"}},
                                                 {"sequence_parallel", {"on"}}}),
        std::pair("overlaps", Settings{{"model", {"qwen3-tiny-odd"}},
                                       {"seq_len", {"32"}},
                                       {"tp", {"2"}},
                                       {"gtp", {"3"}},
                                       {"sequence_parallel", {"on"}},
                                       {"recompute", {"full"}}})),
    [](const auto& info) { return std::string(info.param.first); });

TEST(ScheduleTable, RefusesInvalidOptions) {
  EXPECT_THAT(
      [&] {
        schedule_rows(bench_of({{"gtp", {"1"}}}));
      },
      ThrowsMessage<InputError>(HasSubstr("--gtp: got 1, expected 2 or more")));
  EXPECT_THAT(
      [&] {
        schedule_rows(bench_of({{"embedding", {"rows"}}}));
      },
      ThrowsMessage<InputError>(HasSubstr("--embedding: got rows, expected auto or gather")));
}

}  // namespace
}  // namespace tessera::bench
