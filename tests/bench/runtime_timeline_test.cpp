// Checks that on the virtual clock a step's timeline equals the predicted timeline, span by span.
#include "tessera/runtime/watch/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "tessera/bench/schedule_costs.h"
#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tests/bench/synthetic.h"

namespace tessera::bench {
namespace {

using mesh::Transfer;
using runtime::TimelineSpan;
using schedule::ParameterId;

constexpr comm::Link kLink{.latency_s = 0.0001, .bytes_per_second = 8e6};
constexpr double kRounding = 1e-9;  // in seconds, for sums of some hundred terms below 1

struct Case {
  const char* name;
  nn::MeshDegrees degrees{.gtp = 2};
  runtime::RuntimeOptions options;
  int microbatches = 2;
};

// No two layers are equal. Two ranks share the rows evenly, so groups over other axes take the same time. The second
// layer takes part only in the first microbatch, so that its sum over replicas comes last.
SyntheticModel uneven_model() {
  SyntheticModel model{.layers = {}, .activation_bytes = 3000};
  for (int i = 0; i < 4; ++i)
    model.layers.push_back({.weight_bytes = std::int64_t{512} * (31 + 17 * i),
                            .forward_seconds = 0.001 * (1 + (i * 2) % 3),
                            .update_seconds = 0.0002 * (1 + i % 2),
                            .once = i == 1});
  return model;
}

void run(const Case& test, const std::function<void(SyntheticProgram&, shard::ParallelGroups&)>& body) {
  comm::LocalOptions options;
  options.link = kLink;
  options.virtual_clock = true;
  comm::run_local(static_cast<int>(test.degrees.places()), options, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, nn::rank_layout(test.degrees));
    SyntheticProgram program(parallel, uneven_model(), test.options);
    body(program, parallel);
  });
}

// A span without its times.
using Key = std::tuple<std::string, int, std::vector<ParameterId>>;
using Times = std::map<Key, std::pair<double, double>>;

std::string text_of(std::optional<Transfer> transfer) {
  return transfer ? std::string(name_of(*transfer)) : "compute";
}

Times recorded_times(const std::vector<TimelineSpan>& spans) {
  Times times;
  for (const TimelineSpan& span : spans) {
    if (span.is_wait || span.transfer == Transfer::program) continue;
    const Key key{text_of(span.transfer), span.event, span.weights};
    EXPECT_TRUE(times.emplace(key, std::pair(span.begin, span.end)).second) << std::get<0>(key) << ' ' << span.event;
  }
  return times;
}

Key key_of(const schedule::Span& span, const schedule::Trace& trace, const schedule::Schedule& schedule) {
  const auto index = static_cast<std::size_t>(span.index);
  const std::string lane = text_of(span.hop);
  using enum Transfer;
  if (!span.hop) return {lane, span.index, {}};
  if (span.hop == publish) return {lane, span.index, {trace[index].parameter}};
  if (span.hop == gather) {
    const schedule::Residency& residency = schedule.residencies[index];
    return {lane, residency.wait, schedule.gather_units[static_cast<std::size_t>(residency.unit)]};
  }
  const schedule::Reduction& reduction = schedule.reductions[index];
  return {lane, reduction.issue, schedule.reduce_units[static_cast<std::size_t>(reduction.unit)]};
}

schedule::Prediction predicted(SyntheticProgram& program, const Case& test, const schedule::Schedule& schedule) {
  const schedule::Trace& trace = program.runtime().trace();
  return simulate(trace, schedule,
                  exact_costs(kLink, test.degrees, trace, program.runtime().parameters().sizes(), schedule,
                              program.segments(), false));
}

void expect_times(const Times& actual, const Times& expected) {
  for (const auto& [key, times] : expected) {
    const auto found = actual.find(key);
    ASSERT_NE(found, actual.end()) << std::get<0>(key) << " for event " << std::get<1>(key);
    EXPECT_NEAR(found->second.first, times.first, kRounding) << std::get<0>(key) << ' ' << std::get<1>(key);
    EXPECT_NEAR(found->second.second, times.second, kRounding) << std::get<0>(key) << ' ' << std::get<1>(key);
  }
  EXPECT_EQ(actual.size(), expected.size());
}

// Compute and its waits, one after another, fill the step.
void expect_no_gap(std::vector<TimelineSpan> spans, double step_seconds, double exposed_seconds) {
  std::erase_if(spans, [](const TimelineSpan& span) { return !span.is_wait && span.transfer; });
  std::ranges::sort(spans, {}, &TimelineSpan::begin);
  double at = 0, waited = 0;
  for (const TimelineSpan& span : spans) {
    EXPECT_NEAR(span.begin, at, kRounding) << text_of(span.transfer) << " at event " << span.event;
    at = span.end;
    if (span.is_wait) waited += span.end - span.begin;
  }
  EXPECT_NEAR(at, step_seconds, kRounding);
  EXPECT_NEAR(waited, exposed_seconds, kRounding);
}

class TimelineOf : public ::testing::TestWithParam<Case> {};

TEST_P(TimelineOf, AScheduledStepEqualsThePrediction) {
  const Case& test = GetParam();
  run(test, [&](SyntheticProgram& program, shard::ParallelGroups&) {
    runtime::Runtime& runtime = program.runtime();
    program.step(test.microbatches);
    runtime.record_timeline(true);
    for (int i = 0; i < 2; ++i) program.step(test.microbatches);
    const std::vector<TimelineSpan> spans = runtime.timeline();
    const schedule::Schedule& schedule = *runtime.schedule(schedule::StepKind::train, test.microbatches);
    const schedule::Prediction prediction = predicted(program, test, schedule);
    Times expected;
    for (const schedule::Span& span : prediction.spans)
      expected[key_of(span, runtime.trace(), schedule)] = {span.begin, span.end};
    expect_times(recorded_times(spans), expected);
    expect_no_gap(spans, prediction.step_seconds, runtime.statistics().exposed_seconds);
  });
}

TEST_P(TimelineOf, AProgramCollectiveLastsFromItsEventToTheEndOfItsWait) {
  const Case& test = GetParam();
  run(test, [&](SyntheticProgram& program, shard::ParallelGroups& parallel) {
    program.runtime().record_timeline(true);
    program.step(test.microbatches);
    const schedule::Trace& trace = program.runtime().trace();
    int found = 0;
    for (const TimelineSpan& span : program.runtime().timeline()) {
      if (span.transfer != Transfer::program || span.is_wait) continue;
      ++found;
      EXPECT_EQ(trace[static_cast<std::size_t>(span.event)].kind, schedule::EventKind::comm);
      EXPECT_EQ(span.bytes, 3000);
      EXPECT_NEAR(span.end - span.begin, kLink.seconds(3000), kRounding);  // 2 ranks: each half twice
    }
    const auto comms = std::ranges::count(trace, schedule::EventKind::comm, &schedule::Event::kind);
    EXPECT_EQ(found, comms);
    EXPECT_EQ(comms > 0, parallel.program().size() > 1);
  });
}

TEST_P(TimelineOf, OnDemandEachConsumeEventWaitsForItsGather) {
  Case test = GetParam();
  test.options.scheduled = false;
  run(test, [&](SyntheticProgram& program, shard::ParallelGroups& parallel) {
    runtime::Runtime& runtime = program.runtime();
    runtime.record_timeline(true);
    program.step(test.microbatches);
    const std::vector<TimelineSpan> spans = runtime.timeline();
    std::int64_t gathers = 0, reductions = 0, bytes = 0;
    for (const TimelineSpan& span : spans) {
      if (span.is_wait) continue;
      if (span.transfer == Transfer::reduce) ++reductions;
      if (span.transfer == Transfer::gather || span.transfer == Transfer::publish) bytes += span.bytes;
      if (span.transfer != Transfer::gather) continue;
      ++gathers;
      const schedule::Event& event = runtime.trace()[static_cast<std::size_t>(span.event)];
      EXPECT_EQ(event.kind, schedule::EventKind::consume);
      EXPECT_EQ(span.weights, std::vector{event.parameter});
      EXPECT_EQ(span.microbatch, event.microbatch);
      const auto wait = std::ranges::find_if(spans, [&](const TimelineSpan& other) {
        return other.is_wait && other.transfer == Transfer::gather && other.event == span.event;
      });
      ASSERT_NE(wait, spans.end());
      EXPECT_EQ(wait->end, span.end);
      EXPECT_LE(wait->begin, span.begin);
    }
    EXPECT_EQ(gathers, runtime.statistics().demand_gathers);
    EXPECT_EQ(gathers > 0, parallel.cuts().parts > 1);
    EXPECT_EQ(bytes, runtime.statistics().gathered_bytes);
    EXPECT_EQ(reductions, 4 * test.microbatches - (test.microbatches - 1));  // one layer takes part only once
  });
}

TEST_P(TimelineOf, AnUnrecordedStepIsEmpty) {
  const Case& test = GetParam();
  run(test, [&](SyntheticProgram& program, shard::ParallelGroups&) {
    program.step(test.microbatches);
    EXPECT_TRUE(program.runtime().timeline().empty());
    program.runtime().record_timeline(true);
    program.step(test.microbatches);
    EXPECT_FALSE(program.runtime().timeline().empty());
    program.runtime().record_timeline(false);
    program.step(test.microbatches);
    EXPECT_TRUE(program.runtime().timeline().empty());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Programs, TimelineOf,
    ::testing::Values(
        Case{"gtp2", {.gtp = 2}, {}}, Case{"gtp3_unlimited", {.gtp = 3}, {.gather_budget = schedule::kUnlimited}, 3},
        Case{"gtp2_minimum", {.gtp = 2}, {.gather_budget = schedule::kMinimum, .reduce_budget = schedule::kMinimum}},
        Case{"gtp2_together", {.gtp = 2}, {.coalesce_bytes = 64 << 10}}, Case{"tp2", {.tp = 2, .gtp = 2}, {}},
        Case{"dp2", {.gtp = 2, .dp = 2}, {}}, Case{"dp2_zero", {.gtp = 2, .dp = 2}, {.zero = true}},
        Case{"dp2_zero_gtp1", {.gtp = 1, .dp = 2}, {.zero = true}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::bench
