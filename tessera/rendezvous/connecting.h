#pragma once
#include <chrono>

namespace tessera::rendezvous {

// The minimum time limit for ranks to connect to each other, even if the time limit of operations is shorter. Ranks do
// not all start at the same time.
inline constexpr std::chrono::milliseconds kConnecting{30'000};

}  // namespace tessera::rendezvous
