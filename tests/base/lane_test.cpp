#include "tessera/base/lanes/lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/base/lanes/fence_state.h"
#include "tessera/base/lanes/host_waits.h"

namespace tessera::base {
namespace {

std::string text_of(const std::exception_ptr& error) {
  if (error == nullptr) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

TEST(Fence, IsDoneIfDefaultConstructed) {
  const Fence fence;
  EXPECT_TRUE(fence.done());
  EXPECT_EQ(fence.error(), nullptr);
  fence.synchronize();
}

TEST(Fence, IsDoneWhenItsPromiseIsComplete) {
  Promise promise;
  const Fence fence = promise.fence();
  EXPECT_FALSE(fence.done());
  promise.complete();
  EXPECT_TRUE(fence.done());
  promise.complete(std::make_exception_ptr(std::runtime_error("too late")));
  EXPECT_EQ(fence.error(), nullptr);
}

TEST(Fence, WaitForHasALimitAndDoesNotThrow) {
  using std::chrono::milliseconds;
  EXPECT_TRUE(Fence().wait_for(milliseconds(0)));
  Promise promise;
  const Fence fence = promise.fence();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(fence.wait_for(milliseconds(20)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
  std::thread other([&] { promise.complete(std::make_exception_ptr(std::runtime_error("no"))); });
  EXPECT_TRUE(fence.wait_for(std::chrono::seconds(60)));
  other.join();
  EXPECT_EQ(text_of(fence.error()), "no");
}

TEST(Fence, WaitsOfAllThreadsAreCounted) {
  Promise promise;
  const Fence fence = promise.fence();
  const std::int64_t before = host_waits();
  EXPECT_FALSE(fence.wait_for(std::chrono::milliseconds(1)));  // this wait times out
  EXPECT_FALSE(fence.done());
  EXPECT_EQ(host_waits(), before);
  promise.complete();
  EXPECT_TRUE(fence.done());
  EXPECT_EQ(host_waits(), before);
  EXPECT_TRUE(fence.wait_for(std::chrono::seconds(60)));
  fence.wait();
  fence.synchronize();
  EXPECT_EQ(host_waits(), before + 3);
  std::thread([&] { fence.wait(); }).join();
  EXPECT_EQ(host_waits(), before + 4);
  Fence().synchronize();  // nothing to wait for
  Fence().wait();
  EXPECT_TRUE(Fence().wait_for(std::chrono::seconds(1)));
  EXPECT_EQ(host_waits(), before + 4);
}

TEST(Fence, RethrowsToEveryWaiter) {
  Promise promise;
  std::atomic<int> caught{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i)
    waiters.emplace_back([fence = promise.fence(), &caught] {
      try {
        fence.synchronize();
      } catch (const std::runtime_error&) {
        ++caught;
      }
    });
  promise.complete(std::make_exception_ptr(std::runtime_error("no")));
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(caught, 4);
}

TEST(ThreadLane, RunsWorkInOrderOnItsOwnThread) {
  const auto lane = make_thread_lane("order");
  std::vector<int> seen;
  std::thread::id thread;
  for (int i = 0; i < 1000; ++i) lane->run([&seen, i] { seen.push_back(i); });
  lane->run([&] { thread = std::this_thread::get_id(); });
  lane->synchronize();
  ASSERT_EQ(seen.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(ThreadLane, AFenceIsDoneOnlyAfterTheWorkBeforeIt) {
  const auto lane = make_thread_lane("fence");
  std::promise<void> gate;
  lane->run([&] { gate.get_future().wait(); });
  const Fence fence = lane->record();
  EXPECT_FALSE(fence.done());
  gate.set_value();
  fence.synchronize();
  EXPECT_TRUE(fence.done());
}

TEST(ThreadLane, TheFirstErrorBreaksIt) {
  const auto lane = make_thread_lane("errors");
  std::atomic<int> ran{0};
  lane->run([&] { ++ran; });
  const Fence before = lane->record();
  lane->run([] { throw std::runtime_error("first"); });
  const Fence at = lane->record();
  lane->run([&] { ++ran; });
  lane->run([] { throw std::runtime_error("second"); });
  const Fence after = lane->record();
  EXPECT_THROW(after.synchronize(), std::runtime_error);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(text_of(before.error()), "");
  EXPECT_EQ(text_of(at.error()), "first");
  EXPECT_EQ(text_of(after.error()), "first");
}

TEST(ThreadLane, WaitsForAnotherLaneWithoutBlockingTheCaller) {
  const auto first = make_thread_lane("a"), second = make_thread_lane("b");
  std::promise<void> gate;
  int value = 0;
  first->run([&] {
    gate.get_future().wait();
    value = 7;
  });
  second->wait(first->record());
  int seen = 0;
  second->run([&] { seen = value; });
  const Fence fence = second->record();
  EXPECT_FALSE(fence.done());
  gate.set_value();
  fence.synchronize();
  EXPECT_EQ(seen, 7);
}

TEST(ThreadLane, AnErrorOfAnAwaitedLaneBreaksTheLane) {
  const auto first = make_thread_lane("a"), second = make_thread_lane("b");
  first->run([] { throw std::runtime_error("from the first lane"); });
  second->wait(first->record());
  bool ran = false;
  second->run([&] { ran = true; });
  const Fence fence = second->record();
  EXPECT_THROW(fence.synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
  EXPECT_EQ(text_of(fence.error()), "from the first lane");
  // Also tests a fence that failed before the wait.
  const auto third = make_thread_lane("c");
  third->wait(fence);
  EXPECT_THROW(third->synchronize(), std::runtime_error);
}

TEST(ThreadLane, DestructionFinishesTheQueue) {
  int done = 0;
  Fence fence;
  {
    const auto lane = make_thread_lane("a name longer than the fifteen characters of a thread's");
    for (int i = 0; i < 100; ++i) lane->run([&] { ++done; });
    fence = lane->record();
  }
  EXPECT_EQ(done, 100);
  EXPECT_TRUE(fence.done());
}

TEST(ThreadLane, TakesWorkFromSeveralThreads) {
  const auto lane = make_thread_lane("many");
  int sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) lane->run([&] { ++sum; });
    });
  for (std::thread& thread : threads) thread.join();
  lane->synchronize();
  EXPECT_EQ(sum, 2000);
}

TEST(InlineLane, RunsImmediatelyAndThrowsToTheCaller) {
  const auto lane = make_inline_lane();
  std::thread::id thread;
  lane->run([&] { thread = std::this_thread::get_id(); });
  EXPECT_EQ(thread, std::this_thread::get_id());
  EXPECT_TRUE(lane->record().done());
  EXPECT_THROW(lane->run([] { throw std::runtime_error("no"); }), std::runtime_error);
  Promise promise;
  promise.complete(std::make_exception_ptr(std::runtime_error("no")));
  EXPECT_THROW(lane->wait(promise.fence()), std::runtime_error);
}

// ---- failures of lanes over streams, without a stream

TEST(LaneFaults, FollowedFencesBreakLaterWork) {
  LaneFaults faults;
  std::vector<Promise> promises(4);
  for (const Promise& promise : promises) {
    faults.begin_work();
    faults.follow(promise.fence());
  }
  promises[0].complete();
  promises[2].complete(std::make_exception_ptr(std::runtime_error("of another lane")));
  EXPECT_EQ(faults.at(2), nullptr);  // the second fence is not done
  EXPECT_NE(faults.at(3), nullptr);
  promises[1].complete();
  EXPECT_EQ(faults.at(2), nullptr);
  EXPECT_NE(faults.at(4), nullptr);
  EXPECT_TRUE(faults.broken());
  EXPECT_EQ(faults.at(2), nullptr);  // earlier work does not fail
}

TEST(LaneFaults, AbandonedWorkDoesNotAccessItsOperands) {
  LaneFaults faults(std::chrono::milliseconds(0));
  const std::int64_t before = faults.begin_work(), failed = faults.begin_work(), behind = faults.begin_work();
  int calls = 0;
  const auto count = [&] { ++calls; };
  for (const std::int64_t position : {before, failed, behind}) faults.run_unless_abandoned(position, count);
  EXPECT_EQ(calls, 3);
  faults.fail(failed, std::make_exception_ptr(std::runtime_error("time limit")));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(faults.is_abandoned(failed));
  for (const std::int64_t position : {before, failed, behind}) faults.run_unless_abandoned(position, count);
  EXPECT_EQ(calls, 4);  // only calls for the work before the failure
}

// A caller that sees is_abandoned() may free the operands at once.
TEST(LaneFaults, AbandoningWorkWaitsForACopyThatHasBegun) {
  LaneFaults faults(std::chrono::milliseconds(50));
  const std::int64_t at = faults.begin_work();
  faults.fail(at, std::make_exception_ptr(std::runtime_error("time limit")));
  std::atomic<bool> began = false, ended = false;
  std::thread callback([&] {
    faults.run_unless_abandoned(at, [&] {
      began = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ended = true;
    });
  });
  while (!began) std::this_thread::yield();
  while (!faults.is_abandoned(at)) std::this_thread::yield();
  EXPECT_TRUE(ended);
  callback.join();
}

// Behaves like the fence of a stream: after the fence is done, error() calls LaneFaults::at of its lane.
class AskingFence final : public detail::FenceState {
 public:
  AskingFence(LaneFaults& faults, const bool& passed)
      : faults_(faults), position_(faults.position()), passed_(passed) {}
  bool done() const override {
    if (passed_ && !finished_) error_ = faults_.at(position_);
    return finished_ = passed_;
  }
  void wait() const override { done(); }
  bool wait_for(std::chrono::nanoseconds) const override { return done(); }
  std::exception_ptr error() const override { return done() ? error_ : nullptr; }
  std::optional<double> seconds_since(const FenceState&) const override { return std::nullopt; }

 private:
  LaneFaults& faults_;
  const std::int64_t position_;
  const bool& passed_;
  mutable bool finished_ = false;
  mutable std::exception_ptr error_;
};

TEST(LaneFaults, LanesThatFollowEachOtherCheckOnlyEarlierWork) {
  LaneFaults lanes[2];
  bool passed = false;
  for (int i = 0; i < 100'000; ++i) {
    LaneFaults &first = lanes[i % 2], &second = lanes[1 - i % 2];
    first.begin_work();
    const Fence fence(std::make_shared<AskingFence>(first, passed));
    second.begin_work();
    second.follow(fence);
  }
  passed = true;
  EXPECT_EQ(lanes[0].at(lanes[0].position()), nullptr);
  lanes[1].fail(1, std::make_exception_ptr(std::runtime_error("late")));
  lanes[0].begin_work();
  lanes[0].follow(Fence(std::make_shared<AskingFence>(lanes[1], passed)));
  EXPECT_NE(lanes[0].at(lanes[0].position()), nullptr);
}

}  // namespace
}  // namespace tessera::base
