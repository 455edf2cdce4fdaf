// The cost of a collective between ranks, for runs that imitate a slower network.
#pragma once
#include <cstdint>
#include <limits>

namespace tessera::comm {

struct Link {
  double latency_s = 0;
  double bytes_per_second = std::numeric_limits<double>::infinity();

  // Returns the seconds of a collective. `bytes` is the most that one rank receives from the others.
  double seconds(std::int64_t bytes) const { return latency_s + static_cast<double>(bytes) / bytes_per_second; }
};

}  // namespace tessera::comm
