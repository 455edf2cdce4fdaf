// Measures how long work takes on a device: wall clock on the CPU, events on CUDA.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tessera::bench {

class KernelClock {
 public:
  virtual ~KernelClock() = default;
  // Returns the seconds of work(0), work(1), ..., work(calls - 1), which run one after another.
  virtual double seconds_of(int calls, const std::function<void(int)>& work) = 0;
  // Returns the seconds of each part. The parts run one after another.
  virtual std::vector<double> seconds_of_parts(std::span<const std::function<void()>> parts) = 0;
};

std::unique_ptr<KernelClock> make_wall_clock();
// Measures on the current stream. The device is kept busy while the host enqueues the calls, so the host's time does
// not count. Throws Error in a build without CUDA.
std::unique_ptr<KernelClock> make_event_clock();

}  // namespace tessera::bench
