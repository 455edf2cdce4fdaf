// Tests errors of ranks with one GPU each when a rank stops, fails or makes another call. Each test has its own world.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tests/comm/nccl/run.h"
#include "tests/comm/placed.h"

namespace tessera::comm {
namespace {

using quant::DType;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr milliseconds kShort{2000};

class NcclFailures : public NcclTest {
 protected:
  // Waits for the fence and returns its error.
  static std::string failure(const base::Fence& fence) {
    try {
      fence.synchronize();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST_F(NcclFailures, ATimeLimitNamesTheOperationAndThePeersStates) {
  const auto world = make_world({.timeout = kShort});
  const auto group = make_whole_group(*world, ranks());
  Placed value(std::vector<float>(4, 1.0f));
  group->barrier().synchronize();
  if (rank() == 0) {
    const std::string text = failure(group->all_reduce(value.data(), 4, DType::fp32));
    EXPECT_THAT(text, HasSubstr("all_reduce #1 on test["));
    EXPECT_THAT(text, HasSubstr("rank 0: time limit"));
    EXPECT_THAT(text, HasSubstr(ranks() == 2 ? "; rank 1: no operation called after barrier #0" : "; ranks 1"));
  } else {
    std::this_thread::sleep_for(kShort + milliseconds(3000));
    EXPECT_THAT(failure(group->barrier()), HasSubstr("an earlier operation failed: all_reduce #1"));
  }
}

// NCCL waits on the host until the ranks are connected.
TEST_F(NcclFailures, ATimeLimitEndsTheFirstCall) {
  const auto world = make_world({.timeout = kShort});
  const auto group = make_whole_group(*world, ranks());
  Placed value(std::vector<float>(4, 1.0f));
  if (rank() == 0)
    EXPECT_THAT(failure(group->broadcast(value.data(), 4, DType::fp32, 1)),
                testing::AllOf(HasSubstr("broadcast #0 on test["), HasSubstr("time limit")));
  else
    std::this_thread::sleep_for(kShort + milliseconds(3000));
}

TEST_F(NcclFailures, LaterOperationsOfAllGroupsFailAtOnce) {
  const auto world = make_world({.timeout = kShort});
  const auto group = make_whole_group(*world, ranks()), other = make_whole_group(*world, ranks());
  group->barrier().synchronize();
  other->barrier().synchronize();
  const base::Fence before = other->lane().record();
  // The order of calls differs: rank 1 waits in one group, and the others wait in the other group.
  EXPECT_THAT(failure((rank() == 1 ? *other : *group).barrier()), HasSubstr("time limit"));
  const auto begin = steady_clock::now();
  EXPECT_NE(failure(group->barrier()), "no error");
  EXPECT_NE(failure(other->barrier()), "no error");
  EXPECT_LT(steady_clock::now() - begin, milliseconds(500));
  EXPECT_EQ(failure(before), "no error");
  EXPECT_THROW(world->make_group("late", {{0, 1}}), Error);
}

TEST_F(NcclFailures, ALaneThatWaitsForAFailedOperationFails) {
  const auto world = make_world({.timeout = kShort});
  const auto group = make_whole_group(*world, ranks());
  group->barrier().synchronize();
  const auto compute = base::make_cuda_lane("compute", nccl_run_of_tests().device);
  if (rank() == 0) {
    compute->wait(group->barrier());
    EXPECT_THAT(failure(compute->record()), HasSubstr("barrier #1"));
  } else {
    std::this_thread::sleep_for(kShort + milliseconds(2000));
  }
}

TEST_F(NcclFailures, AnotherOperationIsNamedOnBothSides) {
  const auto world = make_world({.timeout = milliseconds(30000), .check_mismatch = true});
  const auto group = make_whole_group(*world, ranks());
  Placed value(std::vector<float>(8, 1.0f));
  const std::string text = failure(rank() == 1 ? group->all_reduce(value.data(), 4, DType::fp32)
                                               : group->broadcast(value.data(), 4, DType::fp32, 0));
  EXPECT_THAT(text, HasSubstr("broadcast(fp32, count 4, root 0)"));
  EXPECT_THAT(text, HasSubstr("rank 1 called all_reduce(sum, fp32, count 4)"));
}

TEST_F(NcclFailures, OtherGroupsAreAnError) {
  const auto world = make_world({.timeout = milliseconds(30000), .check_mismatch = true});
  try {
    world->make_group(rank() == 1 ? "dp" : "tp", {{0, 1}});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AnyOf(HasSubstr("passed dp"), HasSubstr("failed")));
  }
}

TEST_F(NcclFailures, ACancelledRankFailsAtOnce) {
  const auto world = make_world({.timeout = milliseconds(30000)});
  const auto group = make_whole_group(*world, ranks());
  group->barrier().synchronize();
  if (rank() == 0) {
    const base::Fence pending = group->barrier();
    group->cancel();
    EXPECT_THAT(failure(pending), HasSubstr("cancelled"));
    EXPECT_THAT(failure(group->barrier()), HasSubstr("cancelled"));
  }
}

}  // namespace
}  // namespace tessera::comm
