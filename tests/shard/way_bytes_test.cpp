// Compares the computed bytes of a parameter's ways with the bytes that redistributions and additions receive.
#include "tessera/shard/ways/way_bytes.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/redistribution.h"
#include "tessera/quant/formats/format.h"
#include "tessera/shard/make_parameter.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/sizes.h"
#include "tessera/shard/ways/gradient_additions.h"
#include "tessera/shard/ways/reduction_tree.h"

namespace tessera::shard {
namespace {

using layout::Layout, layout::LocalLayout;
using mesh::Transfer;
using quant::DType;
using schedule::Way;

constexpr ParameterTypes kTypes{.model = DType::bf16, .accumulator = DType::fp32, .wire = DType::bf16};

std::vector<ParameterSpec> specs() {
  const std::vector<PlaneSpec> planes{{.name = "data", .type = DType::u8},
                                      {.name = "scales", .tile = {.rows = 3, .cols = 4}}};
  std::vector<ParameterSpec> all;
  all.push_back({.name = "rows", .dims = {23, 6}, .compute = layout::cut_rows({23, 6}, {{"a", 11}, {"b", 12}}, 2)});
  all.push_back({.name = "columns", .dims = {13, 7}, .compute = layout::cut_cols({13, 7}, 2), .produced_once = true});
  all.push_back(
      {.name = "overlap", .dims = {10, 4}, .compute = layout::rows_by_rank({10, 4}, {{{0, 4}, {8, 10}}, {{4, 10}}})});
  all.push_back({.name = "vector",
                 .dims = {9},
                 .compute = layout::replicated({1, 9}, 2),
                 .sharded = false,
                 .partial_gradient = true});
  all.push_back({.name = "vector of 5 ranks",
                 .dims = {7},
                 .compute = layout::replicated({1, 7}, 5),
                 .sharded = false,
                 .partial_gradient = true});
  all.push_back({.name = "frozen", .dims = {8, 4}, .compute = layout::replicated({8, 4}, 2), .trainable = false});
  all.push_back({.name = "planes", .dims = {26, 10}, .compute = layout::replicated({26, 10}, 2), .planes = planes});
  all.push_back({.name = "small", .dims = {2, 3}, .compute = layout::cut_rows({2, 3}, {{"a", 2}}, 2)});
  return all;
}

std::vector<Cuts> cuts() {
  return {{},
          {.parts = 3},
          {.parts = 4, .node = 2},
          {.parts = 5, .node = 3},
          {.replicas = 3},
          {.parts = 2, .replicas = 2, .zero = true},
          {.parts = 3, .replicas = 4, .zero = true},
          {.parts = 2, .duplicates = 2},
          {.parts = 3, .replicas = 2, .slots = 2, .shapes = {ReplicaShape(3, {0, 1}), ReplicaShape(2, {0, 1})}}};
}

std::int64_t number_received(const Layout& from, const Layout& to, int rank) {
  return layout::redistribute(from, to).elements_received(rank);
}

Layout over(const layout::Shape& shape, std::vector<LocalLayout> ranks, layout::State state) {
  return {.shape = shape, .ranks = std::move(ranks), .state = state};
}

void expect_gather(const ShardedParameter& parameter, const Way& way) {
  std::int64_t storage = 0, compute = 0;
  for (const Plane& plane : parameter.planes) {
    const Layout home =
        layout::repeat(layout::select(plane.layouts.home, {parameter.place.compute}), plane.storage.size());
    if (parameter.spec.sharded) storage += plane.bytes(number_received(plane.storage, home, parameter.place.part));
    if (plane.layouts.home != plane.layouts.compute)
      compute += plane.bytes(number_received(plane.layouts.home, plane.layouts.compute, parameter.place.compute));
  }
  EXPECT_EQ(bytes_over(way, Transfer::gather), storage);
  EXPECT_EQ(bytes_over(way, Transfer::gather_compute), compute);
}

void expect_reduce(const ShardedParameter& parameter, const Cuts& cuts, const Way& way) {
  EXPECT_EQ(way.empty(),
            !parameter.spec.trainable || (cuts.reducing() == 1 && !has_hop(way, Transfer::reduce_compute)));
  if (!parameter.spec.trainable) return;
  std::int64_t compute = 0;
  if (sums_compute(parameter.spec, parameter.layouts)) {
    Layout parts = parameter.spec.compute;
    parts.state = layout::State::partial;
    compute =
        comm::Redistribution(parts, parameter.layouts.home, parameter.place.compute).received_bytes(kTypes.accumulator);
  }
  std::vector<LocalLayout> owned;
  for (int duplicate = 0; duplicate < cuts.duplicates; ++duplicate)
    owned.insert(owned.end(), parameter.storage.ranks.begin(), parameter.storage.ranks.end());
  const GradientAdditions additions(parameter.storage.shape, std::vector(owned.size(), parameter.local_home), owned,
                                    tree_of(parameter.storage, cuts, parameter.place.part, parameter.place.duplicate),
                                    parameter.place.part + parameter.storage.size() * parameter.place.duplicate,
                                    kTypes);
  EXPECT_EQ(bytes_over(way, Transfer::reduce_compute), compute);
  EXPECT_EQ(bytes_over(way, Transfer::reduce), additions.received_bytes());
}

void expect_replicas(const ShardedParameter& parameter, const Cuts& cuts, const Ways& ways) {
  const layout::Shape shape = parameter.storage.shape;
  std::vector<LocalLayout> stored(static_cast<std::size_t>(cuts.replicas), parameter.local_storage), given;
  int rank = parameter.place.replica;
  if (!cuts.shapes.empty()) {
    stored.clear();
    for (int replica = 0; replica < cuts.replicas; ++replica) {
      if (replica == parameter.place.replica) rank = static_cast<int>(stored.size()) + parameter.place.part;
      const Layout theirs = parameter.layouts.stored(parameter.place.compute, cuts.parts_of(replica));
      for (const LocalLayout& local : theirs.ranks) {
        stored.push_back(local);
        given.push_back(parameter.layouts.is_cut || &local == &theirs.ranks.front() ? local : LocalLayout{});
      }
    }
  }
  if (given.empty()) given = stored;
  std::int64_t sum = 0, publish = 0;
  if (parameter.spec.trainable && cuts.replicas > 1)
    sum = comm::Redistribution(
              over(shape, given, layout::State::partial),
              over(shape, parameter.splits_state() ? parameter.states : stored, layout::State::replicated), rank)
              .received_bytes(kTypes.accumulator);
  if (parameter.splits_state())
    for (const Plane& plane : parameter.planes)
      publish += plane.bytes(number_received(
          over(plane.storage.shape, plane.states, layout::State::replicated),
          over(plane.storage.shape, std::vector(static_cast<std::size_t>(cuts.replicas), plane.local_storage),
               layout::State::replicated),
          rank));
  EXPECT_EQ(total_bytes(ways.replicas), sum);
  EXPECT_EQ(total_bytes(ways.publish), publish);
}

TEST(WayBytes, EqualTheReceivedBytes) {
  for (const ParameterSpec& spec : specs())
    for (const Cuts& cut : cuts()) {
      const WayBytes bytes(spec, layouts_of(spec), kTypes, cut, /*by_rows=*/false);
      Ways most, all;
      for (int replica = 0; replica < cut.replicas; ++replica)
        for (int duplicate = 0; duplicate < cut.duplicates; ++duplicate)
          for (int compute = 0; compute < spec.compute.size(); ++compute)
            for (int part = 0; part < cut.parts_of(replica); ++part) {
              Cuts own = cut;
              own.parts = cut.parts_of(replica);
              own.replica = cut.shapes.empty() ? 0 : replica;
              SCOPED_TRACE(spec.name + ", parts " + std::to_string(own.parts) + ", replica " + std::to_string(replica) +
                           ", rank " + std::to_string(compute) + ", part " + std::to_string(part));
              const ShardedParameter parameter = make_parameter(
                  spec, kTypes, own, {.compute = compute, .part = part, .replica = replica, .duplicate = duplicate});
              const Ways ways = WayBytes(spec, parameter.layouts, kTypes, own, /*by_rows=*/false).at(parameter.place);
              expect_gather(parameter, ways.gather);
              expect_reduce(parameter, own, ways.reduce);
              expect_replicas(parameter, own, ways);
              raise(most.replicas, ways.replicas);
              if (own.parts != cut.parts) continue;  // a rank of another class
              raise(most.gather, ways.gather), raise(most.reduce, ways.reduce), raise(most.publish, ways.publish);
              add_hops(all.gather, ways.gather), add_hops(all.reduce, ways.reduce);
              add_hops(all.replicas, ways.replicas), add_hops(all.publish, ways.publish);
            }
      const Ways found = bytes.most();
      EXPECT_EQ(found.gather, most.gather) << spec.name;
      EXPECT_EQ(found.reduce, most.reduce) << spec.name;
      EXPECT_EQ(found.replicas, most.replicas) << spec.name;
      EXPECT_EQ(found.publish, most.publish) << spec.name;
      if (!cut.shapes.empty()) continue;
      const Ways sums = bytes.all_ranks();
      EXPECT_EQ(total_bytes(sums.gather), total_bytes(all.gather)) << spec.name;
      EXPECT_EQ(total_bytes(sums.reduce), total_bytes(all.reduce)) << spec.name;
      EXPECT_EQ(total_bytes(sums.replicas), total_bytes(all.replicas)) << spec.name;
      EXPECT_EQ(total_bytes(sums.publish), total_bytes(all.publish)) << spec.name;
    }
}

TEST(WayBytes, AnEncodedWeightMovesItsDataAndScales) {
  ParameterSpec spec{.name = "w", .dims = {256, 64}, .compute = layout::replicated({256, 64}, 1)};
  spec.encoding = quant::weight_encoding(quant::Format::mxfp8);
  const Ways ways = WayBytes(spec, layouts_of(spec), kTypes, {.parts = 2}, false).at({});
  EXPECT_EQ(total_bytes(ways.gather), 128 * 64 + 128 * 2);
  EXPECT_EQ(total_bytes(ways.reduce), 128 * 64 * 2);
}

TEST(Way, HopsKeepTheirOrder) {
  Way sum;
  add_hops(sum, {{Transfer::reduce, 3}});
  add_hops(sum, {{Transfer::reduce_compute, 1}, {Transfer::reduce, 4}});
  EXPECT_EQ(sum, (Way{{Transfer::reduce_compute, 1}, {Transfer::reduce, 7}}));
  EXPECT_EQ(total_bytes(sum), 8);
  EXPECT_EQ(bytes_over(sum, Transfer::gather), 0);
  raise(sum, {{Transfer::reduce_compute, 2}, {Transfer::reduce, 6}});
  EXPECT_EQ(sum, (Way{{Transfer::reduce_compute, 2}, {Transfer::reduce, 7}}));
  EXPECT_THROW(raise(sum, {{Transfer::reduce, 6}}), Error);
}

}  // namespace
}  // namespace tessera::shard
