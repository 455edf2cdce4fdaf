// Lanes over CUDA streams.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/base/lanes/lane.h"

namespace tessera::base {

// Records which work of a lane failed. The calls of a lane are numbered from 1 in their order. The number of a call is
// the position of its work. The position of a fence is that of the last work before the fence. Code that watches the
// lane, such as the watchdog of collectives, calls fail(). Any thread may use the object.
class LaneFaults {
 public:
  // The time for which fences wait for a device after a failure.
  static constexpr std::chrono::milliseconds kGrace{10000};
  explicit LaneFaults(std::chrono::milliseconds grace = kGrace) : grace_(grace) {}

  std::int64_t begin_work();      // returns the position of the next work
  std::int64_t position() const;  // position of the last work
  // Records that the work at `position` and all later work failed. After several calls, the earliest position and its
  // error count.
  void fail(std::int64_t position, std::exception_ptr error);
  bool broken() const;
  // Returns the error that broke the work up to `position`. The error may come from another lane for which this work
  // waits. Returns null if no error is known. The result is final once a fence at `position` is done.
  std::exception_ptr at(std::int64_t position);
  // Returns whether the work up to `position` failed longer ago than the grace time. Callers then stop waiting for the
  // device.
  bool is_abandoned(std::int64_t position) const;
  // Calls `work` unless is_abandoned(position) is true. A stream's callback calls this function to access memory of the
  // lane's callers. While `work` runs, is_abandoned() waits. A caller may therefore free the memory when is_abandoned()
  // returns true. `work` must be short and must not call functions of this object.
  void run_unless_abandoned(std::int64_t position, const std::function<void()>& work) const;
  // Records that the work at the current position and all later work wait for `fence`, a fence of another lane.
  void follow(const Fence& fence);

 private:
  bool is_abandoned_locked(std::int64_t position) const;  // the caller holds mutex_

  struct Dependency {
    std::int64_t position = 0;
    Fence fence;
  };
  void remove_finished(std::int64_t position);  // removes fences that are done, for work up to `position`

  const std::chrono::milliseconds grace_;
  mutable std::mutex mutex_;
  std::int64_t position_ = 0;
  std::int64_t broken_at_ = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point broken_since_;
  std::deque<Dependency> dependencies_;
};

enum class LanePriority { normal, high };

// Makes a lane with its own stream. The stream does not wait for other streams implicitly. The lane records its
// failures in `faults`, or in an object of its own if `faults` is null. For a fence of another stream, wait() does not
// block the host. For a fence of a thread lane, wait() blocks until the fence is done. Work that throws breaks the
// lane, and run() does not throw. Work that is already on the stream is not cancelled. Fences use events from a pool
// that grows as needed. The destructor waits for the stream's work. The stream is kept, and a later lane reuses it.
// Throws Error if the device does not exist or the library was built without CUDA.
std::unique_ptr<Lane> make_cuda_lane(const std::string& name, Device device,
                                     LanePriority priority = LanePriority::normal,
                                     std::shared_ptr<LaneFaults> faults = nullptr);

}  // namespace tessera::base
