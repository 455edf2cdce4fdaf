// The checker on handwritten schedules. Each test breaks one rule and expects its fault. The step has two layers: per
// microbatch a+ a- b+ b- | b+ b! b- a+ a! a-, then the publish events of a and b at the positions -2 and -1.
#include "tessera/schedule/check/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <chrono>
#include <iostream>

#include "tessera/base/error.h"
#include "tessera/schedule/plan/plan.h"
#include "tests/schedule/handwritten_step.h"

namespace tessera::schedule {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Check, AcceptsAHandwrittenSchedule) {
  EXPECT_THAT(faults(), IsEmpty());
}

// With one slot per weight, a pending gather for backward would satisfy the consume event of forward.
TEST_F(Check, TwoResidenciesOfOneUnitAtOnce) {
  schedule_.residencies[0].last = 9;
  schedule_.residencies[2] = {.unit = 0, .issue = 1, .free = 1, .wait = 7, .last = 11, .offset = 5};
  schedule_.gather_arena = 7;
  EXPECT_THAT(faults(), Contains(HasSubstr("residency 2 of ['a'] (issue 1, free 1, wait 7, last 11, offset 5): begins "
                                           "before the end of residency 0 of ['a']")));
}

// Tests a reduction that is still pending at the end of the step.
TEST_F(Check, AReductionWithoutItsFinishBeforeThePublishEvents) {
  schedule_.reductions[3].finish = 20;
  EXPECT_THAT(faults(),
              Contains(HasSubstr("reduction 3 of ['a'] in microbatch 1 (first 18, issue 18, finish 20, offset "
                                 "0): expected 0 <= first <= issue <= finish < 20")));
}

TEST_F(Check, AGradientThatIsNotReduced) {
  schedule_.reductions.erase(schedule_.reductions.begin() + 1);
  for (Reduction& it : schedule_.reductions) it.scratch_waits.clear();
  EXPECT_THAT(faults(),
              Contains(HasSubstr("event 8 (train mb 0 backward produce a (0)): expected one reduction of this "
                                 "gradient, got none")));
}

TEST_F(Check, AGradientReducedTwice) {
  schedule_.reductions.insert(schedule_.reductions.begin(), schedule_.reductions[0]);
  EXPECT_THAT(faults(), Contains(HasSubstr("reduction 1 of ['b'] in microbatch 0 (first 5, issue 5, finish 14, offset "
                                           "2): begins before the issue of reduction 0 of ['b']")));
}

// With delayed weight gradients, the reduction belongs to the produce event, and not to the release event.
TEST(CheckSteps, DelayedGradientsAreReducedFromTheirProduceEvents) {
  const oracle::Case made = case_named("weight gradients after the backward");
  std::mt19937_64 random(1);
  Schedule schedule = oracle::random_schedule(made, random);
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  // The event is the release event in the backward pass.
  schedule.reductions.front().first = schedule.reductions.front().issue = 7;
  EXPECT_THAT(check(made.trace, made.sizes, schedule),
              Contains(HasSubstr("expected a produce event of the unit in this microbatch, got event 7")));
}

// A parameter has one staging at a time. The checker refuses interleaved produce events of two microbatches.
TEST(CheckSteps, StagingsOfOneUnitFollowEachOther) {
  oracle::Recorder step("produce events of two microbatches that interleave", {{"a", 2, 2}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    step.backward(0), step.backward(0);
  }
  step.publish(0);
  oracle::Case made = step.take();
  std::swap(made.trace[4].microbatch, made.trace[7].microbatch);
  std::mt19937_64 random(1);
  EXPECT_THAT(
      check(made.trace, made.sizes, oracle::random_schedule(made, random)),
      Contains(HasSubstr("begins before the issue of reduction 0 of ['a'] in microbatch 0 (first 1, issue 7,")));
}

// A gradient without staging has no reduction. A second one in a step would overwrite it.
TEST(CheckSteps, AGradientWithoutStagingIsProducedOnceAStep) {
  for (const int microbatches : {1, 2}) {
    oracle::Recorder step("a gradient without staging", {{"a", 2, 2}, {"b", 2, 0}});
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      step.microbatch();
      step.backward(0), step.backward(1);
      step.produce(1);
    }
    step.publish(0), step.publish(1);
    const oracle::Case made = step.take();
    const std::vector<std::string> faults = check(made.trace, made.sizes, plan(made.trace, made.sizes, {}));
    if (microbatches == 1)
      EXPECT_THAT(faults, IsEmpty());
    else
      EXPECT_THAT(faults,
                  Contains(HasSubstr("expected one produce event in a step, because the gradient has no staging")));
  }
}

// The consume event of a recompute pass is a separate event. A gather for backward alone does not satisfy it.
TEST(CheckSteps, ARecomputeConsumeEventNeedsItsOwnWeights) {
  const oracle::Case made = case_named("recompute");
  Schedule schedule = plan(made.trace, made.sizes, {});
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  // The events of parameter a are forward 0-1, recompute 9-10 and backward 16-18. The residency is split in two
  // residencies that do not include the recompute.
  Residency& whole = schedule.residencies.front();
  ASSERT_EQ(whole.last, 18);
  whole.last = 1;
  schedule.residencies.push_back(
      {.unit = whole.unit, .issue = 10, .free = 10, .wait = 16, .last = 18, .offset = whole.offset});
  EXPECT_THAT(check(made.trace, made.sizes, schedule),
              Contains(HasSubstr("event 9 (train mb 0 recompute consume a (0)): expected a position inside a residency "
                                 "of its unit, got none")));
}

// A layer is used twice. Its gradients accumulate and are then reduced once.
TEST(CheckSteps, AReductionBeforeTheSecondUseHasProduced) {
  const oracle::Case made = case_named("tied");
  Schedule schedule = plan(made.trace, made.sizes, {});
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  const auto tied = std::ranges::find_if(schedule.reductions, [](const Reduction& it) { return it.first != it.issue; });
  ASSERT_NE(tied, schedule.reductions.end());
  tied->issue = tied->first;
  std::ranges::sort(schedule.reductions, {}, &Reduction::issue);
  for (Reduction& it : schedule.reductions) it.scratch_waits.clear();
  EXPECT_THAT(check(made.trace, made.sizes, schedule), Contains(HasSubstr("produce embedding (1)): outside of")));
}

// Neighbours that share buffers by shape and parity would overlap.
TEST_F(Check, NeighboursThatOverlap) {
  schedule_.residencies[2].offset = 1;
  EXPECT_THAT(faults(), Contains("event 2 (train mb 0 forward consume b (0)): expected the weights of residency 1 of "
                                 "['b'] (issue -1, free -1, wait 2, last 6, offset 2), got residency 2 of ['a'] (issue "
                                 "1, free 1, wait 7, last 11, offset 1) in its bytes"));
}

TEST_F(Check, AGatherIntoBytesThatAreStillRead) {
  schedule_.residencies[3].free = 5;
  EXPECT_THAT(faults(), Contains(HasSubstr("residency 3 of ['b'] (issue 6, free 5, wait 12, last 16, offset 2): its "
                                           "gather may overwrite the end of residency 1 of ['b']")));
}

TEST_F(Check, AResidencyThatEndsBeforeItsLastRelease) {
  schedule_.residencies[1].last = 3;
  EXPECT_THAT(faults(),
              Contains(HasSubstr(
                  "event 4 (train mb 0 backward consume b (0)): expected a position inside a residency of its unit, "
                  "got none")));
}

TEST_F(Check, AConsumeEventBeforeItsWait) {
  schedule_.residencies[1].wait = 4;
  EXPECT_THAT(faults(),
              Contains(HasSubstr(
                  "event 2 (train mb 0 forward consume b (0)): expected a position inside a residency of its unit, "
                  "got none")));
}

TEST_F(Check, AWaitForAGatherIssuedLater) {
  schedule_.residencies[4].issue = 17;
  EXPECT_THAT(faults(), Contains(HasSubstr("expected the issue before the consume event that waits for it")));
}

// A prefetch reads weights that the optimizer has not published yet.
TEST_F(Check, AGatherBeforeThePublishEventOfItsWeight) {
  schedule_.residencies[1].issue = schedule_.residencies[1].free = -2;
  EXPECT_THAT(faults(), Contains("event 21 (train publish b (0)): the optimizer writes the shard while residency 1 of "
                                 "['b'] (issue -2, free -2, wait 2, last 6, offset 2) may be reading it"));
}

TEST_F(Check, AGatherThatDoesNotWaitForThePublishEventOfItsWeight) {
  schedule_.residencies[1].free = -2;
  EXPECT_THAT(faults(), Contains(HasSubstr("'b' before its publish event is done")));
}

// The sum over replicas runs before the last accumulation.
TEST_F(Check, ReplicasSummedBeforeTheLastMicrobatch) {
  schedule_.reductions[1].replicas = true;
  schedule_.reductions[3].replicas = false;
  EXPECT_THAT(faults(),
              Contains(HasSubstr("not the unit's last reduction of the step: expected replicas false, got true")));
  EXPECT_THAT(faults(),
              Contains(HasSubstr("the unit's last reduction of the step: expected replicas true, got false")));
}

// A gather waits only for its bytes and its publish event. Both fences are long before its issue.
TEST_F(Check, AGatherNeedNotWaitForTheComputeBeforeItsIssue) {
  schedule_.residencies[2].issue = 6;
  schedule_.residencies[3].issue = 9;
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(Check, StagingWrittenBeforeTheExchangeOfItsBytesIsDone) {
  schedule_.reductions[0].finish = 15;
  EXPECT_THAT(faults(),
              Contains(HasSubstr("reduction 2 of ['b'] in microbatch 1 (first 15, issue 15, finish 19, offset "
                                 "2): its staging is written in segment 15 while reduction 0 of ['b']")));
}

TEST_F(Check, StagingsThatOverlap) {
  schedule_.reductions[1].offset = 1;
  schedule_.reductions[0].finish = 8;
  EXPECT_THAT(faults(), Contains(HasSubstr("its staging is written in segment 8 while reduction 0 of ['b']")));
}

TEST_F(Check, IssuesOutOfOrder) {
  std::swap(schedule_.residencies[2], schedule_.residencies[3]);
  std::swap(schedule_.reductions[0], schedule_.reductions[1]);
  EXPECT_THAT(faults(), Contains(HasSubstr("expected issues in order, here at 6 or later, got 1")));
  EXPECT_THAT(faults(), Contains(HasSubstr("expected issues in order, but the previous one is at 8")));
}

TEST_F(Check, ArenasThatAreTooSmall) {
  schedule_.gather_arena = 4;
  schedule_.reduce_arena = 2;
  EXPECT_THAT(faults(), Contains(HasSubstr("its 3 bytes do not fit into the gather arena of 4 bytes")));
  EXPECT_THAT(faults(), Contains(HasSubstr("its 1 bytes do not fit into the reduce arena of 2 bytes")));
}

TEST_F(Check, SizesThatDoNotHoldTheirMembers) {
  schedule_.gather_bytes[1] = 2;
  EXPECT_THAT(faults(), Contains("gather unit 1 ['b']: expected at least 3 bytes for its members, got 2"));
  schedule_.gather_bytes[1] = 3;
  schedule_.scratch = 1;
  EXPECT_THAT(faults(), Contains("the exchange of ['a'] needs 2 bytes of scratch, got 1"));
}

TEST_F(Check, ScratchThatAnEarlierSumStillReads) {
  schedule_.reductions[1].scratch_waits = {};
  EXPECT_THAT(faults(), Contains(HasSubstr("its exchange may write the scratch of reduction 0 of ['b']")));
  schedule_.reductions[1].scratch_waits = {2};
  EXPECT_THAT(faults(), Contains(HasSubstr("waits for the sum of reduction 2, expected an earlier one")));
  schedule_.reductions[1].scratch_waits = {0};
  schedule_.reductions[1].scratch = 1;
  EXPECT_THAT(faults(), Contains(HasSubstr("its 2 bytes do not fit in the scratch of 2 bytes at 1")));
}

TEST_F(Check, AWeightOfAnotherDomainDoesNotOrderAGather) {
  // Residency 3 of b takes the bytes of residency 1 of b, so it need not wait for uses of another domain.
  made_.sizes[1].domain = schedule_.gather_domains[1] = schedule_.reduce_domains[1] = 1;
  EXPECT_THAT(faults(), IsEmpty());
  // Residency 4 takes bytes of a, whose last release is event 11. With one domain, the gather of residency 4 would wait
  // for this release.
  schedule_.residencies.insert(schedule_.residencies.begin() + 4,
                               {.unit = 1, .issue = 11, .free = 6, .wait = 12, .last = 16, .offset = 0});
  schedule_.residencies.erase(schedule_.residencies.begin() + 3);
  schedule_.residencies[4].offset = 3;
  EXPECT_THAT(faults(), Contains(HasSubstr("its gather may overwrite the end of residency 2 of ['a']")));
  schedule_.residencies[3].free = 11;
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(Check, AFinishOfAnotherDomainOrdersNothing) {
  made_.sizes[1].domain = schedule_.gather_domains[1] = schedule_.reduce_domains[1] = 1;
  // The reduction of b takes the bytes of the reduction of a, which is finished later.
  schedule_.reductions[2].offset = 0;
  EXPECT_THAT(faults(), Contains(HasSubstr("its staging is written in segment 15 while reduction 1 of ['a']")));
  schedule_.reductions[1].finish = 14;
  schedule_.reductions[3].offset = 1;
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(Check, DomainsThatAreUnknownOrTooMany) {
  schedule_.gather_domains = {0};
  EXPECT_THAT(faults(), Contains("gather units: expected one domain each (2), got 1"));
  schedule_.gather_domains = {0, 9};
  made_.sizes[1].domain = 9;
  EXPECT_THAT(faults(), Contains("gather unit 1 ['b']: expected a domain from 0 to 4, got 9"));
}

TEST_F(Check, UnitsWithSharedOrUnknownParameters) {
  schedule_.gather_units[1] = {1, 0, 7};
  EXPECT_THAT(faults(), Contains("'a' is a member of the gather units 0 and 1, expected one"));
  EXPECT_THAT(faults(), Contains("gather unit 1: expected parameters below 2, got 7"));
}

TEST_F(Check, AScheduleForAnotherTrace) {
  made_.trace[3].ordinal = 5;
  EXPECT_THAT(faults(), Contains(HasSubstr("the schedule is for a trace of hash")));
  schedule_.events = 21;
  schedule_.body = 19;
  schedule_.microbatches = 1;
  EXPECT_THAT(faults(), Contains("the schedule is for 21 events, but the trace has 22"));
  EXPECT_THAT(faults(), Contains("the schedule's body has 19 events, but the trace's body has 20"));
  EXPECT_THAT(faults(), Contains("the schedule has 1 microbatches, but the trace has 2"));
}

// The same step with weights that are unpacked: a has 2 packed and 3 unpacked bytes, b has 1 and 4.
class CheckStages : public Check {
 protected:
  CheckStages() {
    made_.sizes[0].unpacked = 3;
    made_.sizes[1].gathered = 1;
    made_.sizes[1].unpacked = 4;
    schedule_.gather_bytes = {2, 1};
    schedule_.unpacked_bytes = {3, 4};
    schedule_.gather_arena = 7;
    schedule_.residencies = {
        {.unit = 0, .issue = -2, .free = -2, .wait = 0, .last = 1, .offset = 0, .unpacked_offset = 2},
        {.unit = 1, .issue = -1, .free = -1, .wait = 2, .last = 6, .offset = 5, .unpacked_offset = 0},
        {.unit = 0, .issue = 2, .free = 2, .wait = 7, .last = 11, .offset = 4, .unpacked_offset = 0},
        {.unit = 1, .issue = 2, .free = -1, .wait = 12, .last = 16, .offset = 6, .unpacked_offset = 0},
        {.unit = 0, .issue = 7, .free = 7, .wait = 17, .last = 19, .offset = 4, .unpacked_offset = 0},
    };
  }
};

TEST_F(CheckStages, AcceptsAHandwrittenSchedule) {
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(CheckStages, AGatherIntoPackedBytesThatAreNotUnpackedYet) {
  schedule_.residencies[4].free = 6;
  EXPECT_THAT(faults(), Contains(HasSubstr("its gather may overwrite the end of the packed bytes of residency 2")));
  schedule_.residencies[4].issue = 6;
  EXPECT_THAT(faults(),
              Contains(HasSubstr("expected its packed bytes where they are unpacked, before event 7 (train mb "
                                 "0 backward consume a (0)), got the packed bytes of residency 4")));
}

TEST_F(CheckStages, AGatherIntoUnpackedBytesThatAreInUse) {
  schedule_.residencies[2].offset = 3;
  EXPECT_THAT(faults(), Contains(HasSubstr("unpacked to 0), got the packed bytes of residency 2 of ['a']")));
}

TEST_F(CheckStages, UnpackingOverAGatherInFlight) {
  schedule_.residencies[3].unpacked_offset = 2;
  EXPECT_THAT(faults(),
              Contains(HasSubstr("its unpacked bytes are written before event 12 (train mb 1 forward consume b "
                                 "(0)) while the gather of the packed bytes of residency 4")));
}

TEST_F(CheckStages, UnpackingOverUnpackedBytesThatAreInUse) {
  schedule_.residencies[1].unpacked_offset = 1;
  schedule_.residencies[0].last = 9;
  schedule_.residencies.erase(schedule_.residencies.begin() + 2, schedule_.residencies.end());
  EXPECT_THAT(faults(), Contains(HasSubstr("event 7 (train mb 0 backward consume a (0)): expected the weights of "
                                           "residency 0")));
}

TEST_F(CheckStages, UnpackingBeforeTheGatherOrAfterTheFirstUse) {
  schedule_.residencies[2].wait = 10;
  EXPECT_THAT(faults(),
              Contains(HasSubstr(
                  "event 7 (train mb 0 backward consume a (0)): expected a position inside a residency of its unit, "
                  "got none")));
  schedule_.residencies[2].wait = 7;
  schedule_.residencies[4].wait = 7;
  EXPECT_THAT(faults(), Contains(HasSubstr("expected the issue before the consume event that waits for it")));
}

TEST_F(CheckStages, StagesThatOverlapOrLeaveTheArena) {
  schedule_.residencies[1].unpacked_offset = 2;
  EXPECT_THAT(faults(), Contains(HasSubstr("offset 5, unpacked to 2): its packed and its unpacked bytes overlap")));
  schedule_.residencies[1].unpacked_offset = 4;
  EXPECT_THAT(faults(), Contains(HasSubstr("its 4 unpacked bytes do not fit into the gather arena of 7 bytes")));
}

TEST_F(CheckStages, UnitsWithPackedAndPlainWeights) {
  schedule_.unpacked_bytes[1] = 3;
  EXPECT_THAT(faults(), Contains("gather unit 1 ['b']: expected at least 4 bytes for its members unpacked, got 3"));
  schedule_.unpacked_bytes[1] = 4;
  made_.sizes[1].unpacked = 0;
  EXPECT_THAT(faults(), Contains("gather unit 1 ['b']: expected members that are all unpacked or all used without "
                                 "unpacking, got 'b'"));
}

// A weight that is not gathered is unpacked from its shard. It is unpacked after the publish event, without waiting for
// bytes.
TEST(CheckSteps, AStoredWeightIsUnpackedInsteadOfGathered) {
  const oracle::Case made = case_named("one that is not gathered");
  const Schedule schedule = plan(made.trace, made.sizes, {.gather_budget = kMinimum});
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  EXPECT_EQ(schedule.gather_bytes.back(), 0);
  EXPECT_GT(schedule.unpacked_bytes.back(), 0);
}

// Only the optimizer's events follow the last microbatch, and they occur only there.
TEST(CheckSteps, OptimizerEventsFollowTheLastMicrobatch) {
  oracle::Case made = case_named("amaxes");
  const Schedule schedule = plan(made.trace, made.sizes, {});
  EXPECT_EQ(schedule.body, 30);
  EXPECT_EQ(schedule.optimizer_events(), 5);
  EXPECT_THAT(check(made.trace, made.sizes, schedule), IsEmpty());
  const std::vector<int> own_publish{-4, -3, -1};
  for (const Residency& it : schedule.residencies) EXPECT_EQ(it.free, own_publish[static_cast<std::size_t>(it.unit)]);
  made.trace[30].kind = EventKind::consume;
  made.trace[30].parameter = 0;
  EXPECT_THAT(check(made.trace, made.sizes, schedule),
              Contains(HasSubstr("expected only publish events and collectives after the last microbatch")));
  made = case_named("amaxes");
  std::swap(made.trace[29], made.trace[32]);
  EXPECT_THAT(check(made.trace, made.sizes, schedule),
              Contains(HasSubstr("event 29 (train publish b (0)): expected the optimizer's publish events after the")));
  EXPECT_THROW(plan(made.trace, made.sizes, {}), Error);
}

TEST_F(Check, StopsAfterTenFaults) {
  for (Residency& it : schedule_.residencies) it.offset = it.last = -1;
  for (Reduction& it : schedule_.reductions) it.offset = it.finish = -1;
  schedule_.residencies.resize(40, schedule_.residencies[0]);
  EXPECT_EQ(faults().size(), 10u);
}

TEST(CheckSpeed, AHundredThousandEvents) {
  const oracle::Case made = oracle::mirrored_layers(500, 40, {4096});
  for (const std::int64_t budget : {kMinimum, std::int64_t{40} << 13}) {
    const Schedule schedule = plan(made.trace, made.sizes, {.gather_budget = budget, .reduce_budget = budget});
    const auto start = std::chrono::steady_clock::now();
    const std::vector<std::string> faults = check(made.trace, made.sizes, schedule);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_THAT(faults, IsEmpty());
    std::cout << made.trace.size() << " events, " << schedule.residencies.size() << " residencies, "
              << schedule.reductions.size() << " reductions: checked in " << seconds.count() << " s\n";
  }
}

}  // namespace
}  // namespace tessera::schedule
