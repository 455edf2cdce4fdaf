// The planner on random steps: every schedule is correct, fits its budgets and has no unnecessary gathers.
#include "tessera/schedule/plan/plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <iostream>
#include <map>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/schedule/check/check.h"
#include "tests/schedule/oracle_cases.h"

namespace tessera::schedule {
namespace {

using oracle::Case;
using oracle::Recorder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kPrograms = 400;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  int index(std::size_t size) { return static_cast<int>(between(0, static_cast<std::int64_t>(size) - 1)); }
  bool once_in(int times) { return between(1, times) == 1; }
  template <typename T>
  T take(std::vector<T>& from) {
    std::swap(from[static_cast<std::size_t>(index(from.size()))], from.back());
    T taken = from.back();
    from.pop_back();
    return taken;
  }

 private:
  std::mt19937_64 engine_;
};

// A random program of layers that share weights. It has uses that overlap, recompute inside the backward pass, frozen
// weights and layers that a microbatch skips. Gradients are produced several times or late, and weights are published
// in any order.
class RandomStep {
 public:
  explicit RandomStep(std::uint64_t seed)
      : random_(seed),
        kind_(random_.once_in(6) ? StepKind::evaluate : StepKind::train),
        parameters_(random_parameters()),
        step_(fmt::format("random step {}", seed), parameters_, kind_) {
    layers_.resize(static_cast<std::size_t>(random_.between(1, 12)));
    for (std::vector<int>& layer : layers_)
      for (std::int64_t members = random_.between(1, 3); members > 0; --members)
        layer.push_back(random_.index(parameters_.size()));
  }

  Case make() {
    for (std::int64_t microbatches = random_.between(1, 4); microbatches > 0; --microbatches) microbatch();
    if (kind_ == StepKind::train) publish();
    Case made = step_.take();
    for (ParameterSize& size : made.sizes) {
      size.scratch = size.staging > 0 ? random_.between(0, 2000) : 0;
      if (random_.once_in(8)) size.gather.push_back({mesh::Transfer::gather_compute, 1});
      size.is_vector = random_.once_in(3);
    }
    return made;
  }

 private:
  std::vector<Recorder::Parameter> random_parameters() {
    std::vector<Recorder::Parameter> made;
    for (std::int64_t count = random_.between(2, 14); count > 0; --count) {
      const auto bytes = [&] { return random_.once_in(5) ? 0 : random_.between(1, random_.once_in(3) ? 9000 : 900); };
      made.push_back({fmt::format("w{}", made.size()), bytes(), bytes(), random_.once_in(3) ? bytes() : 0});
      if (made.back().unpacked == 0 && random_.once_in(2)) made.back().columnwise = bytes();
    }
    return made;
  }

  void microbatch() {
    step_.microbatch();
    for (const std::vector<int>& layer : layers_)
      if (!random_.once_in(6)) use(layer, Pass::forward);
    release_all();
    if (kind_ == StepKind::evaluate) return;
    const bool recompute = random_.once_in(2);
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      if (random_.once_in(6)) continue;
      if (recompute) use(*layer, Pass::recompute);
      use(*layer, Pass::backward);
    }
    release_all();
    while (!late_.empty()) step_.produce(random_.take(late_));
  }

  void use(const std::vector<int>& layer, Pass pass) {
    for (const int parameter : layer) {
      step_.consume(parameter, pass);
      open_.emplace_back(parameter, pass);
      if (pass == Pass::backward && parameters_[static_cast<std::size_t>(parameter)].staging > 0) {
        if (random_.once_in(4))
          late_.push_back(parameter);
        else
          step_.produce(parameter);
      }
      while (!open_.empty() && !random_.once_in(3)) release_one();
    }
  }
  void release_one() {
    const auto [parameter, pass] = random_.take(open_);
    step_.release(parameter, pass);
  }
  void release_all() {
    while (!open_.empty()) release_one();
  }

  void publish() {
    std::vector<int> trainable;
    for (int parameter = 0; parameter < static_cast<int>(parameters_.size()); ++parameter)
      if (parameters_[static_cast<std::size_t>(parameter)].staging > 0) trainable.push_back(parameter);
    while (!trainable.empty()) step_.publish(random_.take(trainable));
  }

  Random random_;
  StepKind kind_;
  std::vector<Recorder::Parameter> parameters_;
  Recorder step_;
  std::vector<std::vector<int>> layers_;
  std::vector<std::pair<int, Pass>> open_;
  std::vector<int> late_;  // parameters whose gradient is produced at the end of the microbatch
};

// Returns, for each unit, the first events of the intervals in which a member of the unit is in use.
std::map<int, std::vector<int>> stretches(const Trace& trace, const Schedule& schedule) {
  std::map<int, std::vector<int>> found;
  for (int unit = 0; unit < static_cast<int>(schedule.gather_units.size()); ++unit) {
    const Unit& members = schedule.gather_units[static_cast<std::size_t>(unit)];
    int users = 0;
    for (int index = 0; index < schedule.events; ++index) {
      const Event& event = trace[static_cast<std::size_t>(index)];
      if (!std::ranges::count(members, event.parameter)) continue;
      if (event.kind == EventKind::consume && users++ == 0) found[unit].push_back(index);
      if (event.kind == EventKind::release) --users;
    }
  }
  return found;
}

std::string refusal(const Case& made, const ScheduleOptions& options) {
  try {
    plan(made.trace, made.sizes, options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// Expects that the schedule is correct and within the budgets, that its arenas have no unused end, and that gathers are
// in the order of need.
void expect_sound(const Case& made, const ScheduleOptions& options, const Schedule& schedule) {
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  std::int64_t gather_end = 0, reduce_end = 0;
  for (const Residency& it : schedule.residencies) {
    const auto unit = static_cast<std::size_t>(it.unit);
    gather_end = std::max(
        {gather_end, it.offset + schedule.gather_bytes[unit], it.unpacked_offset + schedule.unpacked_bytes[unit]});
  }
  for (const ColumnwiseCopy& it : schedule.copies)
    gather_end = std::max(gather_end, it.offset + schedule.columnwise_bytes[static_cast<std::size_t>(it.unit)]);
  for (const Reduction& it : schedule.reductions)
    reduce_end = std::max(reduce_end, it.offset + schedule.reduce_bytes[static_cast<std::size_t>(it.unit)]);
  EXPECT_EQ(schedule.gather_arena, gather_end);
  EXPECT_EQ(schedule.reduce_arena, reduce_end);
  if (options.gather_budget != kMinimum) {
    EXPECT_LE(schedule.gather_arena, options.gather_budget);
  }
  if (options.reduce_budget != kMinimum) {
    EXPECT_LE(schedule.reduce_arena + schedule.scratch, options.reduce_budget);
  }
  EXPECT_TRUE(std::ranges::is_sorted(schedule.residencies, {}, &Residency::issue));
  EXPECT_TRUE(std::ranges::is_sorted(schedule.residencies, {}, &Residency::wait));
  std::map<int, std::vector<int>> needed = stretches(made.trace, schedule);
  for (const Residency& it : schedule.residencies)
    EXPECT_EQ(std::ranges::count(needed[it.unit], it.wait), 1) << "gathered without a stretch that begins at it";
  EXPECT_TRUE(std::ranges::is_sorted(schedule.copies, {}, &ColumnwiseCopy::make));
  for (std::size_t i = 1; i < schedule.residencies.size(); ++i)
    EXPECT_NE(schedule.residencies[i - 1].wait, schedule.residencies[i].wait);
}

class PlanRandomSteps : public ::testing::TestWithParam<int> {
 protected:
  // Calls visit(step, largest size of a unit) for the programs of this part.
  template <typename Visit>
  void for_each_program(Visit visit) {
    constexpr int parts = 4;
    for (int seed = GetParam(); seed < kPrograms; seed += parts) {
      const Case made = RandomStep(static_cast<std::uint64_t>(seed)).make();
      for (const std::int64_t coalesce : {std::int64_t{0}, Random(seed).between(1, 20000)}) {
        SCOPED_TRACE(fmt::format("{}, coalesced up to {}", made.name, coalesce));
        visit(made, ScheduleOptions{.gather_budget = kMinimum, .reduce_budget = kMinimum, .coalesce_bytes = coalesce});
        if (HasFailure()) return;  // one failure is enough to stop
      }
    }
  }
};

TEST_P(PlanRandomSteps, AreCorrectAndFitEveryBudget) {
  for_each_program([](const Case& made, const ScheduleOptions& smallest) {
    const Schedule least = plan(made.trace, made.sizes, smallest);
    expect_sound(made, smallest, least);
    ScheduleOptions unlimited = smallest;
    unlimited.gather_budget = unlimited.reduce_budget = kUnlimited;
    const Schedule most = plan(made.trace, made.sizes, unlimited);
    expect_sound(made, unlimited, most);
    Random random(most.trace_hash);
    for (int between = 0; between < 4; ++between) {
      ScheduleOptions options = smallest;
      options.gather_budget = random.between(least.gather_arena, std::max(least.gather_arena, most.gather_arena));
      options.reduce_budget = least.scratch + random.between(least.reduce_arena, most.reduce_arena);
      SCOPED_TRACE(fmt::format("budgets {} and {}", options.gather_budget, options.reduce_budget));
      const Schedule some = plan(made.trace, made.sizes, options);
      expect_sound(made, options, some);
      EXPECT_LE(some.residencies.size(), least.residencies.size());
      EXPECT_EQ(some, plan(made.trace, made.sizes, options));
    }
  });
}

TEST_P(PlanRandomSteps, RefuseABudgetBelowTheMinimumAndReportBoth) {
  for_each_program([](const Case& made, const ScheduleOptions& smallest) {
    const Schedule least = plan(made.trace, made.sizes, smallest);
    auto expect_limit = [&](std::int64_t ScheduleOptions::*budget, std::int64_t needed) {
      for (const std::int64_t below : {needed - kArenaAlignment, needed - 1}) {
        if (below <= kMinimum) continue;
        ScheduleOptions options = smallest;
        options.*budget = below;
        EXPECT_THAT(refusal(made, options), AllOf(HasSubstr(std::to_string(below)), HasSubstr(std::to_string(needed))));
      }
      ScheduleOptions enough = smallest;
      enough.*budget = needed;
      expect_sound(made, enough, plan(made.trace, made.sizes, enough));
    };
    expect_limit(&ScheduleOptions::gather_budget, least.gather_arena);
    expect_limit(&ScheduleOptions::reduce_budget, least.reduce_arena + least.scratch);
  });
}

TEST_P(PlanRandomSteps, GatherAndCopyEveryUnitOnceWithUnlimitedBudgets) {
  for_each_program([](const Case& made, ScheduleOptions options) {
    options.gather_budget = options.reduce_budget = kUnlimited;
    const Schedule schedule = plan(made.trace, made.sizes, options);
    std::vector<int> gathered(schedule.gather_units.size(), 0), copied = gathered, all = gathered, used = gathered;
    for (const Residency& it : schedule.residencies) ++gathered[static_cast<std::size_t>(it.unit)];
    for (const ColumnwiseCopy& it : schedule.copies) ++copied[static_cast<std::size_t>(it.unit)];
    for (int unit = 0; unit < static_cast<int>(schedule.gather_units.size()); ++unit) {
      const auto u = static_cast<std::size_t>(unit);
      all[u] = schedule.stays_in_place(unit) ? 0 : 1;
      const auto reads = [&](const Event& event) {
        return event.kind == EventKind::consume && event.pass == Pass::backward &&
               std::ranges::count(schedule.gather_units[u], event.parameter) > 0;
      };
      used[u] = schedule.copies_columnwise(unit) && std::ranges::any_of(made.trace, reads) ? 1 : 0;
    }
    EXPECT_EQ(gathered, all);
    EXPECT_EQ(copied, used);
  });
}

INSTANTIATE_TEST_SUITE_P(Parts, PlanRandomSteps, ::testing::Range(0, 4));

// In every sweep except the first, the layers of the end of the previous sweep are still in the arena.
TEST(PlanGathers, WeightsThatAreNeededSoonStay) {
  constexpr int depth = 7, batches = 3;
  const Case made = oracle::mirrored_layers(depth, batches, {kArenaAlignment});
  for (int room = 1; room <= depth; ++room) {
    const Schedule schedule = plan(made.trace, made.sizes, {.gather_budget = room * kArenaAlignment});
    EXPECT_EQ(schedule.gather_arena, room * kArenaAlignment);
    EXPECT_EQ(schedule.residencies.size(), depth + (2 * batches - 1) * (depth - room)) << "room " << room;
  }
}

// Returns sizes for which packed bytes stay as long as the unpacked bytes.
std::vector<ParameterSize> with_one_stage(std::vector<ParameterSize> sizes) {
  for (ParameterSize& size : sizes) size.gathered += std::exchange(size.unpacked, 0);
  return sizes;
}

// Two weights are in use at the same time. The packed bytes of one weight are enough.
TEST(PlanStages, PackedBytesAreFreeAfterUnpacking) {
  constexpr std::int64_t packed = kArenaAlignment, unpacked = 4 * kArenaAlignment;
  Recorder step("two weights at once", {{"a", packed, 1, unpacked}, {"b", packed, 1, unpacked}});
  step.microbatch();
  step.consume(0, Pass::forward), step.use(1, Pass::forward), step.release(0, Pass::forward);
  step.backward(1), step.backward(0);
  step.publish(0), step.publish(1);
  const Case made = step.take();
  const Schedule schedule = plan(made.trace, made.sizes, {.gather_budget = kMinimum});
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  EXPECT_EQ(schedule.gather_arena, 2 * unpacked + packed);
  EXPECT_EQ(plan(made.trace, with_one_stage(made.sizes), {.gather_budget = kMinimum}).gather_arena,
            2 * (unpacked + packed));
}

// Every weight stays in the arena. At the end all weights are unpacked, and there are no packed bytes.
TEST(PlanStages, WithUnlimitedBudgetsOnlyUnpackedWeightsRemain) {
  constexpr int layers = 9;
  Case made = oracle::mirrored_layers(layers, 2, {kArenaAlignment});
  for (ParameterSize& size : made.sizes) size.unpacked = 4 * kArenaAlignment;
  const Schedule schedule = plan(made.trace, made.sizes, {}), whole = plan(made.trace, with_one_stage(made.sizes), {});
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  EXPECT_EQ(whole.gather_arena, 5 * layers * kArenaAlignment);
  EXPECT_EQ(schedule.residencies.size(), static_cast<std::size_t>(layers));
  EXPECT_LE(schedule.gather_arena, (4 * layers + 2) * kArenaAlignment);
}

// The same arena holds more weights, so fewer weights are gathered again.
TEST(PlanStages, FreeingPackedBytesSavesGathersInTheSameArena) {
  Case made = oracle::mirrored_layers(24, 2, {3 * kArenaAlignment, kArenaAlignment, 2 * kArenaAlignment});
  for (ParameterSize& size : made.sizes) size.unpacked = 2 * size.gathered;
  for (const std::int64_t budget : {40, 60, 80, 120}) {
    const ScheduleOptions options{.gather_budget = budget * kArenaAlignment};
    const Schedule schedule = plan(made.trace, made.sizes, options);
    EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
    const std::size_t whole = plan(made.trace, with_one_stage(made.sizes), options).residencies.size();
    EXPECT_LT(schedule.residencies.size(), whole) << budget;
  }
}

// Weights that are unpacked do not share a unit with weights that are used without unpacking.
TEST(PlanStages, UnitsDoNotMixPackedAndPlainWeights) {
  Case made = oracle::mirrored_layers(6, 1, {kArenaAlignment});
  for (const std::size_t id : {1, 2, 5}) made.sizes[id].unpacked = 2 * kArenaAlignment;
  made.sizes[0].gathered = 16 * kArenaAlignment;
  const Schedule schedule = plan(made.trace, made.sizes, {.coalesce_bytes = 1 << 20});
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  EXPECT_EQ(schedule.gather_units, (std::vector<Unit>{{0}, {1, 2}, {3, 4}, {5}}));
  EXPECT_EQ(schedule.unpacked_bytes[1], 4 * kArenaAlignment);
}

// The schedule of `microbatches` microbatches over layers with columnwise copies of their own size.
class PlanCopies : public ::testing::Test {
 protected:
  static constexpr int kLayers = 6, kMicrobatches = 4;
  PlanCopies() {
    for (ParameterSize& size : made_.sizes) size.columnwise = kArenaAlignment;
  }
  Schedule planned(std::int64_t budget) {
    Schedule schedule = plan(made_.trace, made_.sizes, {.gather_budget = budget});
    EXPECT_THAT(check(made_.trace, made_.sizes, schedule), IsEmpty());
    return schedule;
  }
  void stay_in_place() {
    for (ParameterSize& size : made_.sizes) size.gathered = 0;
  }
  Case made_ = oracle::mirrored_layers(kLayers, kMicrobatches, {kArenaAlignment});
};

TEST_F(PlanCopies, AreMadeOnceIfEverythingFits) {
  const Schedule schedule = planned(kUnlimited);
  EXPECT_EQ(schedule.gather_arena, 2 * kLayers * kArenaAlignment);
  EXPECT_EQ(schedule.residencies.size(), static_cast<std::size_t>(kLayers));
  EXPECT_EQ(schedule.copies.size(), static_cast<std::size_t>(kLayers));
}

// In the smallest arena a residency has one backward pass, so a copy is made for each.
TEST_F(PlanCopies, InTheSmallestArenaAreMadeForEachResidency) {
  const Schedule schedule = planned(kMinimum);
  EXPECT_EQ(schedule.gather_arena, 2 * kArenaAlignment);
  EXPECT_EQ(schedule.copies.size(), static_cast<std::size_t>(kLayers * kMicrobatches));
}

// A copy costs less than a gather. With room for the weights and one copy, nothing is gathered twice.
TEST_F(PlanCopies, AreEvictedBeforeWeights) {
  const Schedule schedule = planned((kLayers + 1) * kArenaAlignment);
  EXPECT_EQ(schedule.residencies.size(), static_cast<std::size_t>(kLayers));
  EXPECT_EQ(schedule.copies.size(), static_cast<std::size_t>(kLayers * kMicrobatches));
  // Each copy that stays saves one copy in each later microbatch.
  for (int kept = 2; kept <= kLayers; ++kept) {
    const Schedule more = planned((kLayers + kept) * kArenaAlignment);
    EXPECT_EQ(more.residencies.size(), static_cast<std::size_t>(kLayers));
    EXPECT_LT(more.copies.size(), static_cast<std::size_t>(kLayers * kMicrobatches)) << kept;
  }
}

// Weights that stay in place need no gathers. Their copies stay until the end of the step if the budget allows.
TEST_F(PlanCopies, OfWeightsInPlaceNeedNoResidency) {
  stay_in_place();
  const Schedule all = planned(kUnlimited), least = planned(kMinimum);
  EXPECT_THAT(all.residencies, IsEmpty());
  EXPECT_EQ(all.copies.size(), static_cast<std::size_t>(kLayers));
  EXPECT_EQ(all.gather_arena, kLayers * kArenaAlignment);
  EXPECT_THAT(least.residencies, IsEmpty());
  EXPECT_EQ(least.copies.size(), static_cast<std::size_t>(kLayers * kMicrobatches));
  EXPECT_EQ(least.gather_arena, kArenaAlignment);
}

TEST_F(PlanCopies, OfAUnitAreMadeTogether) {
  for (const bool in_place : {false, true}) {
    if (in_place) stay_in_place();
    made_.sizes[0].gathered = 16 * kArenaAlignment;
    made_.sizes[0].columnwise = 16 * kArenaAlignment;
    made_.sizes[3].columnwise = 0;
    const Schedule schedule = plan(made_.trace, made_.sizes, {.coalesce_bytes = 1 << 20});
    EXPECT_THAT(check(made_.trace, made_.sizes, schedule), IsEmpty());
    EXPECT_EQ(schedule.gather_units,
              in_place ? (std::vector<Unit>{{0}, {1, 2, 4, 5}}) : (std::vector<Unit>{{0}, {1, 2}, {3}, {4, 5}}));
    EXPECT_EQ(schedule.columnwise_bytes[1], (in_place ? 4 : 2) * kArenaAlignment);
    EXPECT_EQ(schedule.copies.size(), in_place ? 2U : 3U);
  }
}

// An evaluation has no backward pass.
TEST(PlanCopySteps, AnEvaluationMakesNoCopies) {
  Recorder step("an evaluation", {{"a", 256, 1, 0, 256}, {"stored", 0, 1, 0, 256}}, StepKind::evaluate);
  step.microbatch();
  step.use(0, Pass::forward), step.use(1, Pass::forward);
  const Case made = step.take();
  const Schedule schedule = plan(made.trace, made.sizes, {});
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  EXPECT_THAT(schedule.copies, IsEmpty());
  EXPECT_EQ(schedule.gather_arena, 256);
}

// A message goes over the ranks of one domain.
TEST(PlanUnits, HaveMembersOfOneDomain) {
  Case made = oracle::mirrored_layers(6, 1, {kArenaAlignment});
  for (const std::size_t id : {2, 3}) made.sizes[id].domain = 1;
  made.sizes[0].gathered = made.sizes[0].staging = 16 * kArenaAlignment;
  const Schedule schedule = plan(made.trace, made.sizes, {.coalesce_bytes = 1 << 20});
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  EXPECT_EQ(schedule.gather_units, (std::vector<Unit>{{0}, {1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(schedule.reduce_units, (std::vector<Unit>{{5, 4}, {3, 2}, {1}, {0}}));
  EXPECT_EQ(schedule.gather_domains, (std::vector<int>{0, 0, 1, 0}));
  EXPECT_EQ(schedule.reduce_domains, (std::vector<int>{0, 1, 0, 0}));
  made.sizes[5].domain = 1;
  EXPECT_THAT(check(made.trace, made.sizes, schedule),
              ElementsAre(HasSubstr("gather unit 3 ['w4', 'w5']: expected members of domain 0, got 'w5' of domain 1"),
                          HasSubstr("reduce unit 0 ['w5', 'w4']: expected members of domain 0, got 'w5' of domain 1")));
}

// The gradients of vectors share a unit although matrices are between them. The limit of a unit holds.
TEST(PlanUnits, VectorsTravelTogether) {
  Case made = oracle::mirrored_layers(6, 2, {kArenaAlignment});
  for (const std::size_t id : {0, 2, 5}) made.sizes[id].is_vector = true;
  for (const std::size_t id : {1, 3, 4}) made.sizes[id].staging = 2 * kArenaAlignment;
  const auto units = [&](std::int64_t coalesce) {
    const Schedule schedule = plan(made.trace, made.sizes, {.coalesce_bytes = coalesce});
    EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
    EXPECT_EQ(schedule.reductions.size(), 2 * schedule.reduce_units.size());
    return schedule.reduce_units;
  };
  made.sizes[1].staging = 3 * kArenaAlignment;
  EXPECT_EQ(units(1 << 20), (std::vector<Unit>{{4}, {3}, {1}, {5, 2, 0}}));
  EXPECT_EQ(units(2 * kArenaAlignment), (std::vector<Unit>{{4}, {3}, {1}, {5, 2}, {0}}));
  EXPECT_EQ(units(0), (std::vector<Unit>{{4}, {3}, {1}, {5}, {2}, {0}}));
}

// 100,000 events with few weights that are used often, and with many weights that are used once. Sizes differ like the
// sizes of a block. The times are printed and not checked: for sizes that repeat, and for sizes that leave irregular
// gaps.
TEST(PlanSpeed, AHundredThousandEvents) {
  std::vector<std::int64_t> irregular;
  for (std::int64_t i = 0; i < 111; ++i) irregular.push_back(256 * (1 + i * i * 7919 % 251));
  for (const std::vector<std::int64_t>& bytes : {std::vector<std::int64_t>{6000, 4096, 28672, 14336, 777}, irregular})
    for (const auto& [layers, microbatches] : {std::pair(500, 40), {2000, 10}, {16666, 1}}) {
      const Case made = oracle::mirrored_layers(layers, microbatches, bytes);
      const Schedule most = plan(made.trace, made.sizes, {});
      for (const int part : {1, 10}) {
        const std::int64_t budget = std::max(most.gather_arena / part, 2 * std::ranges::max(bytes));
        const std::clock_t start = std::clock();
        const Schedule schedule = plan(made.trace, made.sizes, {.gather_budget = budget, .reduce_budget = budget});
        const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
        EXPECT_GE(schedule.residencies.size(), static_cast<std::size_t>(layers));
        std::cout << fmt::format(
            "{} events, {} weights of {} sizes, room for 1/{} of them: {} gathers, planned in {:.3f} s of processor "
            "time\n",
            made.trace.size(), layers, bytes.size(), part, schedule.residencies.size(), seconds);
      }
    }
}

}  // namespace
}  // namespace tessera::schedule
