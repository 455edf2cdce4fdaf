// Measures the time of work on a device: with a wall clock on the CPU, with events on CUDA.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tessera::bench {

class KernelClock {
 public:
  virtual ~KernelClock() = default;
  // Runs work(0), work(1), ..., work(calls - 1) one after another. Returns their total time in seconds.
  virtual double seconds_of(int calls, const std::function<void(int)>& work) = 0;
  // Runs the parts one after another. Returns the seconds of each part.
  virtual std::vector<double> seconds_of_parts(std::span<const std::function<void()>> parts) = 0;
};

std::unique_ptr<KernelClock> make_wall_clock();
// Measures on the current stream. The device is kept busy while the host enqueues the calls, so the host's time is not
// measured. Only a build with CUDA defines this function.
std::unique_ptr<KernelClock> make_event_clock();

}  // namespace tessera::bench
