// Tests operations of a communicator in a graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/redistribution.h"
#include "tests/comm/nccl/recorded.h"
#include "tests/comm/nccl/run.h"
#include "tests/comm/placed.h"
#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

using layout::Layout;
using quant::DType;
using std::chrono::milliseconds;

class NcclGraphs : public NcclTest {};

// Every launch gives the same result as the work without a graph, on the source's values at the launch.
void expect_same_bits(Communicator& group, base::Device device, const Layout& from, const Layout& to, bool warm) {
  const Redistribution redistribution(from, to, group.rank());
  const auto own = static_cast<std::size_t>(group.rank());
  const std::int64_t given = from.ranks[own].size, taken = to.ranks[own].size;
  Placed<float> source(given, device), target(taken, device);
  const auto run = [&] { redistribution.run(group, source.data(), target.data(), DType::fp32); };
  const auto give = [&](int round) {
    const auto values = values_of<float>(group.rank(), round * given, given);
    base::copy_bytes(source.data(), values.data(), values.size() * sizeof(float));
  };
  if (warm) run();
  Recorded graph(group.lane(), run);
  constexpr int rounds = 4;
  std::vector<std::vector<float>> expected;
  for (int round = 0; round < rounds; ++round) {
    give(round);
    run();
    group.lane().synchronize();
    expected.push_back(target.values());
  }
  EXPECT_FALSE(same_bits(expected[0], expected[1]));
  for (int round = 0; round < rounds; ++round) {
    give(round);
    const auto& now = expected[static_cast<std::size_t>(round)];
    const auto& other = expected[static_cast<std::size_t>((round + 1) % rounds)];
    for (const bool by_graph : {true, false}) {
      base::copy_bytes(target.data(), other.data(), other.size() * sizeof(float));
      if (by_graph)
        graph.launch();
      else
        run();
      group.lane().synchronize();
      EXPECT_TRUE(same_bits(target.values(), now)) << "round " << round << (by_graph ? ", launched" : ", enqueued");
    }
  }
}

TEST_F(NcclGraphs, RedistributionsThatPackAndAdd) {
  const auto group = make_whole_group(*world_of_tests(), ranks());
  // The larger shapes allocate their scratch while they are recorded.
  for (const auto& [shape, warm] : {std::pair(layout::Shape{65, 64}, true), std::pair(layout::Shape{301, 67}, false)}) {
    const Layout cols = layout::cut_cols(shape, ranks());
    const Layout rows = layout::cut_rows(shape, {{.name = "all", .rows = shape.rows}}, ranks());
    Layout parts = layout::replicated(shape, ranks());
    parts.state = layout::State::partial;
    expect_same_bits(*group, device(), cols, rows, warm);
    expect_same_bits(*group, device(), parts, cols, warm);
  }
}

TEST_F(NcclGraphs, HostMemoryIsAnError) {
  std::vector<float> on_host(static_cast<std::size_t>(ranks()));
  Placed<float> on_device(on_host, device());
  const std::vector<std::int64_t> counts(on_host.size(), 1);
  for (const bool sent : {true, false}) {
    const auto world = make_world({.timeout = milliseconds(4000)}, sent ? "sent" : "received");
    const auto group = make_whole_group(*world, ranks());
    const float* send = (sent ? on_host.data() : on_device.data()) + rank();
    float* recv = sent ? on_device.data() : on_host.data();
    const auto gather = [&] { group->all_gather(send, recv, counts, DType::fp32); };
    gather();
    group->barrier().synchronize();  // before the capture, all operations must be done on every rank
    const Recorded graph(group->lane(), gather);
    try {
      group->lane().synchronize();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("operands of a graph: expected memory of cuda:"));
    }
  }
}

}  // namespace
}  // namespace tessera::comm
