// The calls that the benchmark `kernels` measures.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tessera/bench/kernels.h"

namespace tessera::bench {

struct KernelCase {
  std::string name;
  double bytes = 0;  // each input read once, each output written once
  // Creates a set of buffers, different for each seed, and returns the call on them.
  std::function<std::function<void()>(std::uint64_t seed)> prepare;
  double operations = 0;  // multiplications and additions, if they limit the kernel
};
// Returns the cases. The first case is a copy of `copy_bytes` bytes, the reference for the others.
std::vector<KernelCase> kernel_cases(const KernelBench& bench, std::int64_t copy_bytes);

}  // namespace tessera::bench
