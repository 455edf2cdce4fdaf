// Tests the rows of metrics: lines, sums over ranks, medians and the summary.
#include "tessera/telemetry/metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "tessera/comm/local/world.h"
#include "tessera/telemetry/metric_summary.h"
#include "tessera/telemetry/metrics.h"
#include "tessera/telemetry/tensorboard.h"
#include "tessera/telemetry/traffic_sum.h"
#include "tessera/train/trainer.h"

namespace tessera::telemetry {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

StepMetrics with_all_keys() {
  StepMetrics step{.step = 2, .loss = 2.5, .grad_norm = 0.5, .lr = 0.25, .tokens = 12, .tokens_per_second = 3};
  step.step_ms = 4, step.exposed_comm_ms = 5, step.exposed_tp_ms = 1, step.exposed_weights_ms = 4;
  step.gathered_bytes = 30, step.reduced_bytes = 7, step.mfu = 0.5, step.valid_losses = {{"", 2}, {"code", 3}};
  step.gathered_by_format = {10, 20}, step.flops_by_format = {1, 2}, step.activations_by_format = {5};
  step.decoded_flops = {0, 2};
  step.aux_loss = 0.125, step.z_loss = 0.25, step.expert_load = 1.5, step.expert_dropped = 3;
  step.expert_counts = {{1, 2}, {3, 0}};
  step.slowest_rank = 1, step.slowest_rank_wait_ms = 0.5;
  step.gpu_clock_mhz = 1755, step.gpu_power_w = 600, step.gpu_errors = 0;
  step.skipped = true, step.suppressed = 1;
  return step;
}

TEST(MetricRows, GiveALineWithAllKeysThatReadsBack) {
  const std::string line = metrics_line(with_all_keys());
  EXPECT_EQ(
      line,
      R"({"step": 2, "loss": 2.5, "grad_norm": 0.5, "lr": 0.25, "tokens": 12, "tokens_per_second": 3.0, )"
      R"("step_ms": 4.0, "exposed_comm_ms": 5.0, "gathered_bytes": 30, "reduced_bytes": 7, "mfu": 0.5, )"
      R"("exposed_tp_ms": 1.0, "valid_loss": 2.0, "valid_loss/code": 3.0, "aux_loss": 0.125, "z_loss": 0.25, )"
      R"("expert_load": 1.5, "expert_dropped": 3, "expert_counts": [[1,2],[3,0]], "slowest_rank": 1, "slowest_rank_wait_ms": 0.5, )"
      R"("gpu_clock_mhz": 1755.0, "gpu_power_w": 600.0, "gpu_errors": 0, "skipped": true, "suppressed": 1, )"
      R"("gathered_by_format": {"bf16":10,"fp8":20}, "flops_by_format": {"bf16":1.0,"fp8":2.0}, )"
      R"("activations_by_format": {"bf16":5}})"
      "\n");
  EXPECT_EQ(metrics_line(parse_metrics_line(line, "m")), line);
}

TEST(MetricRows, AreInALineThoughTheyAreZeroOnlyIfEveryStepHasThem) {
  EXPECT_EQ(metrics_line({}),
            R"({"step": 0, "loss": 0.0, "grad_norm": 0.0, "lr": 0.0, "tokens": 0, "tokens_per_second": 0.0, )"
            R"("step_ms": 0.0, "exposed_comm_ms": 0.0, "gathered_bytes": 0, "reduced_bytes": 0, "mfu": null})"
            "\n");
}

// An evaluation before the first step of a process has a line of its own.
TEST(MetricRows, OfAnEvaluationAreItsStepAndItsLosses) {
  const StepMetrics evaluation{.step = 0, .trained = false, .valid_losses = {{"", 2}, {"a.b-c", kNan}}};
  const std::string line = metrics_line(evaluation);
  EXPECT_EQ(line, "{\"step\": 0, \"valid_loss\": 2.0, \"valid_loss/a.b-c\": \"NaN\"}\n");
  EXPECT_FALSE(parse_metrics_line(line, "m").trained);
  EXPECT_EQ(metrics_line(parse_metrics_line(line, "m")), line);
  const Scalars scalars = scalars_of(evaluation);
  EXPECT_EQ(scalars.size(), 2u);
  EXPECT_EQ(scalars.front(), (std::pair<std::string, double>{"valid_loss", 2.0}));
  MetricSummary summary;
  summary.add(evaluation);
  nlohmann::ordered_json json;
  summary.add_to(json);
  EXPECT_EQ(json["valid_loss"], 2.0);
  EXPECT_FALSE(json.contains("loss"));
  EXPECT_TRUE(json["tokens_per_second"].is_null());
  for (const char* other : {R"({"step": 3})", R"({"step": 3, "valid_loss": 2.0, "lr": 1.0})", R"({"valid_loss": 2.0})",
                            R"({"step": 3, "valid_loss/": 2.0})", R"({"step": 3, "valid_losses": 2.0})"})
    EXPECT_ANY_THROW(parse_metrics_line(other, "m")) << other;
}

TEST(MetricRows, HaveDifferentKeysAndMembers) {
  std::set<std::string_view> keys;
  for (const Metric& metric : metric_rows()) {
    EXPECT_TRUE(keys.insert(metric.key).second) << metric.key;
    for (const Metric& other : metric_rows())
      EXPECT_EQ(other.member == metric.member, other.key == metric.key) << metric.key << ", " << other.key;
  }
}

// The rows of a member state from where it is taken.
TEST(MetricRows, TakeTheirValuesFromTheResultOfAStep) {
  train::StepResult result;
  result.loss = 1, result.grad_norm = 2, result.seconds = 0.003, result.skipped = true;
  runtime::StepStatistics& statistics = result.statistics;
  statistics.gathered_bytes = 4, statistics.reduced_bytes = 5;
  statistics.gathered_by_format = {6}, statistics.flops_by_format = {7}, statistics.activations_by_format = {8};
  statistics.decoded_flops = {9};
  statistics.exposed_seconds = 0.011, statistics.exposed_tp_seconds = 0.001;
  StepMetrics step;
  take(result, step);
  EXPECT_EQ(std::tuple(step.loss, step.grad_norm, step.step_ms, step.skipped), std::tuple(1, 2, 3, true));
  EXPECT_EQ(std::tuple(step.gathered_bytes, step.reduced_bytes), std::tuple(4, 5));
  EXPECT_EQ(step.gathered_by_format[0], 6);
  EXPECT_EQ(step.flops_by_format[0], 7);
  EXPECT_EQ(step.decoded_flops[0], 9);
  EXPECT_EQ(step.activations_by_format[0], 8);
  EXPECT_DOUBLE_EQ(step.exposed_comm_ms, 11);
  EXPECT_DOUBLE_EQ(step.exposed_tp_ms.value(), 1);
  EXPECT_DOUBLE_EQ(step.exposed_weights_ms.value(), 10);
  statistics.activations_by_format = {};
  take(result, step);
  EXPECT_FALSE(step.exposed_tp_ms || step.exposed_weights_ms);
}

TEST(MetricRows, AreSentToTensorBoardAndThePlot) {
  std::vector<std::string> tags, titles;
  for (const auto& [tag, value] : scalars_of(with_all_keys())) tags.push_back(tag);
  EXPECT_THAT(tags, ::testing::ElementsAre("loss", "grad_norm", "lr", "tokens_per_second", "step_ms", "exposed_comm_ms",
                                           "gathered_bytes", "reduced_bytes", "mfu", "exposed_tp_ms", "valid_loss",
                                           "valid_loss/code", "gpu_clock_mhz", "gpu_power_w", "gpu_errors"));
  for (const Metric& metric : metric_rows())
    if (!metric.panel.empty()) titles.emplace_back(metric.panel);
  EXPECT_THAT(titles, ::testing::ElementsAre("loss (nats a token)", "grad_norm", "lr", "tokens_per_second"));
}

TEST(MetricRows, LeaveOutFlopsOfOneFormatOnly) {
  StepMetrics step = with_all_keys();
  step.flops_by_format = {3};
  EXPECT_THAT(metrics_line(step), ::testing::Not(::testing::HasSubstr("flops_by_format")));
}

TEST(ProductsByKernel, NameTheProductsThatAreEmulated) {
  StepMetrics totals;
  totals.flops_by_format = {1, 2, 0, 4, 8};
  totals.decoded_flops = {0, 0.5, 0, 4, 8};
  EXPECT_EQ(products_by_kernel(totals, quant::DType::bf16).dump(),
            R"([{"format":"bf16","kernel":"native","flops":1.0},{"format":"fp8","kernel":"native","flops":1.5},)"
            R"({"format":"fp8","kernel":"decoded","flops":0.5},{"format":"mxfp8","kernel":"decoded","flops":4.0},)"
            R"({"format":"nvfp4","kernel":"decoded","flops":8.0}])");
}

// Rank r receives 100 * (r + 1) bytes. Only rank 1 exchanges activations.
TEST(MetricRows, AreCombinedOverTheRanks) {
  comm::run_local(3, {}, [](comm::World& world) {
    const auto all = world.make_group("all", {{0, 1, 2}});
    train::StepResult result;
    result.loss = 2;
    result.statistics.exposed_seconds = 1e-3 * (world.rank() + 1);
    result.statistics.exposed_tp_seconds = world.rank() == 1 ? 1.5e-3 : 0;
    result.statistics.count_gathered(quant::Format::fp8, std::int64_t{100} * (world.rank() + 1));
    result.statistics.reduced_bytes = 10;
    result.statistics.flops_by_format[2] = 5;
    if (world.rank() == 1) result.statistics.activations_by_format[0] = 7;
    StepMetrics own;
    take(result, own);
    TrafficSum sum;
    sum.start(own, {.stop = world.rank() == 2, .save = world.rank() == 0}, std::nullopt, *all);
    StepMetrics step = own;
    sum.finish(step);
    EXPECT_TRUE(sum.requests().stop && sum.requests().save);
    EXPECT_EQ(step.loss, 2);
    EXPECT_DOUBLE_EQ(step.exposed_comm_ms, 2);
    EXPECT_DOUBLE_EQ(step.exposed_tp_ms.value(), 0.5);
    EXPECT_DOUBLE_EQ(step.exposed_weights_ms.value(), 0.5 / 3);
    EXPECT_EQ(std::tuple(step.gathered_bytes, step.reduced_bytes), std::tuple(600, 30));
    EXPECT_EQ(step.flops_by_format[2], 15);
    EXPECT_EQ(step.gathered_by_format[static_cast<std::size_t>(quant::Format::fp8)], 600);
    EXPECT_EQ(step.activations_by_format[0], 7);
    EXPECT_EQ(step.slowest_rank, 0);
    std::vector<StepMetrics> steps{own, own};
    combine_over_ranks(steps, *all);
    for (const StepMetrics& again : steps) {
      EXPECT_EQ(again.gathered_bytes, 600);
      EXPECT_EQ(again.exposed_tp_ms, step.exposed_tp_ms);
    }
    own.exposed_tp_ms.reset();
    sum.start(own, {.save = world.rank() == 1}, std::nullopt, *all);
    sum.finish(own);
    EXPECT_FALSE(own.exposed_tp_ms);
    EXPECT_EQ(std::pair(sum.requests().stop, sum.requests().save), std::pair(false, true));
  });
}

// The values of rank r are those of rank 0, multiplied by r + 1.
TEST(MetricRows, StateHowTheValuesOfTheRanksAreCombined) {
  const auto multiplied = [](double factor) {
    StepMetrics step = with_all_keys();
    step.gpu_errors = 2;
    for (const Metric& metric : metric_rows()) each_number(metric, step, [&](double& value) { value *= factor; });
    return step;
  };
  const std::set<std::string_view> means{"exposed_comm_ms", "exposed_tp_ms", "exposed_weights_ms"},
      sums{"gathered_bytes",  "reduced_bytes", "gathered_by_format",
           "flops_by_format", "decoded_flops", "activations_by_format"};
  comm::run_local(3, {}, [&](comm::World& world) {
    const auto all = world.make_group("all", {{0, 1, 2}});
    const double own = world.rank() + 1;
    std::vector<StepMetrics> steps{multiplied(own)};
    combine_over_ranks(steps, *all);
    for (const Metric& metric : metric_rows()) {
      const double factor = means.contains(metric.key) ? 2 : sums.contains(metric.key) ? 6 : own;
      EXPECT_EQ(json_of(metric, steps[0], {}), json_of(metric, multiplied(factor), {})) << metric.key;
    }
  });
}

TEST(MetricSummary, HasLastValuesMediansAndTotals) {
  MetricSummary summary;
  nlohmann::ordered_json empty, json;
  summary.add_to(empty);
  EXPECT_EQ(empty, nlohmann::ordered_json::parse(R"({"tokens_per_second": null, "mfu": null})"));
  for (const double tp : {3.0, kNan, 1.0, 2.0}) {
    StepMetrics step = with_all_keys();
    step.loss = tp, step.tokens_per_second = 10 * tp, step.exposed_tp_ms = tp, step.exposed_weights_ms = 3 * tp;
    if (tp != 3) step.valid_losses.clear();
    step.gathered_by_format[0] = std::int64_t{1} << 60;
    summary.add(step);
  }
  summary.add_to(json);
  EXPECT_EQ(json.dump(), R"({"loss":2.0,"valid_loss":2.0,"valid_loss/code":3.0,"tokens_per_second":20.0,"mfu":0.5})");
  EXPECT_EQ(summary.medians().exposed_tp_ms, 2);
  EXPECT_EQ(summary.totals().gathered_by_format[0], std::int64_t{1} << 62);
  EXPECT_EQ(summary.medians().exposed_weights_ms, 6);
  EXPECT_EQ(summary.totals().flops_by_format[1], 8);
  EXPECT_EQ(summary.totals().activations_by_format[0], 20);
  const std::vector<StepMetrics> unset(2, {.step = 3, .exposed_comm_ms = kNan});
  EXPECT_TRUE(std::isnan(medians_of(unset).exposed_comm_ms));
  EXPECT_FALSE(medians_of(unset).exposed_tp_ms);
  EXPECT_EQ(medians_of(unset).step, 3);
}

TEST(Fallbacks, AreListedByReason) {
  EXPECT_EQ(by_reason({}).dump(), "{}");
  EXPECT_EQ(by_reason({0, 2, 1}).dump(), R"({"both_sides":2,"transform":1})");
}

}  // namespace
}  // namespace tessera::telemetry
