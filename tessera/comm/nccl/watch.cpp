#include <thread>
#include <utility>

#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"
#include "tessera/comm/nccl/watchdog.h"

namespace tessera::comm {
namespace {

bool has_passed(cudaEvent_t event, std::string& error) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaSuccess) return true;
  (void)cudaGetLastError();
  if (status != cudaErrorNotReady)
    error = fmt::format("the device failed: {} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
  return false;
}

}  // namespace

NcclWatch::NcclWatch(GroupIdentity group, std::string key, base::Device device, std::shared_ptr<NcclChannel> channel,
                     std::shared_ptr<base::LaneFaults> faults)
    : group_(std::move(group)),
      key_(std::move(key)),
      device_(device),
      channel_(std::move(channel)),
      faults_(std::move(faults)) {}

NcclWatch::~NcclWatch() {
  for (const Pending& one : pending_) {
    cudaEventDestroy(one.began);
    cudaEventDestroy(one.ended);
  }
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

CUevent_st* NcclWatch::take_event() {
  if (!free_.empty()) {
    cudaEvent_t event = free_.back();
    free_.pop_back();
    return event;
  }
  const base::DeviceGuard guard(device_);
  cudaEvent_t event = nullptr;
  TESSERA_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void NcclWatch::begin(std::string_view what, std::int64_t sequence, base::CudaStream stream,
                      std::optional<std::chrono::milliseconds> graph) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  TESSERA_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) return;
  std::lock_guard lock(mutex_);
  remove_ended();
  pending_.push_back({.what = what, .sequence = sequence, .position = faults_->position(), .graph = graph});
  Pending& one = pending_.back();
  one.began = take_event();
  one.ended = take_event();
  TESSERA_CUDA_CHECK(cudaEventRecord(one.began, stream));
}

void NcclWatch::end(base::CudaStream stream) {
  std::lock_guard lock(mutex_);
  if (pending_.empty() || pending_.back().is_enqueued) return;
  TESSERA_CUDA_CHECK(cudaEventRecord(pending_.back().ended, stream));
  pending_.back().is_enqueued = true;
}

void NcclWatch::remove_ended() {
  while (!pending_.empty() && pending_.front().is_enqueued && has_passed(pending_.front().ended, device_error_)) {
    const Pending& first = pending_.front();
    last_ = fmt::format("{} #{}", first.what, first.sequence);
    free_.push_back(first.began);
    free_.push_back(first.ended);
    pending_.pop_front();
  }
}

bool NcclWatch::runs_graph() {
  std::lock_guard lock(mutex_);
  remove_ended();
  return !pending_.empty() && pending_.front().graph.has_value() && pending_.front().is_running;
}

std::string NcclWatch::poll(std::chrono::milliseconds timeout, bool beside_graph) {
  std::lock_guard lock(mutex_);
  if (failed_) return {};
  remove_ended();
  if (!device_error_.empty()) return device_error_;
  if (channel_ != nullptr)
    if (auto error = channel_->async_error(); !error.empty()) return error;
  if (pending_.empty()) return {};
  Pending& first = pending_.front();
  if (!first.is_running || (beside_graph && !first.graph)) {
    first.is_running = has_passed(first.began, device_error_);
    first.running_since = base::RunningClock::now();
  } else if (const auto limit = timeout + first.graph.value_or(std::chrono::milliseconds(0));
             base::RunningClock::now() - first.running_since > limit) {
    return fmt::format("time limit of {} ms passed", limit.count());
  }
  return device_error_;
}

std::string NcclWatch::label_of(const Pending& one) const {
  return fmt::format("{} #{} on {}, rank {}", one.what, one.sequence, group_.name, group_.world_rank());
}

std::string NcclWatch::label() const {
  std::lock_guard lock(mutex_);
  return pending_.empty() ? std::string() : label_of(pending_.front());
}

std::string NcclWatch::state() const {
  std::lock_guard lock(mutex_);
  if (!pending_.empty())
    return fmt::format("at {} #{}{}", pending_.front().what, pending_.front().sequence,
                       pending_.front().is_running ? "" : ", which its device has not reached");
  return last_.empty() ? "no operation called" : fmt::format("no operation called after {}", last_);
}

void NcclWatch::fail(const std::exception_ptr& error) {
  std::lock_guard lock(mutex_);
  if (std::exchange(failed_, true)) return;
  remove_ended();
  faults_->fail(pending_.empty() ? faults_->position() + 1 : pending_.front().position, error);
}

// An abort runs on its own thread because it waits for the device. On the device, another group's kernel may wait until
// that group is aborted.
void NcclWatch::abort() {
  if (channel_ != nullptr) std::thread([channel = channel_] { channel->abort(); }).detach();
  std::lock_guard lock(mutex_);
  if (at_abort_) std::thread(std::exchange(at_abort_, nullptr)).detach();
}

void NcclWatch::at_abort(std::function<void()> action) {
  std::lock_guard lock(mutex_);
  at_abort_ = std::move(action);
}

bool NcclWatch::failed() const {
  std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace tessera::comm
