// Tests operands in host memory after a failure.
#include "tessera/comm/nccl/staging.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kCount = 1000;
constexpr std::int64_t kFromDevice = 0x0707070707070707;

// A lane whose device is busy, and an operation on it that writes to host memory.
struct SlowReceive {
  explicit SlowReceive(milliseconds grace) : faults(std::make_shared<base::LaneFaults>(grace)) {
    lane = base::make_cuda_lane("slow", base::cuda_device(0), base::LanePriority::normal, faults);
    staging.emplace(base::cuda_device(0), lane->stream(), faults);
    lane->delay(0.5);
    lane->run([&] {
      position = faults->position();
      const GroupIdentity group{.name = "one", .rank = 0, .members = {0}};
      const Operation moved = staging->to_device({.kind = OperationKind::reduce_scatter,
                                                  .type = quant::DType::i64,
                                                  .send = sent.data(),
                                                  .recv = received.data(),
                                                  .send_counts = {kCount}},
                                                 group);
      EXPECT_EQ(cudaMemsetAsync(moved.recv, 7, kCount * sizeof(std::int64_t), lane->stream()), cudaSuccess);
      staging->to_host();
    });
  }

  const std::vector<std::int64_t> sent = std::vector<std::int64_t>(kCount, 3);
  std::vector<std::int64_t> received = std::vector<std::int64_t>(kCount, 5);
  std::shared_ptr<base::LaneFaults> faults;
  std::unique_ptr<base::Lane> lane;
  std::optional<NcclStaging> staging;
  std::int64_t position = 0;
};

class NcclStagingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_F(NcclStagingTest, CopiesResultsBackToHostMemory) {
  SlowReceive receive(milliseconds(10));
  receive.lane->synchronize();
  EXPECT_EQ(receive.received, std::vector<std::int64_t>(kCount, kFromDevice));
}

// The owner of the operands may free them as soon as the fence reports the failure, long before the stream reaches
// them.
TEST_F(NcclStagingTest, DoesNotWriteOperandsOfAFailedOperation) {
  SlowReceive receive(milliseconds(10));
  const base::Fence fence = receive.lane->record();
  receive.faults->fail(receive.position, std::make_exception_ptr(Error("time limit")));
  EXPECT_THROW(fence.synchronize(), Error);
  receive.received.assign(receive.received.size(), 9);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(receive.received, std::vector<std::int64_t>(kCount, 9));
}

TEST_F(NcclStagingTest, DestructionDoesNotWaitForTheStream) {
  std::optional<SlowReceive> receive(std::in_place, milliseconds(10));
  receive->faults->fail(receive->position, std::make_exception_ptr(Error("time limit")));
  receive->lane.reset();  // does not wait, because the work has failed
  const auto begin = std::chrono::steady_clock::now();
  receive.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(200));
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace tessera::comm
