// Tests how ranks share the parts of dead places: units, layouts of a replica, and groups. Refuses wrong layouts.
#include "tessera/shard/unequal/spread_units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/layout/dense.h"
#include "tessera/shard/formats/format_policy.h"
#include "tessera/shard/make_parameter.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/sizes.h"
#include "tessera/shard/unequal/replica_layouts.h"
#include "tessera/shard/ways/gradient_additions.h"
#include "tessera/shard/ways/way_bytes.h"

namespace tessera::shard {
namespace {

using layout::Layout, layout::Range;
using mesh::Transfer;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::int64_t count_of(const std::vector<Range>& ranges) {
  std::int64_t count = 0;
  for (const Range& range : ranges) count += range.size();
  return count;
}

Slots random_slots(int places, std::mt19937& random) {
  Slots slots;
  for (int place = 0; place < places; ++place)
    if (random() % 3 != 0) slots.push_back(place);
  if (slots.empty()) slots.push_back(static_cast<int>(random() % static_cast<unsigned>(places)));
  return slots;
}

TEST(SpreadUnits, PlacesEachUnitOnceAndSpreadsThemEvenly) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const int places = 1 + static_cast<int>(random() % 12);
    const std::int64_t units = random() % 70;
    const Slots slots = random_slots(places, random);
    const auto ranges = spread_units(units, places, slots);
    ASSERT_EQ(ranges.size(), slots.size());
    EXPECT_NO_THROW(layout::validate(layout::rows_by_rank({units, 1}, ranges), layout::Cover::exact));
    std::int64_t least = units, most = 0;
    for (std::size_t rank = 0; rank < slots.size(); ++rank) {
      least = std::min(least, count_of(ranges[rank])), most = std::max(most, count_of(ranges[rank]));
      const Range own = layout::even_part(units, slots[rank], places);
      EXPECT_EQ(ranges[rank].front().begin, own.begin);  // its own part comes first
      EXPECT_GE(ranges[rank].front().end, own.end);
    }
    EXPECT_LE(most - least, 1);
    const double average = static_cast<double>(units) / static_cast<double>(slots.size());
    EXPECT_DOUBLE_EQ(imbalance(ranges), units == 0 ? 1 : static_cast<double>(most) / average);
  }
}

TEST(SpreadUnits, KeepsTheEvenPartsOfAFullGroup) {
  for (const std::int64_t units : {0, 3, 25, 67}) {
    const auto ranges = spread_units(units, 4, {0, 1, 2, 3});
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(ranges[static_cast<std::size_t>(rank)], (std::vector<Range>{layout::even_part(units, rank, 4)}));
  }
}

TEST(SpreadUnits, GivesSlicesInTheOrderOfPlaces) {
  using Ranges = std::vector<std::vector<Range>>;
  EXPECT_EQ(spread_units(16, 4, {0, 2, 3}), (Ranges{{{0, 6}}, {{8, 12}, {6, 7}}, {{12, 16}, {7, 8}}}));
  EXPECT_EQ(spread_units(16, 4, {1, 3}), (Ranges{{{4, 8}, {0, 4}}, {{12, 16}, {8, 12}}}));
  EXPECT_EQ(spread_units(5, 2, {1}), (Ranges{{{2, 5}, {0, 2}}}));
}

TEST(SpreadUnits, RefusesSlotsThatAreNotAscendingPlaces) {
  for (const Slots& slots : {Slots{}, Slots{1, 0}, Slots{0, 0}, Slots{2}, Slots{-1}})
    EXPECT_THROW(spread_units(4, 2, slots), Error);
}

// The first three parameters are matrices: sharded by rows, sharded by columns, and with rows that several ranks need.
enum class Kind { rows, columns, overlapping, vector };

Layout compute_layout(Kind kind, std::int64_t units, int places, const Slots& slots) {
  if (kind == Kind::vector) return layout::replicated({1, units}, static_cast<int>(slots.size()));
  auto ranges = spread_units(units, places, slots);
  if (kind == Kind::columns) return layout::cols_by_rank({9, units}, ranges);
  if (kind == Kind::overlapping)
    for (std::vector<Range>& of_rank : ranges) of_rank.push_back({units, units + 3});
  return layout::rows_by_rank({units + (kind == Kind::overlapping ? 3 : 0), 5}, ranges);
}

ParameterSpec spec_of(Kind kind, std::int64_t units, const Cuts& cuts, const Slots& own) {
  ParameterSpec spec{.name = "w", .dims = {}, .compute = compute_layout(kind, units, cuts.slots, own)};
  spec.dims = {spec.compute.shape.rows, spec.compute.shape.cols};
  spec.sharded = kind != Kind::vector;
  spec.partial_gradient = kind == Kind::vector;
  Slots full(static_cast<std::size_t>(cuts.slots));
  for (int place = 0; place < cuts.slots; ++place) full[static_cast<std::size_t>(place)] = place;
  spec.compute_by_slots[full] = compute_layout(kind, units, cuts.slots, full);
  for (const ReplicaShape& shape : cuts.shapes)
    for (const Slots& slots : shape) spec.compute_by_slots[slots] = compute_layout(kind, units, cuts.slots, slots);
  return spec;
}

// Each replica stores every element once, on a rank that uses the element. Each rank stores one dense matrix. The
// elements are distributed as evenly as whole rows allow.
TEST(ReplicaLayouts, StoreEachElementOnceOnARankThatUsesIt) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    Cuts cuts{.slots = 1 + static_cast<int>(random() % 5)};
    cuts.replicas = 1 + static_cast<int>(random() % 3);
    for (int replica = 0; replica < cuts.replicas; ++replica) {
      ReplicaShape& shape = cuts.shapes.emplace_back();
      for (unsigned part = 0; part <= random() % 3; ++part) shape.push_back(random_slots(cuts.slots, random));
    }
    cuts.zero = random() % 2 == 0;
    const std::int64_t units = random() % 40;
    for (const Kind kind : {Kind::rows, Kind::columns, Kind::overlapping})
      for (cuts.replica = 0; cuts.replica < cuts.replicas; ++cuts.replica) {
        cuts.parts = cuts.parts_of(cuts.replica);
        const ReplicaShape shape = cuts.own_shape();
        Layout stored, updated;
        for (int part = 0; part < cuts.parts; ++part)
          for (int rank = 0; rank < static_cast<int>(shape[static_cast<std::size_t>(part)].size()); ++rank) {
            const ParameterSpec spec = spec_of(kind, units, cuts, shape[static_cast<std::size_t>(part)]);
            const RankParts parts =
                rank_parts(layouts_of(spec, cuts), cuts, {.compute = rank, .part = part, .replica = cuts.replica});
            stored.shape = updated.shape = spec.compute.shape;
            stored.ranks.push_back(parts.local_storage);
            updated.ranks.push_back(parts.local_state);
            EXPECT_TRUE(layout::is_dense(parts.local_storage));
            EXPECT_TRUE(layout::is_dense(parts.local_home));
            EXPECT_LE(parts.state_offset + parts.local_state.size, parts.local_storage.size);
            if (!cuts.any_reduced()) continue;
            EXPECT_EQ(parts.storage_by_replica[static_cast<std::size_t>(cuts.replica)]
                          .ranks[static_cast<std::size_t>(cuts.number_in_replica(part, rank))],
                      parts.local_storage);
          }
        EXPECT_NO_THROW(layout::validate(stored, layout::Cover::exact));
        if (!cuts.zero || cuts.replicas == 1) EXPECT_EQ(updated, stored);
      }
  }
}

// Under ZeRO-1 the replicas of the largest class update everything, and the others nothing.
TEST(ReplicaLayouts, SplitTheStateOverTheLargestClassOfReplicas) {
  const ReplicaShape full{{0, 1, 2}}, reduced{{0, 2}};
  Cuts cuts{.replicas = 4, .zero = true, .slots = 3, .shapes = {reduced, full, full, reduced}};
  EXPECT_EQ(cuts.updating_replicas(), (std::vector<int>{0, 3}));
  cuts.shapes[3] = {{0, 1}};
  EXPECT_EQ(cuts.updating_replicas(), (std::vector<int>{1, 2}));
  for (const Kind kind : {Kind::rows, Kind::columns, Kind::overlapping}) {
    Layout states;
    for (cuts.replica = 0; cuts.replica < 4; ++cuts.replica)
      for (int rank = 0; rank < static_cast<int>(cuts.own_shape().front().size()); ++rank) {
        const ParameterSpec spec = spec_of(kind, 17, cuts, cuts.own_shape().front());
        const RankParts parts = rank_parts(layouts_of(spec, cuts), cuts, {.compute = rank, .replica = cuts.replica});
        if (cuts.replica % 3 == 0) EXPECT_EQ(parts.local_state.size, 0);
        EXPECT_EQ(parts.states.size(), 10U);
        EXPECT_EQ(parts.states[static_cast<std::size_t>(parts.summing_rank)], parts.local_state);
        states.shape = spec.compute.shape;
        states.ranks.push_back(parts.local_state);
      }
    EXPECT_NO_THROW(layout::validate(states, layout::Cover::exact));
  }
}

// The mutated layouts have a slice that is adopted twice or not at all, or that is stored twice, not at all, or by
// another rank.
TEST(ReplicaLayouts, RefuseWrongAdoption) {
  const Cuts cuts{.parts = 2, .slots = 3, .shapes = {{{0, 2}, {0, 1, 2}}}};
  const ParameterSpec spec = spec_of(Kind::rows, 30, cuts, {0, 2});
  const auto refuses = [&](const char* refusal, Layout changed) {
    ParameterSpec wrong = spec;
    wrong.compute_by_slots[{0, 2}] = std::move(changed);
    EXPECT_THAT([&] { layouts_of(wrong, cuts); }, ThrowsMessage<Error>(HasSubstr(refusal)));
  };
  refuses("layout: rows [19, 20)", layout::rows_by_rank({30, 5}, {{{0, 10}, {10, 15}}, {{20, 30}, {15, 19}}}));
  refuses("the layout for tp ranks at places 0, 2 has 3 ranks, expected 2",
          layout::rows_by_rank({30, 5}, {{{0, 10}, {10, 15}}, {{20, 30}, {15, 20}}, {}}));
  EXPECT_THAT(
      [] {
        layout::rows_by_rank({30, 5}, {{{0, 10}, {10, 15}, {14, 15}}, {{20, 30}, {15, 20}}});
      },
      ThrowsMessage<Error>(HasSubstr("rank 0 pieces 0 and 1 both hold rows [14, 15)")));

  const ParameterLayouts layouts = layouts_of(spec, cuts);
  const Layout homes = replica_homes(layouts.groups), storage = layouts.replicas.front();
  EXPECT_NO_THROW(check_replica(storage, homes, "w"));
  const auto storage_refuses = [&](const char* refusal, const std::function<void(Layout&)>& change) {
    Layout wrong = storage;
    change(wrong);
    EXPECT_THAT([&] { check_replica(wrong, homes, "w"); }, ThrowsMessage<Error>(HasSubstr(refusal)));
  };
  storage_refuses("each element must be stored once in a replica", [](Layout& wrong) { wrong.ranks[1] = {}; });
  storage_refuses("each element must be stored once in a replica",
                  [](Layout& wrong) { wrong.ranks[1] = wrong.ranks[0]; });
  storage_refuses("which are not in its part", [](Layout& wrong) { std::swap(wrong.ranks[0], wrong.ranks[1]); });
  storage_refuses("4 ranks store parts, expected 5", [](Layout& wrong) { wrong.ranks.pop_back(); });
  // Gradients are added in the order of the home parts. In another order they are not those of the storing ranks.
  for (std::size_t rank = 0; rank + 1 < homes.ranks.size(); ++rank) {
    Layout wrong = homes;
    std::swap(wrong.ranks[rank], wrong.ranks[rank + 1]);
    EXPECT_THAT([&] { check_replica(storage, wrong, "w"); }, ThrowsMessage<Error>(HasSubstr("not in its part")));
  }
}

TEST(ReplicaLayouts, RefuseTilesAndNodes) {
  Cuts cuts{.slots = 2, .shapes = {ReplicaShape(1, Slots{0})}};
  const ParameterSpec spec = spec_of(Kind::rows, 8, cuts, {0});
  const ParameterTypes types{.model = quant::DType::bf16};
  for (const quant::Format format : {quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4}) {
    const auto refusal =
        ThrowsMessage<InputError>(HasSubstr("the format " + std::string(name_of(format)) + " has tiles"));
    const FormatPolicy policy{.format = format, .rules = {}};
    for (const auto set : {set_encoding, set_product, set_backward}) {
      ParameterSpec changed = spec;
      EXPECT_THAT([&] { set(changed, policy, types); }, refusal);
    }
  }
  ParameterSpec changed = spec;
  set_encoding(changed, {.format = quant::Format::fp8, .rules = {}}, types);
  set_product(changed, {.format = quant::Format::fp8, .rules = {}}, types);
  EXPECT_NO_THROW(layouts_of(changed, cuts));
  cuts.node = 2;
  EXPECT_THAT([&] { layouts_of(spec, cuts); },
              ThrowsMessage<InputError>(HasSubstr("--reduce-order hierarchical cannot be used with dead places")));
}

std::int64_t elements_received(const Layout& from, const Layout& to, int rank) {
  return layout::redistribute(from, to).elements_received(rank);
}

// Compares the bytes of the ways with those of the transfers.
TEST(ReplicaLayouts, MoveTheBytesOfTheirWays) {
  constexpr ParameterTypes types{
      .model = quant::DType::bf16, .accumulator = quant::DType::fp32, .wire = quant::DType::bf16};
  Cuts cuts{.replicas = 3, .slots = 3, .shapes = {{{0, 2}, {0, 1, 2}}, {{0, 1, 2}}, {{1}, {0, 1}}}};
  for (const bool zero : {false, true})
    for (const Kind kind : {Kind::rows, Kind::columns, Kind::overlapping, Kind::vector})
      for (cuts.replica = 0; cuts.replica < cuts.replicas; ++cuts.replica) {
        cuts.zero = zero;
        cuts.parts = cuts.parts_of(cuts.replica);
        Ways most;
        schedule::ParameterSize size;
        std::int64_t scratch = 0;
        for (int part = 0; part < cuts.parts; ++part)
          for (int rank = 0; rank < static_cast<int>(cuts.own_shape()[static_cast<std::size_t>(part)].size()); ++rank) {
            const ParameterSpec spec = spec_of(kind, 17, cuts, cuts.own_shape()[static_cast<std::size_t>(part)]);
            const Place place{.compute = rank, .part = part, .replica = cuts.replica};
            const ShardedParameter parameter = make_parameter(spec, types, cuts, place);
            const WayBytes bytes(spec, parameter.layouts, types, cuts, /*by_rows=*/false);
            const Ways ways = bytes.at(place);
            const Layout homes = homes_of(parameter, place);
            EXPECT_EQ(bytes_over(ways.gather, Transfer::gather),
                      spec.sharded ? 2 * elements_received(parameter.storage, homes, parameter.storing_rank) : 0);
            EXPECT_EQ(bytes_over(ways.gather, Transfer::gather_compute),
                      2 * elements_received(parameter.layouts.home, parameter.layouts.compute, rank));
            const GradientAdditions additions = additions_of(parameter, cuts, place, types);
            EXPECT_EQ(bytes_over(ways.reduce, Transfer::reduce), additions.received_bytes());
            size = parameter_size(spec, parameter.layouts, types, cuts);
            // The sum over compute ranks is rounded to the wire type before the exchange.
            const bool sums = sums_compute(spec, parameter.layouts);
            const std::int64_t rounded = sums ? base::align_up(types.wire_bytes(parameter.local_home.size)) : 0;
            scratch = std::max(scratch, rounded + static_cast<std::int64_t>(additions.scratch_bytes()));
            EXPECT_GE(size.replicas.front().bytes, ways.replicas.front().bytes);
            if (spec.sharded)
              EXPECT_EQ(ways.replicas.front().bytes, 4 * (cuts.replicas - 1) * parameter.local_state.size);
            if (parameter.splits_state())
              EXPECT_EQ(ways.publish.front().bytes, 2 * (parameter.local_storage.size - parameter.local_state.size));
            raise(most.gather, ways.gather), raise(most.reduce, ways.reduce);
          }
        EXPECT_EQ(size.gather, most.gather);  // the same on all ranks of the replica
        EXPECT_EQ(size.reduce, most.reduce);
        EXPECT_EQ(size.scratch, scratch);
      }
}

TEST(AdoptionGroups, ListTheRanksOfReplicasAndOfLosses) {
  using Groups = std::vector<std::vector<int>>;
  // Two replicas of 2 x 2 places; place 3 of the first has no rank.
  const mesh::Grid grid{{"a", 2}, {"b", 2}, {"c", 2}};
  const mesh::Mesh mesh({grid}, mesh::live_places(grid, {3}));
  const Domain domain{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}};
  EXPECT_EQ(groups_of(mesh, domain, Transfer::gather), (Groups{{0, 1, 2}, {3, 5}, {4, 6}}));
  EXPECT_EQ(groups_of(mesh, domain, Transfer::reduce), (Groups{{0, 1, 2}, {3, 5}, {4, 6}}));
  EXPECT_EQ(groups_of(mesh, domain, Transfer::reduce_compute), (Groups{{0, 1}, {2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(groups_of(mesh, domain, Transfer::replicas), (Groups{{0, 1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(groups_of(mesh, domain, Transfer::losses), (Groups{{0, 2, 3, 5, 1, 4, 6}}));
  EXPECT_EQ(classes_of(mesh, {domain}), (std::vector<int>{0, 0, 0, 1, 1, 1, 1}));
  const Place last = place_of(mesh, domain, 2);
  EXPECT_EQ(std::tuple(last.compute, last.part, last.replica), std::tuple(0, 1, 0));
  const ComputeGroup group = compute_group_of(mesh, domain, domain, 2);
  EXPECT_EQ(group.slots, (Slots{0}));
  EXPECT_EQ(group.shapes, (std::vector<Slots>{{0, 1}, {0}}));
}

// A replica without a rank does not count.
TEST(AdoptionGroups, LeaveOutAReplicaWithoutRanks) {
  const mesh::Grid grid{{"a", 2}, {"b", 1}, {"c", 3}};
  const mesh::Mesh mesh({grid}, mesh::live_places(grid, {2, 3}));
  const Domain domain{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}};
  const Cuts cuts = cuts_of(mesh, domain, 3);
  EXPECT_EQ(std::tuple(cuts.replicas, cuts.replica, cuts.parts), std::tuple(2, 1, 1));
  EXPECT_EQ(place_of(mesh, domain, 3).replica, 1);
  EXPECT_EQ(classes_of(mesh, {domain}), (std::vector<int>(4, 0)));
}

}  // namespace
}  // namespace tessera::shard
