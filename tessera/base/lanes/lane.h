// A lane is an ordered asynchronous queue of work. A lane is a worker thread, the calling thread, or a stream of a GPU.
// The runtime uses only lanes and fences, so work overlaps in the same way on every device.
//
// On a stream (cuda_lane.h), run() calls the work immediately on the calling thread. The work enqueues kernels and
// copies on stream(), which executes them later.
//
// Virtual time. A lane that is made with a host's clock has its own virtual time. The time depends only on the program
// and not on the speed of threads. Work begins no earlier than the host's time at the call of run(). Work takes no
// virtual time unless the work advances the lane's clock. A fence stores the lane's time, and wait() raises the lane's
// time to the time of the fence.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tessera/base/clock.h"
#include "tessera/base/cuda_stream.h"
#include "tessera/base/lanes/capture.h"
#include "tessera/base/lanes/fence.h"

namespace tessera::base {

// Work runs in the order of the run() calls. If work throws, the lane is broken and drops later work. Every later fence
// is done as soon as the lane reaches it, and stores the first error. A lane can therefore always be drained. Any
// thread may call run, record, wait and delay.
class Lane {
 public:
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  virtual void run(std::function<void()> work) = 0;
  virtual Fence record() = 0;
  // Records a fence that also supports seconds_since().
  virtual Fence record_timed() { return record(); }
  // Records a fence at a signal. Such a fence connects a graph and work outside of the graph. A lane outside of the
  // graph can wait for a fence that is recorded into the graph. The lane then waits for the most recent launch. The
  // graph can wait for a fence that is recorded outside. Each launch then waits for the most recent record of the
  // signal.
  virtual Fence record(Signal&) { return record(); }
  // Work that is enqueued later starts after `fence`. An error of `fence` breaks this lane.
  virtual void wait(const Fence& fence) = 0;
  // As wait(), but a stream does not wait for `fence`. An error of `fence` still breaks the lane. For work that already
  // contains the wait, such as a graph.
  virtual void follow(const Fence& fence) { wait(fence); }
  // Enqueues a delay of this lane: sleeps, or advances the lane's clock if time is virtual. Throws Error for a negative
  // time.
  virtual void delay(double seconds);
  void synchronize() { record().synchronize(); }

  // Returns the clock with the time that this lane has reached, or null if time is real. Called by work that runs on
  // the lane.
  virtual VirtualClock* clock() { return nullptr; }
  // Returns the stream for the lane's work, or null on the CPU.
  virtual CudaStream stream() { return nullptr; }
  // The caller passes the capture when the capture of the stream starts, and null when the capture ends. Throws Error
  // if the lane has no stream.
  virtual void capture(const std::shared_ptr<const Capture>& capture);
  virtual bool is_captured() const { return false; }

 protected:
  Lane() = default;
};

// Makes a lane that runs work immediately on the calling thread. Errors of the work are thrown by run() and do not
// break the lane. A wait() blocks. The lane's clock is the host's clock.
std::unique_ptr<Lane> make_inline_lane(std::shared_ptr<VirtualClock> host = nullptr);
// Makes a lane with one worker thread named `name`. The destructor finishes the queue and joins the thread.
std::unique_ptr<Lane> make_thread_lane(const std::string& name, std::shared_ptr<VirtualClock> host = nullptr);

}  // namespace tessera::base
