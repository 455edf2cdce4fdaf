#include "tessera/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "tessera/telemetry/peak_flops.h"
#include "tessera/telemetry/progress.h"
#include "tessera/telemetry/tensorboard.h"
#include "tests/settings/config_test_support.h"

namespace tessera::telemetry {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

StepMetrics example(std::int64_t step) {
  return {.step = step,
          .loss = 5.25 / static_cast<double>(step),
          .grad_norm = 0.1,
          .lr = 3e-4,
          .tokens = 3072,
          .tokens_per_second = 1e5 / 3,
          .step_ms = 92.0,
          .exposed_comm_ms = 0.0,
          .gathered_bytes = std::int64_t{1} << 60,
          .reduced_bytes = 7,
          .gathered_by_format = {std::int64_t{1} << 60},
          .skipped = false,
          .suppressed = 0};
}

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

TEST(Metrics, LineIsGolden) {
  EXPECT_EQ(
      metrics_line(example(2)),
      "{\"step\": 2, \"loss\": 2.625, \"grad_norm\": 0.1, \"lr\": 3e-04, \"tokens\": 3072, \"tokens_per_second\": "
      "33333.333333333336, \"step_ms\": 92.0, \"exposed_comm_ms\": 0.0, \"gathered_bytes\": 1152921504606846976, "
      "\"reduced_bytes\": 7, \"mfu\": null}\n");
}

TEST(Metrics, HaveTheWaitsForActivationsIfTheRanksExchangeThem) {
  StepMetrics metrics = example(2);
  for (const double waits : {0.0, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    metrics.exposed_tp_ms = waits;
    const std::string line = metrics_line(metrics);
    EXPECT_THAT(line, HasSubstr(fmt::format(", \"exposed_tp_ms\": {}", json_number(waits))));
    EXPECT_TRUE(same_bits(parse_metrics_line(line, "m").exposed_tp_ms.value(), waits));
  }
  EXPECT_FALSE(parse_metrics_line(metrics_line(example(2)), "m").exposed_tp_ms);
}

TEST(Metrics, ListBytesByNumberFormat) {
  StepMetrics metrics = example(2);
  metrics.gathered_by_format = {1000, 0, 0, (std::int64_t{1} << 60) - 1000};
  const std::string line = metrics_line(metrics);
  EXPECT_THAT(line, HasSubstr(", \"gathered_by_format\": {\"bf16\":1000,\"mxfp8\":1152921504606845976}}"));
  EXPECT_EQ(parse_metrics_line(line, "m").gathered_by_format, metrics.gathered_by_format);
  for (const quant::DType dtype : {quant::DType::fp32, quant::DType::fp64}) {
    const std::string of_type = metrics_line(metrics, dtype);
    EXPECT_THAT(of_type, HasSubstr(fmt::format("\"gathered_by_format\": {{\"{}\":1000,", name_of(dtype))));
    EXPECT_EQ(parse_metrics_line(of_type, "m").gathered_by_format, metrics.gathered_by_format);
  }
  EXPECT_EQ(parse_metrics_line(metrics_line(example(2)), "m").gathered_by_format, example(2).gathered_by_format);
  // In text, numbers without a number format have the name of the run's type.
  using quant::DType;
  const std::array<std::int64_t, quant::kFormats> bytes{1'000'000, 0, 0, 3'000'000};
  EXPECT_EQ(format_shares(bytes, 1e-6, "MB", DType::bf16), "4 MB (25.0 % bf16, 75.0 % mxfp8)");
  const std::array<double, quant::kFormats> flops{2.5e12};
  EXPECT_EQ(format_shares(flops, 1e-12, "TFLOP", DType::fp32), "2.5 TFLOP (100.0 % fp32)");
  EXPECT_EQ(format_shares(flops, 1e-12, "TFLOP", DType::fp64), "2.5 TFLOP (100.0 % fp64)");
  EXPECT_EQ(format_shares(std::array<double, quant::kFormats>{}, 1e-12, "TFLOP", DType::fp32), "0 TFLOP");
}

TEST(Metrics, NumbersReadBackToTheSameBits) {
  std::mt19937_64 random(11);
  std::vector<double> values{0.0,
                             -0.0,
                             1.0,
                             -3.0,
                             0.1,
                             1e22,
                             1e23,
                             123456789012345680.0,
                             5e-324,
                             2.2250738585072014e-308,
                             std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity()};
  for (int i = 0; i < 20000; ++i)
    if (const auto value = std::bit_cast<double>(random()); !std::isnan(value)) values.push_back(value);
  for (const double value : values) {
    StepMetrics metrics = example(1);
    metrics.loss = value;
    const std::string line = metrics_line(metrics);
    ASSERT_TRUE(same_bits(parse_metrics_line(line, "m").loss, value)) << line;
    if (std::isfinite(value)) {
      const json number = json::parse(line).at("loss");  // by any reader of JSON
      ASSERT_TRUE(number.is_number_float()) << line;
      ASSERT_TRUE(same_bits(number.get<double>(), value)) << line;
    }
  }
}

TEST(Metrics, ValuesThatAreNotFiniteStayVisible) {
  StepMetrics metrics = example(3);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.skipped = true;
  metrics.valid_losses = {{"", 4.5}};
  const json line = json::parse(metrics_line(metrics));
  EXPECT_EQ(line.at("loss"), "NaN");
  EXPECT_EQ(line.at("skipped"), true);
  EXPECT_EQ(line.at("valid_loss"), 4.5);
  const StepMetrics again = parse_metrics_line(metrics_line(metrics), "m");
  EXPECT_TRUE(std::isnan(again.loss));
  EXPECT_TRUE(again.skipped);
  EXPECT_EQ(again.valid_losses, metrics.valid_losses);
}

TEST(Metrics, CountSuppressedAttempts) {
  StepMetrics metrics = example(3);
  metrics.suppressed = 2;
  EXPECT_THAT(metrics_line(metrics), HasSubstr(", \"suppressed\": 2}"));
  EXPECT_EQ(parse_metrics_line(metrics_line(metrics), "m").suppressed, 2);
  EXPECT_EQ(parse_metrics_line(metrics_line(example(3)), "m").suppressed, 0);
}

TEST(Metrics, OtherLinesAreRefused) {
  for (const char* line : {"", "{", "[]", "3", "{\"step\": 1}", "{\"step\": \"x\"}"})
    EXPECT_THAT(base::refusal([&] { parse_metrics_line(line, "m.jsonl:4"); }), HasSubstr("m.jsonl:4"));
}

std::string lines(std::int64_t first, std::int64_t last) {
  std::string text;
  for (std::int64_t step = first; step <= last; ++step) text += metrics_line(example(step));
  return text;
}

TEST(MetricsFile, GrowsAndContinuesFromACheckpoint) {
  const base::TempFolder folder;
  const auto path = folder / "metrics.jsonl";
  {
    MetricsWriter writer(path, 0);
    for (std::int64_t step = 1; step <= 7; ++step) writer.write(example(step));
  }
  EXPECT_EQ(base::read_text(path), lines(1, 7));
  {
    MetricsWriter writer(path, 5);
    EXPECT_EQ(base::read_text(path), lines(1, 5));
    writer.write(example(6));
  }
  EXPECT_EQ(base::read_text(path), lines(1, 6));
  { MetricsWriter writer(path, 0); }
  EXPECT_EQ(base::read_text(path), "");
}

// A resumed run repeats the evaluation that a stop request had ended.
TEST(MetricsFile, AddsTheLossesOfARepeatedEvaluationToTheLineOfTheStep) {
  const base::TempFolder folder;
  const auto path = folder / "metrics.jsonl";
  StepMetrics evaluated = example(3);
  const StepMetrics evaluation{.step = 3, .trained = false, .valid_losses = {{"", 2}, {"code", 3}}};
  evaluated.valid_losses = evaluation.valid_losses;
  for (const std::int64_t first : {1, 3}) {
    std::ofstream(path) << lines(first, 4);
    MetricsWriter writer(path, 3);
    writer.write(evaluation);
    writer.write(example(4));
    EXPECT_EQ(base::read_text(path), lines(first, 2) + metrics_line(evaluated) + lines(4, 4));
  }
  std::ofstream(path) << lines(1, 2);
  MetricsWriter(path, 3).write(evaluation);
  EXPECT_EQ(base::read_text(path), lines(1, 2) + metrics_line(evaluation));
}

TEST(MetricsFile, DropsALineThatACrashCutShort) {
  const base::TempFolder folder;
  const auto path = folder / "metrics.jsonl";
  const std::string whole = lines(1, 3), last = lines(4, 4);
  for (std::size_t size = 0; size < last.size(); ++size) {
    std::ofstream(path) << whole + last.substr(0, size);
    EXPECT_NO_THROW(check_metrics(path));
    EXPECT_EQ(base::read_text(path), whole + last.substr(0, size)) << "it only looks";
    MetricsWriter writer(path, 9);
    const bool lacks_newline_only = size + 1 == last.size();
    EXPECT_EQ(base::read_text(path), lacks_newline_only ? whole + last : whole) << size;
  }
}

TEST(MetricsFile, RefusesAForeignFile) {
  const base::TempFolder folder;
  const auto path = folder / "metrics.jsonl";
  std::ofstream(path) << lines(1, 1) << "something else\n" << lines(2, 2);
  EXPECT_THAT(base::refusal([&] { MetricsWriter writer(path, 5); }), HasSubstr("metrics.jsonl:2"));
  EXPECT_THAT(base::refusal([&] { check_metrics(path); }), HasSubstr("metrics.jsonl:2"));
  EXPECT_EQ(base::read_text(path), lines(1, 1) + "something else\n" + lines(2, 2));
}

TEST(MetricsFile, AFullDiskIsAnErrorWithTheCause) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  AppendFile file("/dev/full", AppendFile::Open::create_or_append);
  try {
    file.append("x");
    FAIL();
  } catch (const InputError&) {
    FAIL() << "not the user's mistake";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/dev/full"));
    EXPECT_THAT(error.what(), HasSubstr("No space left"));
  }
}

TEST(MetricsFile, InAMissingFolderIsAnError) {
  EXPECT_THAT([&] { MetricsWriter("/nowhere/metrics.jsonl", 0); },
              ThrowsMessage<Error>(HasSubstr("/nowhere/metrics.jsonl")));
}

TEST(Progress, WritesPlainLinesIntoAPipe) {
  std::ostringstream out;
  {
    Progress progress(out, false, 200);
    progress.print("hello");
    progress.step(example(1));
    progress.step(example(2));
    progress.step(example(200));
  }
  EXPECT_EQ(out.str(), "hello\n" + progress_text(example(1), 200, {}) +
                           "\nstep 2/200  loss 2.6250  grad_norm 0.1  lr 3.00e-04  33333 tokens/s  92 ms  left 0:18\n"
                           "step 200/200  loss 0.0262  grad_norm 0.1  lr 3.00e-04  33333 tokens/s  92 ms\n");
}

TEST(Progress, RewritesOneLineOnATerminal) {
  std::ostringstream out;
  {
    Progress progress(out, true, 200);
    progress.step(example(2));
    progress.print("hello");
    progress.step(example(3));
  }
  const std::string step2 = "\r" + progress_text(example(2), 200, {}) + "\x1b[K",
                    step3 = "\r" + progress_text(example(3), 200, example(3).step_ms) + "\x1b[K";
  EXPECT_EQ(out.str(), step2 + "\r\x1b[K" + "hello\n" + step3 + "\n");
}

TEST(Progress, ShowsSkipsAndTheTimeLeft) {
  StepMetrics metrics = example(1);
  metrics.skipped = true;
  const std::string text = progress_text(metrics, 3, 3600e3);
  EXPECT_THAT(text, HasSubstr("SKIPPED"));
  EXPECT_THAT(text, HasSubstr("left 2:00:00"));
  EXPECT_THAT(progress_text(metrics, 3, 3600e3, 60), HasSubstr("left 2:01:00"));
  metrics.step = 3;
  EXPECT_THAT(progress_text(metrics, 3, 3600e3), Not(HasSubstr("left")));
  EXPECT_THAT(progress_text(metrics, 3, 3600e3, 60), HasSubstr("left 1:00"));
  metrics.step = 1;
  EXPECT_THAT(progress_text(metrics, 3, std::numeric_limits<double>::infinity()), HasSubstr("left ?"));
  EXPECT_THAT(progress_text(metrics, 3, {}), Not(HasSubstr("left")));
}

TEST(Progress, ShowsAStepBeforeItsEvaluation) {
  const LossBySet losses{{"", 1.5}, {"code", std::numeric_limits<double>::quiet_NaN()}};
  const std::string result = "step 2/200  valid_loss 1.5000  valid_loss/code nan  61.2 s\n";
  for (const bool terminal : {false, true}) {
    std::ostringstream out;
    Progress progress(out, terminal, 200);
    progress.step(example(2), 0, true);
    const std::string step = out.str();
    EXPECT_TRUE(step.ends_with("\n"));
    progress.evaluating(2, 0.25, 15);
    if (terminal) {
      EXPECT_EQ(out.str(), step + "\rstep 2/200  evaluating 25 %  left 0:45\x1b[K");
    }
    progress.evaluated(2, losses, 61.23);
    EXPECT_TRUE(out.str().ends_with(terminal ? "\r\x1b[K" + result : step + result)) << out.str();
  }
}

TEST(Progress, NamesAStepWithoutTargetsAndShowsNoSignOfNan) {
  StepMetrics metrics = example(1);
  metrics.loss = -std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(progress_text(metrics, 3, {}), HasSubstr("loss nan  "));
  metrics.tokens = 0;
  EXPECT_THAT(progress_text(metrics, 3, {}), HasSubstr("loss none (no target)  "));
}

TEST(Progress, TheTimeLeftDoesNotFollowASingleSlowStep) {
  StepPace pace;
  pace.add(5000);  // the first step prepares the others
  EXPECT_EQ(pace.step_ms(), std::nullopt);
  for (const double step_ms : {100.0, 60'000.0, 102.0, 101.0}) {
    pace.add(step_ms);
    EXPECT_GE(pace.step_ms(), 100);
    EXPECT_LE(pace.step_ms(), 102);
  }
  for (int step = 0; step < 100; ++step) pace.add(200);
  EXPECT_EQ(pace.step_ms(), 200);
}

TEST(PeakFlops, KnownGpusAreFoundByName) {
  EXPECT_EQ(bf16_peak_of("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(bf16_peak_of("NVIDIA H200"), 989e12);
  EXPECT_EQ(bf16_peak_of("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(bf16_peak_of("NVIDIA H20"), 148e12);
  EXPECT_EQ(bf16_peak_of("NVIDIA GH200 480GB"), 989e12);
  EXPECT_EQ(bf16_peak_of(""), std::nullopt);
  EXPECT_EQ(bf16_peak_of("NVIDIA A100-SXM4-80GB"), std::nullopt);
}

TEST(PeakFlops, TheSettingReplacesTheDevice) {
  EXPECT_EQ(peak_flops_of(0, quant::DType::bf16, {}), std::nullopt);
  EXPECT_EQ(peak_flops_of(2e11, quant::DType::bf16, {}), 2e11);
}

TEST(Mfu, IsInTheLineAndInTensorBoardIfKnown) {
  StepMetrics metrics{.step = 3};
  const auto has_scalar = [&] {
    const Scalars scalars = scalars_of(metrics);
    return std::ranges::any_of(scalars, [](const auto& scalar) { return scalar.first == "mfu"; });
  };
  EXPECT_THAT(metrics_line(metrics), ::testing::HasSubstr("\"mfu\": null"));
  EXPECT_EQ(parse_metrics_line(metrics_line(metrics), "m").mfu, std::nullopt);
  EXPECT_FALSE(has_scalar());
  metrics.mfu = 0.4375;
  EXPECT_EQ(parse_metrics_line(metrics_line(metrics), "m").mfu, 0.4375);
  EXPECT_TRUE(has_scalar());
}

}  // namespace
}  // namespace tessera::telemetry
