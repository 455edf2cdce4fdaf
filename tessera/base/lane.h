// A lane is an ordered asynchronous queue of work: here a worker thread or the calling thread; on a GPU a stream.
// The runtime is written once against lanes and fences, so overlap is the same on every device.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tessera/base/fence.h"

namespace tessera::base {

// Work runs in the order of run() calls. When a piece of work throws, the lane is broken: later work is dropped, and
// every later fence carries that first error. run, record and wait may be called from any thread.
class Lane {
 public:
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  virtual void run(std::function<void()> work) = 0;
  virtual Fence record() = 0;
  // Work enqueued from now on starts after `fence`; its error, if any, breaks this lane.
  virtual void wait(const Fence& fence) = 0;
  void synchronize() { record().synchronize(); }

 protected:
  Lane() = default;
};

// Runs work at once on the calling thread: run() throws what the work throws, wait() blocks.
std::unique_ptr<Lane> make_inline_lane();
// One worker thread named `name`. Destruction finishes the queue, then joins.
std::unique_ptr<Lane> make_thread_lane(std::string name);

}  // namespace tessera::base
