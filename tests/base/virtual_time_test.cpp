// Tests lanes with a virtual clock, and delays with a real clock.
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "tessera/base/error.h"
#include "tessera/base/lanes/lane.h"

namespace tessera::base {
namespace {

TEST(VirtualClock, NeverDecreases) {
  VirtualClock clock;
  clock.advance(2);
  clock.raise_to(1);
  EXPECT_EQ(clock.now(), 2);
  clock.raise_to(5);
  EXPECT_EQ(clock.now(), 5);
  EXPECT_THROW(clock.advance(-1), Error);
}

TEST(VirtualTime, WorkBeginsNoEarlierThanTheHostEnqueuedIt) {
  const auto host = std::make_shared<VirtualClock>();
  const auto lane = make_thread_lane("virtual", host);
  std::promise<void> gate;
  lane->run([&] { gate.get_future().wait(); });
  lane->delay(1);
  const Fence first = lane->record();
  host->advance(5);
  lane->delay(2);
  const Fence second = lane->record();
  lane->delay(4);
  const Fence third = lane->record();
  host->advance(90);  // the wait begins after all work was enqueued
  gate.set_value();
  third.wait();
  EXPECT_EQ(first.time(), 1);
  EXPECT_EQ(second.time(), 7);
  EXPECT_EQ(third.time(), 11);
  EXPECT_EQ(host->now(), 95);
}

TEST(VirtualTime, OnlyAWaitOfTheHostRaisesItsClock) {
  const auto host = std::make_shared<VirtualClock>();
  const auto lane = make_thread_lane("a", host), other = make_thread_lane("b", host);
  lane->delay(3);
  const Fence fence = lane->record();
  other->wait(fence);
  other->delay(1);
  const Fence after = other->record();
  EXPECT_TRUE(after.wait_for(std::chrono::seconds(60)));
  EXPECT_EQ(host->now(), 0);
  fence.synchronize();
  EXPECT_EQ(host->now(), 3);
  after.synchronize();
  EXPECT_EQ(host->now(), 4);
  fence.synchronize();
  EXPECT_EQ(host->now(), 4);
}

TEST(VirtualTime, AWaitForADoneFenceRaisesTheClock) {
  const auto host = std::make_shared<VirtualClock>();
  const auto lane = make_thread_lane("a", host), other = make_thread_lane("b", host);
  lane->delay(3);
  const Fence fence = lane->record();
  fence.wait();
  other->delay(1);
  other->wait(fence);
  const Fence after = other->record();
  after.wait();
  EXPECT_EQ(after.time(), 3);
}

TEST(VirtualTime, WorkAdvancesTheClockOfItsLane) {
  const auto host = std::make_shared<VirtualClock>();
  const auto lane = make_thread_lane("virtual", host);
  host->advance(1);
  double seen = -1;
  lane->run([&seen, clock = lane->clock()] {
    seen = clock->now();
    clock->raise_to(8);
  });
  lane->synchronize();
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(host->now(), 8);
}

TEST(VirtualTime, ABrokenLaneStillCompletesItsFences) {
  const auto host = std::make_shared<VirtualClock>();
  const auto lane = make_thread_lane("virtual", host);
  lane->delay(2);
  lane->run([] { throw std::runtime_error("no"); });
  lane->delay(7);
  const Fence fence = lane->record();
  EXPECT_TRUE(fence.wait_for(std::chrono::seconds(60)));
  EXPECT_NE(fence.error(), nullptr);
  EXPECT_THROW(fence.synchronize(), std::runtime_error);
  EXPECT_EQ(host->now(), 2);
}

TEST(VirtualTime, AnInlineLaneHasTheHostsClock) {
  const auto host = std::make_shared<VirtualClock>();
  const auto lane = make_inline_lane(host), other = make_thread_lane("other", host);
  lane->delay(2);
  EXPECT_EQ(host->now(), 2);
  other->delay(3);
  lane->wait(other->record());
  EXPECT_EQ(lane->clock()->now(), 5);
  EXPECT_EQ(lane->record().time(), 5);
}

TEST(RealTime, ADelaySleepsOnItsLaneAlone) {
  const auto lane = make_thread_lane("real"), other = make_thread_lane("other");
  EXPECT_EQ(lane->clock(), nullptr);
  const auto begin = std::chrono::steady_clock::now();
  lane->delay(0.2);
  const Fence fence = lane->record();
  other->synchronize();
  EXPECT_FALSE(fence.done());
  fence.synchronize();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));
  EXPECT_EQ(fence.time(), 0);
  EXPECT_THROW(lane->delay(-1), Error);
}

}  // namespace
}  // namespace tessera::base
