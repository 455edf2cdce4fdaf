#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/base/lanes/fence_state.h"

namespace tessera::base {
namespace {

using std::chrono::steady_clock;

// A pool of CUDA events that one lane reuses.
class EventPool {
 public:
  explicit EventPool(Device device) : device_(device) {}
  ~EventPool() {
    for (const auto& events : free_)
      for (cudaEvent_t event : events) cudaEventDestroy(event);
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  cudaEvent_t take(bool timed) {
    {
      std::lock_guard lock(mutex_);
      auto& events = free_[timed ? 1 : 0];
      if (!events.empty()) {
        cudaEvent_t event = events.back();
        events.pop_back();
        return event;
      }
    }
    const DeviceGuard guard(device_);
    cudaEvent_t event = nullptr;
    TESSERA_CUDA_CHECK(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
    return event;
  }
  void give(cudaEvent_t event, bool timed) {
    std::lock_guard lock(mutex_);
    free_[timed ? 1 : 0].push_back(event);
  }

 private:
  const Device device_;
  std::mutex mutex_;
  std::array<std::vector<cudaEvent_t>, 2> free_;  // index: whether the events record times
};

// Owns an event of the pool. The destructor returns the event to the pool.
class Event {
 public:
  Event(std::shared_ptr<EventPool> pool, bool timed)
      : pool_(std::move(pool)), event_(pool_->take(timed)), timed_(timed) {}
  ~Event() { pool_->give(event_, timed_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  bool timed() const { return timed_; }

 private:
  const std::shared_ptr<EventPool> pool_;
  const cudaEvent_t event_;
  const bool timed_;
};

// The streams of destroyed lanes of this process, for reuse by later lanes. Streams are never destroyed: with
// expandable segments, libtorch waits for the streams for which it keeps memory, long after the tensors and the lane
// are destroyed. Any thread may use the object.
class KeptStreams {
 public:
  static KeptStreams& of_process() {
    static auto* const streams = new KeptStreams;  // outlives every lane
    return *streams;
  }
  CudaStream take(Device device, LanePriority priority) {
    {
      std::lock_guard lock(mutex_);
      auto& streams = free_[{device.index, priority}];
      if (!streams.empty()) {
        const CudaStream stream = streams.back();
        streams.pop_back();
        return stream;
      }
    }
    const DeviceGuard guard(device);
    int least = 0, greatest = 0;
    TESSERA_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    TESSERA_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                                    priority == LanePriority::high ? greatest : least));
    return stream;
  }
  void give(CudaStream stream, Device device, LanePriority priority) {
    std::lock_guard lock(mutex_);
    free_[{device.index, priority}].push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, LanePriority>, std::vector<CudaStream>> free_;
};

// Polls a device: first with yields, later with sleeps.
class SpinThenSleep {
 public:
  void rest() {
    const auto waited = steady_clock::now() - begin_;
    if (waited < std::chrono::microseconds(100))
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(waited < std::chrono::milliseconds(10) ? std::chrono::microseconds(20)
                                                                         : std::chrono::microseconds(100));
  }

 private:
  const steady_clock::time_point begin_ = steady_clock::now();
};

class CudaFence final : public detail::FenceState {
 public:
  // `signal` is an event for waits between a graph and other work, or null. Later fences of the same signal share the
  // event. In a graph, `signal` equals `event`. `capture` is the lane's capture when the fence is recorded, or null.
  CudaFence(std::shared_ptr<const Event> event, std::shared_ptr<const Event> signal, std::shared_ptr<LaneFaults> faults,
            std::shared_ptr<const Capture> capture)
      : event_(std::move(event)),
        signal_(std::move(signal)),
        faults_(std::move(faults)),
        position_(faults_->position()),
        capture_(std::move(capture)) {
    if (capture_ == nullptr) return;
    error_ = std::make_exception_ptr(Error("work outside of a graph cannot wait for a fence of the graph"));
    finished_ = true;
  }
  bool done() const override {
    if (finished_.load(std::memory_order_acquire)) return true;
    const cudaError_t status = cudaEventQuery(event());
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    finish(status);
    return true;
  }
  void wait() const override {
    while (!wait_for(std::chrono::hours(1))) {
    }
  }
  bool wait_for(std::chrono::nanoseconds limit) const override {
    const auto begin = steady_clock::now();
    SpinThenSleep pause;
    for (;;) {
      if (done()) return true;
      const auto waited = steady_clock::now() - begin;
      if (waited >= limit) return false;
      if (waited > std::chrono::milliseconds(1) && faults_->is_abandoned(position_)) {
        finish(cudaSuccess);
        return true;
      }
      pause.rest();
    }
  }
  std::exception_ptr error() const override {
    if (!done()) return nullptr;
    return error_;
  }
  std::optional<double> seconds_since(const FenceState& earlier) const override {
    const auto* other = dynamic_cast<const CudaFence*>(&earlier);
    float milliseconds = 0;
    if (other == nullptr || !event_->timed() || !other->event_->timed()) return std::nullopt;
    if (cudaEventElapsedTime(&milliseconds, other->event(), event()) == cudaSuccess) return milliseconds * 1e-3;
    (void)cudaGetLastError();
    return std::nullopt;
  }

  cudaEvent_t event() const { return event_->get(); }
  const Event* signal() const { return signal_.get(); }
  const Capture* capture() const { return capture_.get(); }
  void finish(cudaError_t status) const {
    auto error = faults_->at(position_);
    if (error == nullptr && status != cudaSuccess)
      error = std::make_exception_ptr(
          Error("work of a lane failed: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status)));
    std::lock_guard lock(mutex_);
    if (finished_.load(std::memory_order_relaxed)) return;
    error_ = std::move(error);
    finished_.store(true, std::memory_order_release);
  }

 private:
  const std::shared_ptr<const Event> event_, signal_;
  const std::shared_ptr<LaneFaults> faults_;
  const std::int64_t position_;
  const std::shared_ptr<const Capture> capture_;
  mutable std::mutex mutex_;
  mutable std::atomic<bool> finished_ = false;
  mutable std::exception_ptr error_;  // written before finished_
};

class CudaLane final : public Lane {
 public:
  CudaLane(std::string name, Device device, LanePriority priority, std::shared_ptr<LaneFaults> faults)
      : name_(std::move(name)),
        device_(device),
        priority_(priority),
        stream_(KeptStreams::of_process().take(device, priority)),
        faults_(std::move(faults)),
        pool_(std::make_shared<EventPool>(device)) {}
  ~CudaLane() override {
    SpinThenSleep pause;
    cudaError_t status = cudaStreamQuery(stream_);
    while (status == cudaErrorNotReady && !faults_->is_abandoned(faults_->position())) {
      pause.rest();
      status = cudaStreamQuery(stream_);
    }
    (void)cudaGetLastError();
    // A stream that failed or may never finish is not reused.
    if (status == cudaSuccess) KeptStreams::of_process().give(stream_, device_, priority_);
  }

  void run(std::function<void()> work) override {
    std::lock_guard lock(mutex_);
    const std::int64_t position = faults_->begin_work();
    if (faults_->broken()) return;
    try {
      const DeviceGuard guard(device_);
      work();
    } catch (...) {
      faults_->fail(position, std::current_exception());
    }
  }
  Fence record() override { return record(/*timed=*/false, nullptr); }
  Fence record_timed() override { return record(/*timed=*/true, nullptr); }
  Fence record(Signal& signal) override {
    if (signal.kept == nullptr) signal.kept = std::make_shared<Event>(pool_, /*timed=*/false);
    return record(/*timed=*/false, std::static_pointer_cast<Event>(signal.kept));
  }
  void wait(const Fence& fence) override;
  void follow(const Fence& fence) override {
    std::lock_guard lock(mutex_);
    faults_->begin_work();
    faults_->follow(fence);
  }
  void delay(double seconds) override;
  CudaStream stream() override { return stream_; }
  void capture(const std::shared_ptr<const Capture>& capture) override {
    std::lock_guard lock(mutex_);
    capture_ = capture;
  }
  bool is_captured() const override {
    std::lock_guard lock(mutex_);
    return capture_ != nullptr;
  }

 private:
  Fence record(bool timed, const std::shared_ptr<const Event>& signal) {
    std::lock_guard lock(mutex_);
    const DeviceGuard guard(device_);
    const bool in_graph = capture_ != nullptr;
    const auto own = in_graph && signal != nullptr ? signal : std::make_shared<const Event>(pool_, timed);
    const auto state = std::make_shared<CudaFence>(own, signal, faults_, capture_);
    cudaError_t status = cudaSuccess;
    if (own != signal) status = cudaEventRecord(own->get(), stream_);
    if (status == cudaSuccess && signal != nullptr)
      status =
          cudaEventRecordWithFlags(signal->get(), stream_, in_graph ? cudaEventRecordExternal : cudaEventRecordDefault);
    if (status != cudaSuccess) state->finish(status);
    return Fence(state);
  }

  const std::string name_;
  const Device device_;
  const LanePriority priority_;
  const CudaStream stream_;
  const std::shared_ptr<LaneFaults> faults_;
  const std::shared_ptr<EventPool> pool_;
  std::shared_ptr<const Capture> capture_;
  mutable std::recursive_mutex mutex_;  // keeps the order of calls on the stream; recursive: work may call its own lane
};

void CudaLane::wait(const Fence& fence) {
  const auto* other = dynamic_cast<const CudaFence*>(fence.state());
  if (other == nullptr) {
    fence.wait_until_done();
    if (const auto error = fence.error()) faults_->fail(faults_->begin_work(), error);
    return;
  }
  std::lock_guard lock(mutex_);
  const std::int64_t position = faults_->begin_work();
  const DeviceGuard guard(device_);
  const auto fail = [&](const std::string& why) {
    faults_->fail(position, std::make_exception_ptr(Error("lane {}: wait: {}", name_, why)));
  };
  const bool in_graph = capture_ != nullptr, of_graph = other->capture() != nullptr;
  const Event* signal = other->signal();
  if (of_graph && signal != nullptr && in_graph) return fail("a graph cannot wait for a signal that a graph records");
  if (of_graph && signal == nullptr && other->capture() != capture_.get())
    return fail("work outside of a graph cannot wait for a fence of the graph");
  const bool enters = in_graph && !of_graph;
  if (enters && signal == nullptr && !other->done())
    return fail("a graph cannot wait for earlier work that is not done");
  cudaError_t status = cudaSuccess;
  if (!enters)
    status = cudaStreamWaitEvent(stream_, other->event(), cudaEventWaitDefault);
  else if (signal != nullptr)
    status = cudaStreamWaitEvent(stream_, signal->get(), cudaEventWaitExternal);
  if (status != cudaSuccess) fail(cudaGetErrorString(status));
  if (!of_graph) faults_->follow(fence);
}

void CudaLane::delay(double seconds) {
  TESSERA_CHECK(seconds >= 0, "delay: expected 0 seconds or more, got {}", seconds);
  run([this, seconds] {
    if (capture_ != nullptr) throw Error("lane {}: a graph cannot contain a delay", name_);
    const auto sleep = [](void* data) {
      const std::unique_ptr<double> duration(static_cast<double*>(data));
      std::this_thread::sleep_for(std::chrono::duration<double>(*duration));
    };
    auto duration = std::make_unique<double>(seconds);
    TESSERA_CUDA_CHECK(cudaLaunchHostFunc(stream_, sleep, duration.get()));
    (void)duration.release();  // the callback owns the duration
  });
}

}  // namespace

std::unique_ptr<Lane> make_cuda_lane(const std::string& name, Device device, LanePriority priority,
                                     std::shared_ptr<LaneFaults> faults) {
  TESSERA_CHECK(device.kind == DeviceKind::cuda, "lane {}: expected a CUDA device, got {}", name, name_of(device));
  if (faults == nullptr) faults = std::make_shared<LaneFaults>();
  return std::make_unique<CudaLane>(name, device, priority, std::move(faults));
}

}  // namespace tessera::base
