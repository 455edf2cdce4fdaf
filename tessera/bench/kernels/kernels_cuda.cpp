#include <cuda_runtime_api.h>

#include <deque>

#include "tessera/base/cuda_check.h"
#include "tessera/bench/kernels/kernels_clock.h"
#include "tessera/ops/tensor.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t kBusyBytes = std::int64_t{1}
                                    << 30;  // bytes of the copy before the calls, which takes half a millisecond

class TimedEvent {
 public:
  TimedEvent() { TESSERA_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(base::CudaStream stream) { TESSERA_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  // Returns the seconds from `begin` to this event, after waiting for both.
  double seconds_since(const TimedEvent& begin) {
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
  std::vector<double> seconds_of_parts(std::span<const std::function<void()>> parts) override {
    const base::CudaStream stream = ops::stream_of(from_);
    while (ends_.size() < parts.size()) ends_.emplace_back();
    to_.copy_(from_);
    begin_.record(stream);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i]();
      ends_[i].record(stream);
    }
    std::vector<double> seconds;
    for (std::size_t i = 0; i < parts.size(); ++i)
      seconds.push_back(ends_[i].seconds_since(i == 0 ? begin_ : ends_[i - 1]));
    return seconds;
  }

 private:
  at::Tensor from_ = ops::make({kBusyBytes}, at::kByte, at::kCUDA), to_ = from_.clone();
  TimedEvent begin_, end_;
  std::deque<TimedEvent> ends_;  // one event at the end of each part
};

}  // namespace

std::unique_ptr<KernelClock> make_event_clock() {
  return std::make_unique<EventClock>();
}

}  // namespace tessera::bench
