#include "tests/comm/ranks.h"

#include <numeric>

namespace tessera::comm {

std::unique_ptr<World>& world_of_tests() {
  static std::unique_ptr<World> world;
  return world;
}

base::Device& device_of_tests() {
  static base::Device device;
  return device;
}

bool has_ranks(int ranks) {
  return world_of_tests() == nullptr || ranks <= world_of_tests()->size();
}

std::unique_ptr<Communicator> make_whole_group(World& world, int ranks) {
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return world.make_group("test", {members});
}

void on_ranks(int ranks, const std::function<void(Communicator&)>& body, const LocalOptions& options) {
  if (World* world = world_of_tests().get()) {
    if (auto group = make_whole_group(*world, ranks)) body(*group);
    return;
  }
  run_local(ranks, options, [&](World& world) { body(*make_whole_group(world, ranks)); });
}

void on_worlds(const std::function<void(World&)>& body) {
  if (World* world = world_of_tests().get()) return body(*world);
  for (int ranks = 1; ranks <= 8; ++ranks) run_local(ranks, {}, body);
}

}  // namespace tessera::comm
