// Tests memory, lanes and fences of a CUDA device.
#include "tessera/base/device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/base/memory/scratch.h"

namespace tessera::base {
namespace {

TEST(Device, NamesAndTheHostsMemory) {
  EXPECT_EQ(name_of(Device{}), "cpu");
  EXPECT_EQ(name_of(cuda_device(3)), "cuda:3");
  const int value = 1;
  EXPECT_FALSE(is_device_memory(&value));
  set_device(Device{});
  EXPECT_THROW(set_device(cuda_device(cuda_device_count())), Error);
  EXPECT_THROW(make_cuda_lane("none", Device{}), Error);
}

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    set_device(kDevice);
  }
  static constexpr Device kDevice = cuda_device(0);

  static std::vector<unsigned char> bytes_of(const Buffer& buffer) {
    std::vector<unsigned char> bytes(buffer.size());
    copy_bytes(bytes.data(), buffer.data(), buffer.size());
    return bytes;
  }
};

TEST_F(Cuda, BuffersAreAlignedAndKeepTheirContents) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    Buffer buffer(size, kDevice);
    EXPECT_EQ(buffer.device(), kDevice);
    EXPECT_TRUE(is_device_memory(buffer.data()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kAlignment, 0u);
    const std::vector<unsigned char> values(size, 0x5A);
    copy_bytes(buffer.data(), values.data(), size);
    EXPECT_EQ(bytes_of(buffer), values);
    buffer.fill_zero();
    EXPECT_EQ(bytes_of(buffer), std::vector<unsigned char>(size, 0));
  }
  EXPECT_FALSE(is_device_memory(Buffer::pinned(16).data()));
  EXPECT_THROW(Buffer(std::size_t{1} << 50, kDevice), Error);
}

TEST_F(Cuda, ScratchIsDeviceMemoryAndDoesNotWait) {
  const auto lane = make_cuda_lane("order", kDevice);
  const auto pool = std::make_shared<ScratchPool>(kDevice);
  const std::byte* const first = pool->take(1 << 20).data();
  EXPECT_TRUE(is_device_memory(first));
  lane->delay(0.05);
  EXPECT_EQ(pool->take((1 << 20) - 1).data(), first);
  EXPECT_FALSE(lane->record().done());
  lane->synchronize();
}

TEST_F(Cuda, ALaneWorksWhileTheHostContinues) {
  const auto lane = make_cuda_lane("async", kDevice, LanePriority::high);
  bool called = false;
  const auto caller = std::this_thread::get_id();
  lane->run([&] { called = std::this_thread::get_id() == caller; });
  EXPECT_TRUE(called);
  lane->delay(0.2);
  const Fence fence = lane->record();
  EXPECT_FALSE(fence.done());
  EXPECT_EQ(fence.error(), nullptr);
  EXPECT_FALSE(fence.wait_for(std::chrono::milliseconds(1)));
  fence.synchronize();
  EXPECT_TRUE(fence.done());
  EXPECT_TRUE(Fence(fence).wait_for(std::chrono::nanoseconds(0)));
}

TEST_F(Cuda, LanesWaitForEachOtherWithoutTheHost) {
  const auto first = make_cuda_lane("first", kDevice), second = make_cuda_lane("second", kDevice);
  Buffer a(1 << 16, kDevice), b(1 << 16, kDevice);
  a.fill_zero();
  first->delay(0.1);
  a.fill(3, first->stream());
  second->wait(first->record());
  copy_bytes(b.data(), b.data(), 0);
  Buffer* from = &a;
  b.fill(1, second->stream());
  EXPECT_FALSE(second->record().done());
  second->synchronize();
  EXPECT_EQ(bytes_of(*from), std::vector<unsigned char>(1 << 16, 3));
  EXPECT_EQ(bytes_of(b), std::vector<unsigned char>(1 << 16, 1));
}

TEST_F(Cuda, LanesOfTheHostAndOfADeviceWaitForEachOther) {
  const auto stream = make_cuda_lane("stream", kDevice);
  const auto thread = make_thread_lane("thread");
  stream->delay(0.1);
  const Fence on_device = stream->record();
  thread->wait(on_device);
  std::atomic<bool> in_order = false;
  thread->run([&] { in_order = on_device.done(); });
  stream->wait(thread->record());  // this call blocks the host
  EXPECT_TRUE(in_order);
}

TEST_F(Cuda, TheFirstErrorBreaksALane) {
  const auto lane = make_cuda_lane("broken", kDevice), other = make_cuda_lane("other", kDevice);
  const Fence before = lane->record();
  lane->run([] { throw std::runtime_error("first"); });
  bool ran = false;
  lane->run([&] { ran = true; });
  const Fence after = lane->record();
  EXPECT_THROW(after.synchronize(), std::runtime_error);
  EXPECT_FALSE(ran);
  before.synchronize();
  other->wait(after);
  EXPECT_THROW(other->synchronize(), std::runtime_error);
  const auto third = make_cuda_lane("third", kDevice);
  Promise promise;
  promise.complete(std::make_exception_ptr(std::runtime_error("of the host")));
  third->wait(promise.fence());
  EXPECT_THROW(third->synchronize(), std::runtime_error);
}

// A watchdog reports a failure when the work is already on the stream.
TEST_F(Cuda, ALateFailureReachesLaterFences) {
  const auto faults = std::make_shared<LaneFaults>();
  const auto lane = make_cuda_lane("watched", kDevice, LanePriority::normal, faults);
  const auto follower = make_cuda_lane("follower", kDevice);
  lane->run([] {});
  const Fence before = lane->record();
  std::int64_t position = 0;
  lane->run([&] { position = faults->position(); });
  lane->delay(0.1);
  const Fence after = lane->record();
  follower->wait(after);
  const Fence behind = follower->record();
  faults->fail(position, std::make_exception_ptr(std::runtime_error("late")));
  EXPECT_THROW(after.synchronize(), std::runtime_error);
  EXPECT_THROW(behind.synchronize(), std::runtime_error);
  before.synchronize();
}

TEST_F(Cuda, TimedFencesMeasureTheDevice) {
  const auto lane = make_cuda_lane("timed", kDevice);
  const Fence begin = lane->record_timed();
  lane->delay(0.1);
  const Fence end = lane->record_timed();
  EXPECT_THROW(end.seconds_since(begin), Error);
  end.synchronize();
  EXPECT_GE(end.seconds_since(begin), 0.1);
  EXPECT_LT(end.seconds_since(begin), 30);
  const Fence untimed = lane->record();
  untimed.synchronize();
  EXPECT_THROW(untimed.seconds_since(begin), Error);
}

TEST_F(Cuda, AStreamOutlivesItsLaneAndIsReused) {
  auto lane = make_cuda_lane("first", kDevice);
  const auto other = make_cuda_lane("other", kDevice);
  const CudaStream stream = lane->stream();
  EXPECT_NE(other->stream(), stream);
  lane->delay(0.05);
  lane->run([] { throw Error("lost"); });
  lane.reset();
  EXPECT_NE(make_cuda_lane("urgent", kDevice, LanePriority::high)->stream(), stream);
  lane = make_cuda_lane("second", kDevice);
  EXPECT_EQ(lane->stream(), stream);
  EXPECT_NE(make_cuda_lane("third", kDevice)->stream(), stream);
  lane->delay(0.01);
  lane->synchronize();  // the fault belongs to the first lane
}

TEST_F(Cuda, FencesMayBeUsedByManyThreadsAndOutliveTheirLane) {
  std::vector<Fence> fences;
  {
    const auto lane = make_cuda_lane("many", kDevice);
    std::vector<std::thread> threads;
    std::mutex mutex;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          lane->run([] {});
          const Fence fence = lane->record();
          std::lock_guard lock(mutex);
          fences.push_back(fence);
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  for (const Fence& fence : fences) EXPECT_TRUE(fence.done());
}

TEST(HostLanes, TimedFencesMeasureTheClock) {
  for (const bool own_thread : {false, true}) {
    const auto lane = own_thread ? make_thread_lane("timed") : make_inline_lane();
    const Fence begin = lane->record_timed();
    lane->delay(0.05);
    const Fence end = lane->record_timed();
    end.synchronize();
    EXPECT_GE(end.seconds_since(begin), 0.05);
    EXPECT_THROW(end.seconds_since(Fence()), Error);
  }
}

}  // namespace
}  // namespace tessera::base
