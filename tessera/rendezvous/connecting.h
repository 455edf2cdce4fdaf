#pragma once
#include <chrono>

namespace tessera::rendezvous {

// Ranks do not start at once: they have at least this long to find each other, whatever the limit of an operation is.
inline constexpr std::chrono::milliseconds kConnecting{30'000};

}  // namespace tessera::rendezvous
