// A lane is an ordered asynchronous queue of work: here a worker thread or the calling thread; on a GPU a stream.
// The runtime is written once against lanes and fences, so overlap is the same on every device.
//
// On a stream (cuda_lane.h) run() calls the work at once on the calling thread, and the work enqueues what it has to do
// on stream(). What the stream does comes later, as work does elsewhere.
//
// Virtual time. A lane made with a host's clock has a time of its own, which depends on the program alone and not on
// how fast threads run: work begins no earlier than the host's time at its run(), and takes none unless it moves the
// lane's clock; a fence carries the lane's time, and wait() raises it to the fence's.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tessera/base/capture.h"
#include "tessera/base/clock.h"
#include "tessera/base/cuda_stream.h"
#include "tessera/base/fence.h"

namespace tessera::base {

// Work runs in the order of run() calls. When a piece of work throws, the lane is broken: later work is dropped, and
// every later fence is done as soon as the lane comes to it and carries that first error, so a lane can always be
// drained. run, record, wait and delay may be called from any thread.
class Lane {
 public:
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  virtual void run(std::function<void()> work) = 0;
  virtual Fence record() = 0;
  // A fence for seconds_since() too.
  virtual Fence record_timed() { return record(); }
  // A fence that may be waited for across a graph's border. Recorded into a graph it is for lanes outside: they wait
  // for the last launch before. Recorded outside, a graph waits at each launch for the last record of `signal` before
  // that launch.
  virtual Fence record(Signal&) { return record(); }
  // Work enqueued from now on starts after `fence`; its error, if any, breaks this lane.
  virtual void wait(const Fence& fence) = 0;
  // Only the second: for work that waits for `fence` itself, as a graph does.
  virtual void follow(const Fence& fence) { wait(fence); }
  // Work that does nothing for so long: sleeps, on this lane alone, or moves the lane's clock. Errors: less than 0.
  virtual void delay(double seconds);
  void synchronize() { record().synchronize(); }

  // The time this lane has come to, null where time is real. For work that runs on the lane.
  virtual VirtualClock* clock() { return nullptr; }
  // Where work enqueues, null on the CPU.
  virtual CudaStream stream() { return nullptr; }
  // The stream is being captured, or, with null, is not any more: whoever begins and ends that says so. Errors: no
  // stream.
  virtual void capture(const std::shared_ptr<const Capture>& capture);
  virtual bool is_captured() const { return false; }

 protected:
  Lane() = default;
};

// Runs work at once on the calling thread: run() throws what the work throws and the lane goes on, wait() blocks. Its
// clock is the host's.
std::unique_ptr<Lane> make_inline_lane(std::shared_ptr<VirtualClock> host = nullptr);
// One worker thread named `name`. Destruction finishes the queue, then joins.
std::unique_ptr<Lane> make_thread_lane(const std::string& name, std::shared_ptr<VirtualClock> host = nullptr);

}  // namespace tessera::base
