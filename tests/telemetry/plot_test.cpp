// Tests how `tessera plot` reads, describes and draws runs.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/telemetry/plot/draw.h"
#include "tessera/telemetry/plot/panel.h"
#include "tessera/telemetry/plot/remarks.h"
#include "tessera/telemetry/plot/ticks.h"

namespace tessera::telemetry {
namespace {
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

StepMetrics step_of(std::int64_t step, double loss) {
  return {.step = step, .loss = loss, .grad_norm = 1, .lr = 1e-3, .tokens = 8, .tokens_per_second = 100, .step_ms = 80};
}

// A run whose loss falls slowly, with a little noise.
PlottedRun falling_run(std::int64_t steps) {
  PlottedRun run{.name = "run"};
  for (std::int64_t i = 1; i <= steps; ++i)
    run.steps.push_back(step_of(i, 5.0 - 0.01 * static_cast<double>(i) + 0.02 * std::sin(static_cast<double>(i * 7))));
  return run;
}

class PlottedRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void write(const std::string& text) const { std::ofstream(folder_ / "metrics.jsonl", std::ios::binary) << text; }
  static std::string lines(std::initializer_list<std::int64_t> steps, double loss = 2) {
    std::string text;
    for (const std::int64_t step : steps) text += metrics_line(step_of(step, loss));
    return text;
  }
  std::filesystem::path folder_;
};

TEST_F(PlottedRuns, FoldersAndFilesAreRead) {
  write(lines({1, 2, 3}));
  EXPECT_EQ(read_plotted_run(folder_).steps.size(), 3u);
  EXPECT_EQ(read_plotted_run(folder_ / "metrics.jsonl").steps.size(), 3u);
  EXPECT_THAT([&] { read_plotted_run(folder_ / "none"); }, ThrowsMessage<InputError>(HasSubstr("is not a run")));
}

TEST_F(PlottedRuns, LaterLinesReplaceTheStepsThatTheyRepeat) {
  write(lines({1, 2, 3, 4}, 2) + lines({3, 4, 5}, 7));
  const PlottedRun run = read_plotted_run(folder_);
  std::vector<double> losses;
  for (const StepMetrics& step : run.steps) losses.push_back(step.loss);
  EXPECT_THAT(losses, ElementsAre(2, 2, 7, 7, 7));
}

TEST_F(PlottedRuns, AnIncompleteLastLineIsLeftOutAndReported) {
  write(lines({1, 2}) + R"({"step": 3, "lo)");
  const PlottedRun run = read_plotted_run(folder_);
  EXPECT_EQ(run.steps.size(), 2u);
  EXPECT_THAT(remarks_of(run), Contains(HasSubstr("is incomplete")));
  write(lines({1}));
  EXPECT_THAT(remarks_of(read_plotted_run(folder_)), Not(Contains(HasSubstr("is incomplete"))));
}

TEST_F(PlottedRuns, ADamagedLineIsNamed) {
  write(lines({1}) + "{\"step\": 2}\n" + lines({3}));
  EXPECT_THAT([&] { read_plotted_run(folder_); },
              ThrowsMessage<InputError>(HasSubstr("metrics.jsonl:2: expected a line of metrics")));
}

TEST_F(PlottedRuns, AStepThatIsNoIntegerOf64BitsIsNamed) {
  const std::string line = lines({1});
  for (const char* step : {"1e300", "9223372036854775808", "-1", "1.5"}) {
    std::string other = line;
    write(line + other.replace(other.find("1,"), 1, step));
    EXPECT_THAT([&] { read_plotted_run(folder_); },
                ThrowsMessage<InputError>(HasSubstr("metrics.jsonl:2: expected a line of metrics")))
        << step;
  }
}

TEST_F(PlottedRuns, ARunWithoutAStepIsEmpty) {
  write("");
  const PlottedRun run = read_plotted_run(folder_);
  EXPECT_TRUE(run.steps.empty());
  EXPECT_THAT(remarks_of(run), ElementsAre("no step has finished"));
  EXPECT_THAT(terminal_plot({run, falling_run(5)}, 60), HasSubstr("b"));
}

TEST(LossSpikes, FallingLossesHaveNone) {
  EXPECT_THAT(find_spikes(falling_run(300).steps), ElementsAre());
  PlottedRun steep{.name = "steep"};
  for (std::int64_t i = 1; i <= 100; ++i)
    steep.steps.push_back(step_of(i, 10 * std::exp(-0.05 * static_cast<double>(i))));
  EXPECT_THAT(find_spikes(steep.steps), ElementsAre());
}

TEST(LossSpikes, NeighbouringStepsAreOneSpike) {
  PlottedRun run = falling_run(100);
  for (const std::size_t i : {49u, 50u, 51u}) run.steps[i].loss = 8.0 + static_cast<double>(i) / 100;
  run.steps[80].loss = 6.5;
  const std::vector<LossSpike> spikes = find_spikes(run.steps);
  ASSERT_EQ(spikes.size(), 2u);
  EXPECT_EQ(spikes[0].first, 50);
  EXPECT_EQ(spikes[0].last, 52);
  EXPECT_EQ(spikes[0].loss, 8.51);
  EXPECT_NEAR(spikes[0].median, 4.66, 0.05);  // losses of steps 18 to 49
  EXPECT_EQ(spikes[1].first, 81);
  EXPECT_THAT(remarks_of(run), Contains(StartsWith("loss spike at steps 50 to 52: 8.5100, median before it 4.6")));
}

TEST(LossSpikes, EqualLossesNeedTwoPercent) {
  PlottedRun run{.name = "equal"};
  for (std::int64_t i = 1; i <= 20; ++i) run.steps.push_back(step_of(i, 2.0));
  run.steps[15].loss = 2.03;
  EXPECT_THAT(find_spikes(run.steps), ElementsAre());
  run.steps[15].loss = 2.05;
  EXPECT_EQ(find_spikes(run.steps).size(), 1u);
  run.steps[15].loss = 2.0;
  run.steps[5].loss = 4.0;  // only 5 losses precede it
  EXPECT_THAT(find_spikes(run.steps), ElementsAre());
}

TEST(Remarks, CountLossesThatAreNotFiniteAndSkippedSteps) {
  PlottedRun run = falling_run(20);
  run.steps[3].loss = kNaN;
  run.steps[3].skipped = run.steps[6].skipped = true;
  run.steps[9].suppressed = 2;
  const std::vector<std::string> lines = remarks_of(run);
  EXPECT_THAT(lines, Contains("1 losses are not finite, first in step 4"));
  EXPECT_THAT(lines, Contains("2 steps were skipped: their gradient was not finite, first in step 4"));
  EXPECT_THAT(lines, Contains("1 steps were suppressed and repeated, first in step 10"));
}

TEST(Remarks, CountStepsWithoutTargets) {
  PlottedRun run = falling_run(20);
  run.steps[3].loss = run.steps[5].loss = kNaN;
  run.steps[3].tokens = 0;
  const std::vector<std::string> lines = remarks_of(run);
  EXPECT_THAT(lines, Contains("1 steps had no target, so they have no loss, first in step 4"));
  EXPECT_THAT(lines, Contains("1 losses are not finite, first in step 6"));
}

TEST(Remarks, NameTheRankThatWasSlowestInMostSteps) {
  PlottedRun run = falling_run(10);
  for (std::size_t i = 2; i < 8; ++i) {
    run.steps[i].exposed_comm_ms = 5;
    run.steps[i].slowest_rank = i == 2 ? 1 : 3;
    run.steps[i].slowest_rank_wait_ms = i == 2 ? 0.0 : 2.0;
  }
  EXPECT_THAT(remarks_of(run), Contains("slowest rank: 3, in 5 of 6 measured steps; in these it waited 3 ms less than "
                                        "the mean of the ranks"));
  EXPECT_THAT(remarks_of(falling_run(10)), Not(Contains(HasSubstr("slowest rank"))));
}

TEST(Ranges, AreNeverEmpty) {
  const PlottedRun one{.name = "one", .steps = {step_of(7, 2)}};
  EXPECT_EQ(step_range({one}).position(7), 0.5);
  for (const Panel& panel : panels_of({one})) {
    const ValueRange range = value_range(panel);
    EXPECT_LT(range.low, range.high) << panel.title;
  }
  const Panel not_finite{.title = "", .curves = {{{1, kNaN}}}, .marks = {{}}};
  EXPECT_EQ(value_range(not_finite).high, 1);
}

TEST(Ranges, OfManyMagnitudesAreLogarithmic) {
  const Panel panel{.title = "", .curves = {{{1, 1}, {2, 1000}, {3, kNaN}}}, .marks = {{}}};
  EXPECT_TRUE(value_range(panel).is_log);
  EXPECT_DOUBLE_EQ(value_range(panel).position(10), 1.0 / 3);
  const Panel with_zero{.title = "", .curves = {{{1, 0}, {2, 1000}}}, .marks = {{}}};
  EXPECT_FALSE(value_range(with_zero).is_log);
}

TEST(Ranges, ALogarithmicAxisShowsNoValueThatIsNotAboveZero) {
  const Panel panel{.title = "", .curves = {{{1, 2}, {2, 0}, {3, -1}, {4, 4}}}, .marks = {{}}, .is_log = true};
  const ValueRange range = value_range(panel);
  EXPECT_EQ(range.low, 2);
  EXPECT_DOUBLE_EQ(range.position(std::sqrt(8.0)), 0.5);
  EXPECT_FALSE(range.shows(0) || range.shows(-1) || range.shows(kNaN));
  const Panel none{.title = "", .curves = {{{1, 0}}}, .marks = {{}}, .is_log = true};
  EXPECT_EQ(value_range(none).position(10), 1);
}

// The losses and the steps that numbers of 64 bits can hold.
constexpr double kMost = std::numeric_limits<double>::max(), kLeast = std::numeric_limits<double>::denorm_min();
const std::vector<std::vector<double>> kExtremeLosses{{1e308},
                                                      {kLeast},
                                                      {kMost},
                                                      {-kMost},
                                                      {0},
                                                      {-kMost, kMost},
                                                      {kLeast, kMost},
                                                      {kLeast, 2 * kLeast},
                                                      {1e308, 1.1e308},
                                                      {1e300, std::nextafter(1e300, kMost)},
                                                      {-kLeast, kLeast},
                                                      {kNaN, 5e-324, kNaN}};

TEST(Ranges, HavePositionsForAllDoubles) {
  for (const bool is_log : {false, true})
    for (const std::vector<double>& losses : kExtremeLosses) {
      Panel panel{.title = "", .curves = {{}}, .marks = {{}}, .is_log = is_log};
      for (const double loss : losses) panel.curves.front().push_back({1, loss});
      const ValueRange range = value_range(panel);
      for (const double loss : losses) {
        if (!range.shows(loss)) continue;
        EXPECT_GE(range.position(loss), 0) << loss;
        EXPECT_LE(range.position(loss), 1) << loss;
      }
    }
}

constexpr std::int64_t kLastStep = std::numeric_limits<std::int64_t>::max();

TEST(Ticks, AreRoundNumbersWithinTheRange) {
  EXPECT_THAT(step_ticks({.first = 1, .last = 1000}, 6), ElementsAre(200, 400, 600, 800, 1000));
  EXPECT_THAT(step_ticks({.first = 0, .last = 3}, 6), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(step_ticks({.first = 7, .last = 7}, 6), ElementsAre(7));
  EXPECT_THAT(step_ticks({.first = 12, .last = 14}, 2), ElementsAre(12, 14));
  const std::int64_t late = 100'000'000'000'000'000;
  EXPECT_THAT(step_ticks({.first = late, .last = late + 2}, 6), ElementsAre(late, late + 1, late + 2));
  EXPECT_THAT(step_ticks({.first = kLastStep - 1, .last = kLastStep}, 6), ElementsAre(kLastStep - 1, kLastStep));
  EXPECT_EQ(step_ticks({.first = 0, .last = kLastStep}, 6).size(), 5u);
}

TEST(Ticks, OfValuesAreRoundNumbersOrPowersOfTen) {
  EXPECT_THAT(value_ticks({.low = 0, .high = 10}, 6), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(value_ticks({.low = 0.5, .high = 2e6, .is_log = true}, 4), ElementsAre(1, 100, 10000, 1e6));
  EXPECT_THAT(value_ticks({.low = 1.5, .high = 9, .is_log = true}, 6), ElementsAre(2, 5));
  EXPECT_GE(value_ticks({.low = 2.1, .high = 2.4, .is_log = true}, 4).size(), 2u);
  for (const bool is_log : {false, true})
    for (const auto& [low, high] : {std::pair{kLeast, kMost}, {1.0, kMost}, {kLeast, 3 * kLeast}})
      EXPECT_LE(value_ticks({.low = low, .high = high, .is_log = is_log}, 6).size(), 6u);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

TEST(Svg, InterruptsCurvesAtValuesThatAreNotFinite) {
  PlottedRun run = falling_run(30);
  EXPECT_EQ(count(svg_of({run}), "<polyline"), 4u);
  EXPECT_EQ(count(svg_of({run}), "not-finite"), 0u);
  run.steps[10].loss = kNaN;
  EXPECT_EQ(count(svg_of({run}), "<polyline"), 5u);
  EXPECT_EQ(count(svg_of({run}), "not-finite"), 1u);
  EXPECT_THAT(svg_of({run}), Not(HasSubstr("nan")));
  run.steps[20].valid_losses[""] = kNaN;
  EXPECT_EQ(count(svg_of({run}), "not-finite"), 2u);
}

// Checks that the SVG has only finite coordinates, within the drawing.
void check_coordinates(const std::string& svg) {
  const std::regex coordinates(R"re( (?:x|y|x1|x2|y1|y2|cx|cy|points)="([^"]*)")re");
  int coordinate_lists = 0;
  for (std::sregex_iterator at(svg.begin(), svg.end(), coordinates), end; at != end; ++at, ++coordinate_lists) {
    std::string numbers = (*at)[1];
    std::ranges::replace(numbers, ',', ' ');
    std::istringstream words(numbers);
    for (std::string word; words >> word;) {
      double number = -1;
      ASSERT_EQ(std::from_chars(word.data(), word.data() + word.size(), number).ec, std::errc()) << word;
      ASSERT_TRUE(number >= 0 && number <= 2000) << word;  // false for NaN
    }
  }
  EXPECT_GT(coordinate_lists, 10);
}

TEST(Svg, HasFiniteCoordinatesForAllLossesAndSteps) {
  for (const LossAxis axis : {LossAxis::automatic, LossAxis::logarithmic})
    for (const std::vector<double>& losses : kExtremeLosses)
      for (const std::int64_t first : {std::int64_t{1}, std::int64_t{100'000'000'000'000'000}, kLastStep - 5}) {
        PlottedRun run{.name = "run"};
        for (const double loss : losses) {
          run.steps.push_back(step_of(first + static_cast<std::int64_t>(run.steps.size()), loss));
          run.steps.back().valid_losses[""] = loss;
        }
        SCOPED_TRACE(fmt::format("losses {}, first step {}", fmt::join(losses, " "), first));
        check_coordinates(svg_of({run}, axis));
        EXPECT_THAT(svg_of({run}, axis), HasSubstr(fmt::format(">step {}<", first)));
        EXPECT_THAT(terminal_plot({run}, 60, axis), Not(HasSubstr("nan")));
        EXPECT_LT(remarks_of(run, axis).front().size(), 200u);
      }
  check_coordinates(svg_of({{.name = "whole range", .steps = {step_of(0, 2), step_of(kLastStep, 3)}}}));
}

TEST(Svg, LabelsTheTicksOfTheStepAxis) {
  const std::string svg = svg_of({falling_run(1000)});
  for (const char* label : {">step 1<", ">200<", ">400<", ">800<", ">step 1000<"})
    EXPECT_EQ(count(svg, label), 4u) << label;
}

TEST(Svg, DrawsALogarithmicLoss) {
  PlottedRun run = falling_run(100);
  EXPECT_THAT(svg_of({run}), Not(HasSubstr("logarithmic")));
  EXPECT_EQ(count(svg_of({run}, LossAxis::logarithmic), "logarithmic"), 1u);
  EXPECT_THAT(terminal_plot({run}, 60, LossAxis::logarithmic), HasSubstr("loss (nats a token), logarithmic"));
  run.steps[10].loss = 0;
  EXPECT_EQ(count(svg_of({run}), "not-finite"), 0u);
  EXPECT_EQ(count(svg_of({run}, LossAxis::logarithmic), "not-finite"), 1u);
  EXPECT_THAT(remarks_of(run, LossAxis::logarithmic),
              Contains("1 losses are not above 0 and have no place on a logarithmic axis, first in step 11"));
  EXPECT_THAT(remarks_of(run), Not(Contains(HasSubstr("logarithmic"))));
}

TEST(Svg, ShowsTheDigitsOfLargeSteps) {
  const PlottedRun late{.name = "late", .steps = {step_of(1234567, 2), step_of(1234569, 2)}};
  EXPECT_THAT(svg_of({late}), HasSubstr(">step 1234567<"));
}

TEST(Svg, ShowsASpikeAmongManySteps) {
  PlottedRun run{.name = "long"};
  for (std::int64_t i = 1; i <= 100000; ++i) run.steps.push_back(step_of(i, 2.0));
  run.steps[54321].loss = 9.0;
  run.steps[10].loss = 1.0;
  const std::string svg = svg_of({run});
  EXPECT_LT(svg.size(), 400000u);
  EXPECT_THAT(svg, HasSubstr(",42.0"));  // the top of the first panel: kTop + one line of the legend
}

TEST(Svg, EscapesNames) {
  PlottedRun run = falling_run(3);
  run.name = "a<b>&\"c\"\n";
  EXPECT_THAT(svg_of({run}), HasSubstr("a&lt;b&gt;&amp;&quot;c&quot;\\x0a"));
  run.name = "caf\xE9 \xEF\xBF\xBE \x7F";  // not UTF-8, a character that XML forbids, and a control character
  EXPECT_THAT(svg_of({run}), HasSubstr("caf\\xe9 ? \\x7f"));
}

TEST(TerminalPlot, DrawsOneRunWithStarsAndSeveralWithLetters) {
  const PlottedRun run = falling_run(50);
  const std::string one = terminal_plot({run}, 60);
  EXPECT_THAT(one, HasSubstr("*"));
  PlottedRun higher = run;
  for (StepMetrics& step : higher.steps) step.loss += 3;
  const std::string two = terminal_plot({run, higher}, 60);
  EXPECT_THAT(two, HasSubstr("aaa"));
  EXPECT_THAT(two, HasSubstr("bbb"));
  EXPECT_THAT(two, HasSubstr("###"));  // equal rates
  for (const std::string& text : {one, two})
    for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
      EXPECT_LE(text.find('\n', begin) - begin, 60u);
}

TEST(TerminalPlot, KeepsTheWidthWithTheLongestLabels) {
  PlottedRun run = falling_run(50);
  run.steps[20].loss = -std::numeric_limits<double>::max();
  const std::string text = terminal_plot({run}, 60);
  EXPECT_THAT(text, HasSubstr("-1.7977e+308|"));
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1)
    EXPECT_LE(text.find('\n', begin) - begin, 60u);
}

TEST(TerminalPlot, MarksValuesThatAreNotFiniteOnTheAxis) {
  PlottedRun run = falling_run(50);
  EXPECT_THAT(terminal_plot({run}, 60), Not(HasSubstr("!")));
  run.steps[20].loss = kNaN;
  EXPECT_THAT(terminal_plot({run}, 60), HasSubstr("!"));
}

TEST(TerminalPlot, LabelsTheTicksOfTheStepAxis) {
  const std::string text = terminal_plot({falling_run(1000)}, 80);
  EXPECT_THAT(text, HasSubstr("step 1      200"));
  EXPECT_THAT(text, EndsWith(" step 1000\n"));
  const auto axis = text.rfind("|", text.rfind("+"));
  EXPECT_EQ(count(text.substr(axis), "+"), 6u);  // the corner and 200, 400, 600, 800, 1000
}

TEST(TerminalPlot, ShowsOneStep) {
  const std::string text = terminal_plot({falling_run(1)}, 10);  // narrower than the least width
  EXPECT_THAT(text, HasSubstr("step 1"));
  EXPECT_EQ(count(text, "*"), 4u);
}

}  // namespace
}  // namespace tessera::telemetry
