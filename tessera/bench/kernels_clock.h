// How long work takes on a device: wall clock on the CPU, events on CUDA.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace tessera::bench {

class KernelClock {
 public:
  virtual ~KernelClock() = default;
  // Seconds of work(0), work(1), ..., work(calls - 1), one behind the other.
  virtual double seconds_of(int calls, const std::function<void(int)>& work) = 0;
  // Seconds of each part, one behind the other.
  virtual std::vector<double> seconds_of_parts(std::span<const std::function<void()>> parts) = 0;
};

std::unique_ptr<KernelClock> make_wall_clock();
// On the current stream. What the host needs to put the calls there does not count: the device is kept busy meanwhile.
// Errors: a build without CUDA.
std::unique_ptr<KernelClock> make_event_clock();

}  // namespace tessera::bench
