#include <cuda_runtime_api.h>

#include "tessera/base/cuda_check.h"
#include "tessera/bench/kernels_clock.h"
#include "tessera/ops/tensor.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t kBusyBytes = std::int64_t{1} << 30;  // copied ahead of the calls: half a millisecond

class Event {
 public:
  Event() { TESSERA_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(base::CudaStream stream) { TESSERA_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  // After the other one; waits for both.
  double seconds_since(const Event& begin) {
    float milliseconds = 0;
    TESSERA_CUDA_CHECK(cudaEventSynchronize(event_));
    TESSERA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class EventClock final : public KernelClock {
 public:
  double seconds_of(int calls, const std::function<void(int)>& work) override {
    const base::CudaStream stream = ops::stream_of(from_);
    to_.copy_(from_);
    begin_.record(stream);
    for (int call = 0; call < calls; ++call) work(call);
    end_.record(stream);
    return end_.seconds_since(begin_);
  }

 private:
  at::Tensor from_ = ops::make({kBusyBytes}, at::kByte, at::kCUDA), to_ = from_.clone();
  Event begin_, end_;
};

}  // namespace

std::unique_ptr<KernelClock> make_event_clock() {
  return std::make_unique<EventClock>();
}

}  // namespace tessera::bench
