#pragma once
#include <chrono>

namespace tessera::rendezvous {

// The minimum time that ranks have to find each other, for any time limit of operations. Ranks do not all start at the
// same time.
inline constexpr std::chrono::milliseconds kConnecting{30'000};

}  // namespace tessera::rendezvous
