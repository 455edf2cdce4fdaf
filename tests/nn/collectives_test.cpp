// Tests activations between tp ranks: the bits that each rank has afterwards, and the events.
#include "tessera/nn/collectives.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/runtime/record/dry_run.h"
#include "tessera/runtime/runtime.h"
#include "tests/nn/layer_check.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kTokens = 7, kWidth = 5;

struct TpRanks {
  int tp = 1;
  bool sequence_parallel = false;
  std::vector<std::int64_t> weights = {};  // of the token split
  bool overlap = false;                    // whether tokens travel in pieces
};
std::vector<TpRanks> tp_cases() {
  return {{1, false},           {1, true},
          {2, false},           {2, true},
          {3, false},           {3, true},
          {3, true, {0, 2, 1}}, {2, true, {}, true},
          {3, true, {}, true},  {3, true, {0, 2, 1}, true}};
}

// Calls use(pass) in a microbatch on each rank; returns the events of collectives as "pass op bytes".
std::vector<std::string> on_tp_ranks(const TpRanks& ranks, const std::function<void(const PassState& pass)>& use) {
  std::vector<std::string> events;
  comm::run_local(ranks.tp, {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, rank_layout({.tp = ranks.tp}));
    runtime::Runtime runtime(parallel, {});
    Context context{.program = runtime.program(), .sequence_parallel = ranks.sequence_parallel};
    context.split.weights = ranks.weights;
    context.products.tp_overlap = ranks.overlap;
    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    use({.context = context, .id = {0}});
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
    if (world.rank() != 0) return;
    for (const schedule::Event& event : runtime.trace())
      events.push_back(std::string(name_of(event.pass)) +
                       (event.kind == schedule::EventKind::comm ? " " : " " + std::string(name_of(event.kind)) + " ") +
                       event.op + " " + std::to_string(event.bytes));
  });
  return events;
}

at::Tensor part_of_sum(int rank, at::ScalarType type) {
  return arbitrary_values({kTokens, kWidth}, 3.0 * rank).to(type);
}

// Adds the ranks' parts in rank order in the accumulator type and rounds once.
at::Tensor ordered_sum(int tp, at::ScalarType type) {
  const at::ScalarType accumulator = type == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor sum = part_of_sum(0, type).to(accumulator);
  for (int rank = 1; rank < tp; ++rank) sum = sum + part_of_sum(rank, type).to(accumulator);
  return sum.to(type);
}

at::Tensor own_rows(const Context& context, const at::Tensor& whole) {
  if (!context.sequence_parallel) return whole;
  const layout::Range rows = context.split.part(kTokens, context.tp_rank(), context.tp_size());
  return whole.narrow(0, rows.begin, rows.size());
}

TEST(LeaveTp, ReturnsEachRanksTokensOfTheSumInRankOrder) {
  for (const TpRanks& ranks : tp_cases())
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
      on_tp_ranks(ranks, [&](const PassState& pass) {
        const at::Tensor part = part_of_sum(pass.context.tp_rank(), type);
        const at::Tensor own = leave_tp(pass, part);
        EXPECT_TRUE(own.equal(own_rows(pass.context, ordered_sum(ranks.tp, type))))
            << "tp " << ranks.tp << ", " << ranks.sequence_parallel;
      });
}

// Checks that the test can detect a different order.
TEST(LeaveTp, AnotherOrderGivesOtherBits) {
  const at::Tensor parts[] = {part_of_sum(0, at::kFloat), part_of_sum(1, at::kFloat), part_of_sum(2, at::kFloat)};
  EXPECT_FALSE(ordered_sum(3, at::kFloat).equal(parts[0] + (parts[1] + parts[2])));
  const at::Tensor twice =
      (part_of_sum(0, at::kBFloat16) + part_of_sum(1, at::kBFloat16)) + part_of_sum(2, at::kBFloat16);
  EXPECT_FALSE(ordered_sum(3, at::kBFloat16).equal(twice));
}

TEST(EnterTp, GathersTheRanksTokens) {
  for (const TpRanks& ranks : tp_cases())
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
      on_tp_ranks(ranks, [&](const PassState& pass) {
        const at::Tensor whole = part_of_sum(9, type);
        const at::Tensor own = own_rows(pass.context, whole);
        EXPECT_TRUE(enter_tp(pass.in(schedule::Pass::backward), own, kTokens).equal(whole));
      });
}

// The rows are not contiguous in memory.
TEST(EnterTp, AcceptsANonContiguousMatrix) {
  on_tp_ranks({2, true}, [&](const PassState& pass) {
    const at::Tensor whole = arbitrary_values({kWidth, kTokens}, 1).t();
    EXPECT_TRUE(enter_tp(pass, own_rows(pass.context, whole), kTokens).equal(whole));
  });
}

TEST(EnterAndLeaveTp, ReturnTheirArgumentIfNoCollectiveIsNeeded) {
  on_tp_ranks({1, true}, [&](const PassState& pass) {
    const at::Tensor x = part_of_sum(0, at::kFloat);
    EXPECT_TRUE(enter_tp(pass, x, kTokens).is_same(x));
    EXPECT_TRUE(leave_tp(pass, x).is_same(x));
  });
  on_tp_ranks({2, false}, [&](const PassState& pass) {
    const at::Tensor x = part_of_sum(0, at::kFloat);
    EXPECT_TRUE(enter_tp(pass, x, kTokens).is_same(x));
  });
}

TEST(AllReduceTp, ReducesBySumOrMaximumInPlace) {
  for (const TpRanks& ranks : tp_cases())
    for (const bool is_recorded : {true, false}) {
      const auto reduce = [&](const PassState& pass, at::Tensor& x, comm::ReduceOp op) {
        if (is_recorded)
          all_reduce_tp(pass, x, op);
        else
          reduce_unrecorded(pass, x, op);
      };
      on_tp_ranks(ranks, [&](const PassState& pass) {
        at::Tensor sum = part_of_sum(pass.context.tp_rank(), at::kFloat);
        reduce(pass, sum, comm::ReduceOp::sum);
        EXPECT_TRUE(sum.equal(ordered_sum(ranks.tp, at::kFloat)));
        at::Tensor greatest = part_of_sum(pass.context.tp_rank(), at::kFloat), expected = part_of_sum(0, at::kFloat);
        reduce(pass, greatest, comm::ReduceOp::max);
        for (int rank = 1; rank < ranks.tp; ++rank) expected = expected.maximum(part_of_sum(rank, at::kFloat));
        EXPECT_TRUE(greatest.equal(expected));
      });
    }
}

// The bytes are those that this rank sends: with sequence parallelism, 3 of 7 tokens on entry and all 7 on exit.
TEST(TpCollectives, RecordTheirBytesAndPass) {
  const auto all = [](const PassState& pass) {
    const at::Tensor whole = part_of_sum(0, at::kFloat);
    enter_tp(pass.in(schedule::Pass::backward), own_rows(pass.context, whole), kTokens);
    leave_tp(pass.in(schedule::Pass::recompute), whole);
    at::Tensor x = part_of_sum(0, at::kFloat);
    all_reduce_tp(pass, x, comm::ReduceOp::max);
    reduce_unrecorded(pass, x, comm::ReduceOp::max);
  };
  using Events = std::vector<std::string>;
  EXPECT_EQ(on_tp_ranks({1, true}, all), Events{});
  EXPECT_EQ(on_tp_ranks({2, false}, all), (Events{"recompute all_reduce sum 140", "forward all_reduce max 140"}));
  EXPECT_EQ(on_tp_ranks({2, true}, all),
            (Events{"backward all_gather 60", "recompute reduce_scatter 140", "forward all_reduce max 140"}));
}

TEST(TpCollectives, RecordPiecesAndWhereComputeNeedsThem) {
  const auto events = on_tp_ranks({.tp = 3, .sequence_parallel = true, .overlap = true}, [](const PassState& pass) {
    const at::Tensor whole = part_of_sum(0, at::kFloat);
    enter_tp(pass.in(schedule::Pass::backward), own_rows(pass.context, whole), kTokens);
    leave_tp(pass, whole);
  });
  // The ranks have 2, 2 and 3 tokens of 20 bytes.
  EXPECT_EQ(events,
            (std::vector<std::string>{
                "backward gather piece 1 40", "backward gather piece 2 40", "backward need gather piece 1 140",
                "backward need gather piece 2 140", "forward scatter piece 1 40", "forward scatter piece 2 60",
                "forward need scatter piece 1 40", "forward need scatter piece 2 40", "forward sum ranks 0 1 2 0"}));
}

// Rank 1 begins the pieces of a gather in another order.
TEST(TpCollectives, PiecesInAnotherOrderOnOneRankAreAnError) {
  const auto gather = [](const PassState& pass) {
    const at::Tensor own = own_rows(pass.context, part_of_sum(0, at::kFloat)).contiguous();
    const at::Tensor whole = part_of_sum(0, at::kFloat);
    const std::vector<std::int64_t> counts{10, 10, 15};
    std::vector<runtime::Issued> issued;
    for (const int piece : pass.context.tp_rank() == 1 ? std::vector{2, 1} : std::vector{1, 2})
      issued.push_back(pass.context.program.issue({.kind = runtime::ProgramCollectiveKind::gather_piece,
                                                   .in = own.const_data_ptr(),
                                                   .out = whole.mutable_data_ptr(),
                                                   .counts = counts,
                                                   .pass = pass.id,
                                                   .piece = piece}));
    for (const runtime::Issued& piece : issued) pass.context.program.wait(piece);
  };
  EXPECT_THAT([&] { on_tp_ranks({.tp = 3, .sequence_parallel = true}, gather); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("the calls do not match: exchange")));
}

// A rank may have no tokens. With more parts than a norm can read, the parts are added.
TEST(PendingTensor, TakePartsReturnsTheTermsOfTheSumInRankOrder) {
  for (const auto& [ranks, count] :
       {std::pair{TpRanks{.tp = 3, .sequence_parallel = true}, 1u},
        {TpRanks{.tp = 3, .sequence_parallel = true, .weights = {0, 2, 1}, .overlap = true}, 3u},
        {TpRanks{.tp = 8, .sequence_parallel = true, .overlap = true}, 8u},
        {TpRanks{.tp = 9, .sequence_parallel = true, .overlap = true}, 1u}})
    for (const at::ScalarType type : {at::kDouble, at::kBFloat16})
      on_tp_ranks(ranks, [&](const PassState& pass) {
        const at::Tensor part = part_of_sum(pass.context.tp_rank(), type);
        const SummedParts parts = start_leave_tp(pass.in(schedule::Pass::backward), part).take_parts();
        EXPECT_EQ(parts.parts().size(), count);
        EXPECT_TRUE(sum_of(pass, parts).equal(own_rows(pass.context, ordered_sum(ranks.tp, type)))) << ranks.tp;
      });
}

TEST(SumOf, GivesEachPartTheGradientOfTheSum) {
  on_tp_ranks({}, [](const PassState& pass) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < 3; ++rank) parts.push_back(part_of_sum(rank, at::kBFloat16).requires_grad_());
    const at::Tensor sum = sum_of(pass, SummedParts(parts)), gradient = part_of_sum(7, at::kBFloat16);
    EXPECT_TRUE(sum.equal(ordered_sum(3, at::kBFloat16)));
    sum.backward(gradient);
    for (const at::Tensor& part : parts) EXPECT_TRUE(part.grad().equal(gradient));
    EXPECT_TRUE(sum_of(pass, parts[1]).is_same(parts[1]));
  });
}

// The program of a rank that fails before it begins piece 2 of a transfer.
class EndsBeforePiece2 final : public runtime::DryRun {
 public:
  explicit EndsBeforePiece2(runtime::Program& program) : DryRun(program.parameters()), program_(program) {}
  runtime::Issued issue(const runtime::ProgramCollective& collective) override {
    if (collective.piece == 2) throw Error("this rank ends here");
    return program_.issue(collective);
  }
  void wait(const runtime::Issued& issued) override { program_.wait(issued); }
  runtime::TransferMemory take_transfer(std::int64_t bytes) override { return program_.take_transfer(bytes); }

 private:
  runtime::Program& program_;
};

// Rank 1 has begun piece 1, so its tensors must stay allocated until the others have begun piece 1 and the piece has
// ended. The others wait for piece 2 and learn which rank has failed.
TEST(TpCollectives, ARankThatFailsBetweenItsPiecesKeepsTheirMemoryAndEndsTheWaitsOfTheOthers) {
  for (const bool gathers : {true, false}) {
    std::mutex mutex;
    std::vector<std::string> errors;
    std::atomic<int> others_began = 0;
    const auto transfer = [&](const PassState& pass) {
      const bool fails = pass.context.tp_rank() == 1;
      EndsBeforePiece2 failing(pass.context.program);
      Context context{.program = fails ? failing : pass.context.program, .sequence_parallel = true};
      context.products.tp_overlap = true;
      const PassState used{.context = context, .id = pass.id};
      if (!fails) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        ++others_began;
      }
      try {
        const at::Tensor whole = part_of_sum(0, at::kFloat);
        if (gathers)
          enter_tp(used, own_rows(context, whole), kTokens);
        else
          leave_tp(used, whole);
      } catch (const Error& error) {
        if (fails) EXPECT_EQ(others_began, 2);
        const std::lock_guard lock(mutex);
        if (!fails) errors.emplace_back(error.what());
        throw;
      }
    };
    EXPECT_THAT([&] { on_tp_ranks({.tp = 3, .sequence_parallel = true}, transfer); },
                ::testing::ThrowsMessage<Error>(::testing::HasSubstr("this rank ends here")));
    EXPECT_THAT(errors,
                ::testing::UnorderedElementsAre(::testing::HasSubstr("rank 1"), ::testing::HasSubstr("rank 1")));
  }
}

// A collective's memory must stay allocated while other ranks still send, even if the call that started it fails.
TEST(PendingTensor, WithoutTakeKeepsItsMemoryUntilTheCollectiveEnds) {
  for (const bool sequence_parallel : {false, true}) {
    std::atomic<bool> others_began = false;
    on_tp_ranks({2, sequence_parallel}, [&](const PassState& pass) {
      if (pass.context.tp_rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        others_began = true;
      }
      { const PendingTensor dropped = start_leave_tp(pass.in(schedule::Pass::backward), part_of_sum(0, at::kFloat)); }
      EXPECT_TRUE(others_began);
    });
  }
}

}  // namespace
}  // namespace tessera::nn
