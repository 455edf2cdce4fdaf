// The calls that the benchmark `kernels` measures.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tessera/bench/kernels.h"

namespace tessera::bench {

struct KernelCase {
  std::string name;
  double bytes = 0;  // bytes of memory traffic if each input is read once and each output is written once
  // Creates a set of buffers, different for each seed. Returns a function that runs the kernel on these buffers.
  std::function<std::function<void()>(std::uint64_t seed)> prepare;
  double operations = 0;  // multiplications and additions; 0 for kernels that memory limits
};
// Returns the cases. The first case is a copy of `copy_bytes` bytes, with which the other cases are compared.
std::vector<KernelCase> kernel_cases(const KernelBench& bench, std::int64_t copy_bytes);

}  // namespace tessera::bench
