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
#include "tessera/base/lane.h"

namespace tessera::base {

// Where the work of a lane failed. Work is numbered from 1 in the order of its calls; a fence's position is that of the
// work before it. What watches a lane (a time limit of collectives) makes it fail here. Any thread.
class LaneFaults {
 public:
  // How long fences wait for a device after a failure.
  static constexpr std::chrono::milliseconds kGrace{10000};
  explicit LaneFaults(std::chrono::milliseconds grace = kGrace) : grace_(grace) {}

  std::int64_t begin_work();      // the next position, which is then the lane's
  std::int64_t position() const;  // of the lane
  // Work at `position` and after has failed. The earliest position counts.
  void fail(std::int64_t position, std::exception_ptr error);
  bool broken() const;
  // What broke the work up to `position`, another lane it waited for included. Null when nothing did, as far as is
  // known: final once a fence there is done.
  std::exception_ptr at(std::int64_t position);
  // The work up to `position` failed so long ago that nobody should wait for the device any more.
  bool given_up(std::int64_t position) const;
  // Calls `work`, which reads or writes memory of the lane's callers, unless the work at `position` was given up.
  // given_up() returns only after `work` has: a caller may free the memory when it returns true. For callbacks that a
  // stream runs; `work` is short and calls no function of this object.
  void unless_given_up(std::int64_t position, const std::function<void()>& work) const;
  // Work from the lane's position on waits for `fence`, of another lane.
  void follow(const Fence& fence);

 private:
  bool is_given_up(std::int64_t position) const;  // with the lock

  struct Followed {
    std::int64_t position = 0;
    Fence fence;
  };
  void forget_finished(std::int64_t position);  // of what work up to there waits for

  const std::chrono::milliseconds grace_;
  mutable std::mutex mutex_;
  std::int64_t position_ = 0;
  std::int64_t broken_at_ = std::numeric_limits<std::int64_t>::max();
  std::exception_ptr error_;
  std::chrono::steady_clock::time_point broken_since_;
  std::deque<Followed> followed_;
};

enum class LanePriority { normal, high };

// A lane with a stream of its own, which waits for no other stream by itself. `faults`: for a watcher; made where null.
// wait() for a fence of another stream costs the host nothing; for one of a thread lane it blocks until that is done.
// Work that throws breaks the lane, run() does not throw; what a stream has been given already is not taken back.
// Fences use events from a pool that grows until there are enough. Destruction finishes the stream's work; the stream
// stays and is a later lane's. Errors: no such device, built without CUDA.
std::unique_ptr<Lane> make_cuda_lane(const std::string& name, Device device,
                                     LanePriority priority = LanePriority::normal,
                                     std::shared_ptr<LaneFaults> faults = nullptr);

}  // namespace tessera::base
