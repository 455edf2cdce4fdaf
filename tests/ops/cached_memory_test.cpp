// Tests the memory that libtorch caches for freed tensors.
#include "tessera/ops/device/cached_memory.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/device/stream_scope.h"
#include "tests/ops/allocator_settings.h"

namespace tessera::ops::test {
namespace {

std::int64_t kept_bytes() {
  return at::accelerator::getDeviceStats(0).reserved_bytes[0].current;
}

// Tensors and the scope may outlive the lane on whose stream the tensors were made. With expandable segments, libtorch
// waits for that stream.
TEST(CachedMemory, IsReturnedAfterItsLaneHasEnded) {
  if (!at::hasCUDA() || base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  at::globalContext().lazyInitDevice(at::kCUDA);
  const base::Device device = base::cuda_device(0);
  for (const bool expandable : {false, true}) {
    const AllocatorSettings settings(expandable ? "expandable_segments:True" : "expandable_segments:False");
    { const CachedMemoryScope memory(device); }
    const std::int64_t before = kept_bytes();
    {
      const CachedMemoryScope memory(device);
      at::Tensor late;
      {
        const auto lane = base::make_cuda_lane("short", device);
        const StreamScope scope(device, lane->stream());
        const auto options = at::TensorOptions(ops::to_device(device)).dtype(at::kByte);
        late = at::empty({std::int64_t{64} << 20}, options);
        const at::Tensor early = at::empty({std::int64_t{64} << 20}, options);
      }
      EXPECT_GE(kept_bytes() - before, std::int64_t{128} << 20);
    }
    EXPECT_EQ(kept_bytes(), before) << (expandable ? "expandable segments" : "segments that do not grow");
  }
}

}  // namespace
}  // namespace tessera::ops::test
