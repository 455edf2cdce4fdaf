// Tests the registration of parameters, without memory and other ranks.
#include "tessera/runtime/parameter_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/runtime/record/dry_run.h"

namespace tessera::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Two compute ranks, each of whose parts is stored by 3 ranks.
shard::RankLayout layout_of_six() {
  const mesh::Grid grid{{"a", 2}, {"b", 3}, {"c", 1}};
  return {.mesh = mesh::Mesh(grid),
          .domains = {{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}}}};
}

shard::ParameterSpec matrix(const char* name) {
  return {.name = name, .dims = {64, 32}, .compute = layout::cut_rows({64, 32}, {{"rows", 64}}, 2)};
}

TEST(ParameterTable, HasThePartOfItsRank) {
  for (int rank = 0; rank < 6; ++rank) {
    ParameterTable table(layout_of_six(), rank, {}, {});
    const schedule::ParameterId id = table.add(matrix("w"));
    EXPECT_EQ(table.local_compute(id).pieces.front().box.row, rank % 2 == 0 ? 0 : 32);
    EXPECT_EQ(table.compute_group(0).rank, rank % 2);
    EXPECT_EQ(table.cuts(0).parts, 3);
    EXPECT_EQ(table.program_group(0), "a");
    EXPECT_EQ(table.ranks(), 6);
  }
}

TEST(ParameterTable, OrdersWeightsByNameAndAddsEachBackwardWeight) {
  const std::vector<shard::FormatRule> plain{{"plain", quant::Format::bf16}};
  const RuntimeOptions options{.wire = {.format = quant::Format::nvfp4, .rules = plain},
                               .wire_backward = {{.format = quant::Format::mxfp8, .rules = plain}}};
  ParameterTable table(layout_of_six(), 0, {.model = quant::DType::bf16}, options);
  for (const char* name : {"second", "plain", "first"}) table.add(matrix(name));
  table.add_backward_weights();
  EXPECT_EQ(table.weights(), 3);
  EXPECT_THAT(table.by_name(), ElementsAre(2, 1, 0));
  EXPECT_THAT(table.backward_weights(), ElementsAre(3, schedule::kNoParameter, 4));
  const std::vector<schedule::ParameterId> published{2, 1};
  EXPECT_THAT(table.with_backward_weights(published), ElementsAre(2, 4, 1));
  EXPECT_EQ(table.read_in(schedule::Pass::backward, 0), 3);
  EXPECT_EQ(table.read_in(schedule::Pass::forward, 0), 0);
  EXPECT_EQ(table.read_in(schedule::Pass::backward, 1), 1);
}

TEST(ParameterTable, ARegistrationThatFailsLeavesItUnchanged) {
  bool fails = true;
  ParameterTable table(layout_of_six(), 0, {}, {}, [&](schedule::ParameterId id) {
    EXPECT_EQ(id, 0);
    if (fails) throw Error("no memory");
  });
  EXPECT_THAT([&] { table.add(matrix("w")); }, ThrowsMessage<Error>(HasSubstr("no memory")));
  EXPECT_EQ(table.size(), 0);
  fails = false;
  EXPECT_EQ(table.add(matrix("w")), 0);
}

TEST(ParameterTable, RefusesUnknownIdsAndDomainsAndLateWeights) {
  ParameterTable table(layout_of_six(), 0, {}, {});
  table.add(matrix("w"));
  EXPECT_THAT([&] { table.add(matrix("w")); }, ThrowsMessage<Error>(HasSubstr("'w' is added twice")));
  shard::ParameterSpec elsewhere = matrix("elsewhere");
  elsewhere.domain = 1;
  EXPECT_THAT([&] { table.add(elsewhere); }, ThrowsMessage<Error>(HasSubstr("domain 1 of 1")));
  EXPECT_THAT([&] { table.spec(1); }, ThrowsMessage<Error>(HasSubstr("parameter 1 of 1")));
  EXPECT_THAT([&] { table.spec(-1); }, ThrowsMessage<Error>(HasSubstr("parameter -1 of 1")));
  EXPECT_THAT([&] { table.backward_weight(1); }, ThrowsMessage<Error>(HasSubstr("weight 1 of 1")));
  table.close();
  EXPECT_THAT([&] { table.add(matrix("late")); },
              ThrowsMessage<Error>(HasSubstr("'late' is added after the first step began")));
}

TEST(DryRun, RefusesCallsOutOfOrder) {
  DryRun dry(layout_of_six(), 0, {}, {});
  const schedule::ParameterId id = dry.parameters().add(matrix("w"));
  EXPECT_THROW(dry.begin_microbatch(0), Error);
  dry.begin_step(schedule::StepKind::train, 1);
  EXPECT_THROW(dry.end_step(), Error);  // a microbatch is missing
  dry.begin_microbatch(0);
  EXPECT_THROW(dry.release(id, {0, schedule::Pass::forward}), Error);
  dry.consume(id, {0, schedule::Pass::forward});
  EXPECT_THROW(dry.end_microbatch(0), Error);  // the weight is not released
  dry.release(id, {0, schedule::Pass::forward});
  dry.end_microbatch(0);
  EXPECT_THROW(dry.begin_microbatch(1), Error);
  dry.end_step();
  EXPECT_EQ(dry.trace().size(), 2U);
}

// Each microbatch has its own ordinals, its own uses of weights and its own produced gradients.
TEST(DryRun, OpensSeveralMicrobatches) {
  DryRun dry(layout_of_six(), 0, {}, {});
  const schedule::ParameterId id = dry.parameters().add(matrix("w"));
  std::vector<StashId> stashes;  // by microbatch
  const auto forward = [&](int microbatch) {
    dry.begin_microbatch(microbatch);
    for (int use = 0; use < 2; ++use) dry.consume(id, {microbatch}), dry.release(id, {microbatch});
    const StashItem item{.bytes = 8};
    stashes.push_back(dry.stash({&item, 1}, {microbatch}, StashWay::keep));
  };
  const auto backward = [&](int microbatch) {
    dry.fetch(stashes[static_cast<std::size_t>(microbatch)], {microbatch, schedule::Pass::backward});
    for (const bool accumulates : {false, true}) {
      EXPECT_EQ(dry.grad_buffer(id, microbatch).accumulate, accumulates);
      dry.produce(id, microbatch);
    }
    dry.end_microbatch(microbatch);
  };
  dry.begin_step(schedule::StepKind::train, 2);
  forward(0), backward(0), forward(1), backward(1);
  dry.end_step();
  const schedule::Trace in_turn = dry.trace();
  dry.begin_step(schedule::StepKind::train, 2);
  forward(0), forward(1);
  dry.consume(id, {0});
  EXPECT_THROW(dry.release(id, {1}), Error);
  EXPECT_THROW(dry.end_microbatch(0), Error);  // the weight is not released
  dry.release(id, {0});
  backward(1), backward(0);
  EXPECT_THROW(dry.end_microbatch(0), Error);
  EXPECT_THROW(dry.consume(id, {0}), Error);
  dry.end_step();
  schedule::Trace interleaved = dry.trace();
  std::erase_if(interleaved, [](const schedule::Event& event) {
    return event.ordinal == 2;  // the third use of the weight in microbatch 0
  });
  EXPECT_NE(interleaved, in_turn);
  std::ranges::stable_sort(interleaved, {}, &schedule::Event::microbatch);
  EXPECT_EQ(interleaved, in_turn);
}

TEST(DryRun, FetchesAStashOnceInItsMicrobatch) {
  DryRun dry(layout_of_six(), 0, {}, {});
  dry.begin_step(schedule::StepKind::train, 2);
  dry.begin_microbatch(0), dry.begin_microbatch(1);
  const std::array<StashItem, 2> items{StashItem{.bytes = 8}, {.bytes = 4}};
  const StashId first = dry.stash(items, {0}, StashWay::keep), second = dry.stash(items, {1}, StashWay::shard);
  EXPECT_THROW(dry.fetch(first, {1, schedule::Pass::backward}), Error);
  dry.fetch(second, {1, schedule::Pass::backward});
  dry.fetch(first, {0, schedule::Pass::backward});
  EXPECT_THROW(dry.fetch(first, {0, schedule::Pass::backward}), Error);
  EXPECT_THROW(dry.fetch(second + 1, {0, schedule::Pass::backward}), Error);
  ASSERT_EQ(dry.trace().size(), 4U);
  EXPECT_EQ(to_string(dry.trace()[1]), "train mb 1 forward stash shard 12 bytes");
  EXPECT_EQ(to_string(dry.trace()[3]), "train mb 0 backward fetch keep 12 bytes");
  dry.end_microbatch(0), dry.end_microbatch(1);
  dry.end_step();
  dry.begin_step(schedule::StepKind::train, 1);
  dry.begin_microbatch(0);
  EXPECT_THROW(dry.fetch(first, {0, schedule::Pass::backward}), Error);  // the stash of an earlier step
}

}  // namespace
}  // namespace tessera::runtime
