// Messages of ranks that compare their inputs, for the tests of launch and serve.
#pragma once
#include <array>
#include <string>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"

namespace tessera::launch::testing {

// Calls compare(group, rank) on three ranks. Returns the message of each rank, or "" for no error.
template <typename Compare>
std::array<std::string, 3> messages_of(Compare compare) {
  std::array<std::string, 3> found;
  comm::run_local(3, {}, [&](comm::World& world) {
    const auto all = world.make_group("all", {{0, 1, 2}});
    const auto rank = static_cast<std::size_t>(world.rank());
    try {
      compare(*all, rank);
    } catch (const InputError& error) {
      found[rank] = error.what();
    }
  });
  return found;
}

}  // namespace tessera::launch::testing
