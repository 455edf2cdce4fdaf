// The calls that `kernels` measures.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tessera/bench/kernels.h"

namespace tessera::bench {

struct KernelCase {
  std::string name;
  double bytes = 0;  // each input read once, each output written once
  // Makes a set of buffers, other ones for each seed, and returns the call on them.
  std::function<std::function<void()>(std::uint64_t seed)> prepare;
  double operations = 0;  // multiplications and additions, of those that are bound by them
};
// The copy of `copy_bytes` first: the yardstick.
std::vector<KernelCase> kernel_cases(const KernelBench& bench, std::int64_t copy_bytes);

}  // namespace tessera::bench
