// Tests the planes and types of a parameter.
#include "tessera/shard/parameter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/shard/make_parameter.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/sizes.h"

namespace tessera::shard {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using quant::DType;

const PlaneSpec kData{.name = "data", .type = DType::u8};
const PlaneSpec kScales{.name = "scales", .tile = {.rows = 4, .cols = 8}};

ParameterSpec spec_of(layout::Layout compute, std::vector<PlaneSpec> planes) {
  return {.name = "weight",
          .dims = {compute.shape.rows, compute.shape.cols},
          .compute = std::move(compute),
          .planes = std::move(planes)};
}

TEST(Planes, TheDefaultIsOnePlaneOfTheModelsType) {
  const ParameterSpec spec = spec_of(layout::replicated({6, 5}, 1), {});
  const ShardedParameter parameter = make_parameter(spec, {.model = DType::bf16}, {.parts = 2}, {.part = 1});
  ASSERT_EQ(parameter.planes.size(), 1u);
  EXPECT_EQ(parameter.planes[0].spec.type, DType::bf16);
  EXPECT_EQ(parameter.planes[0].local_storage, parameter.local_storage);
  EXPECT_EQ(parameter.weight().size(), 3u * 5 * 2);
}

// A router is fp32 in a bf16 run, and fp64 in an fp64 run.
TEST(ParameterTypes, AWideParameterHasTheAccumulatorsTypeEverywhere) {
  ParameterSpec spec = spec_of(layout::replicated({6, 5}, 1), {});
  const ParameterTypes half{.model = DType::bf16, .accumulator = DType::fp32, .wire = DType::bf16};
  const ParameterTypes wide{.model = DType::fp64, .accumulator = DType::fp64, .wire = DType::fp64};
  EXPECT_EQ(types_of(spec, half), half);
  spec.is_wide = true;
  for (const ParameterTypes& run : {half, wide}) {
    const DType type = run.accumulator;
    EXPECT_EQ(types_of(spec, run), (ParameterTypes{.model = type, .accumulator = type, .wire = type}));
    const ShardedParameter parameter = make_parameter(spec, types_of(spec, run), {.parts = 2}, {.part = 1});
    EXPECT_EQ(parameter.planes[0].spec.type, run.accumulator);
    EXPECT_FALSE(parameter.has_master());
  }
}

// 10 rows over 2 ranks: a cut after row 5 would divide a tile of 4 rows, so the first rank stores 8 rows.
TEST(Planes, StorageIsCutBetweenTiles) {
  const ParameterSpec spec = spec_of(layout::replicated({10, 12}, 1), {kData, kScales});
  for (const int rank : {0, 1}) {
    const ShardedParameter parameter = make_parameter(spec, {}, {.parts = 2}, {.part = rank});
    EXPECT_EQ(parameter.planes[0].local_storage.size, (rank == 0 ? 8 : 2) * 12);
    EXPECT_EQ(parameter.planes[1].local_storage.size, (rank == 0 ? 2 : 1) * 2);
    EXPECT_EQ(parameter.planes[1].data.size(), (rank == 0 ? 2u : 1u) * 2 * 4);
    EXPECT_EQ(parameter.master.size(), (rank == 0 ? 8u : 2u) * 12 * 4);
  }
}

TEST(Planes, CountAllBytesOfAGatherAndAPublishEvent) {
  const ParameterSpec spec = spec_of(layout::replicated({16, 16}, 1), {kData, kScales});
  const Cuts cuts{.parts = 2, .replicas = 2, .zero = true};
  const schedule::ParameterSize size = parameter_size(spec, layouts_of(spec), {}, cuts);
  EXPECT_EQ(total_bytes(size.gather), 8 * 16 + 2 * 2 * 4);  // the other rank's half of both planes
  EXPECT_EQ(total_bytes(size.publish), 4 * 16 + 1 * 2 * 4);
  EXPECT_EQ(size.gathered, 16 * 16 + 256);  // each plane is aligned
}

TEST(Planes, ByTileRefusePartsThatOverlapInsideATile) {
  const layout::Layout overlap = layout::rows_by_rank({6, 8}, {{{0, 4}}, {{2, 6}}});
  EXPECT_THAT(
      [&] {
        make_parameter(spec_of(overlap, {kData, kScales}), {}, {}, {});
      },
      ThrowsMessage<Error>(HasSubstr("parts overlap and begin or end inside a tile")));
  EXPECT_NO_THROW(make_parameter(spec_of(overlap, {kData}), {}, {}, {}));
}

TEST(Planes, AreNotReadByRowsIfThereAreSeveral) {
  ParameterSpec spec = spec_of(layout::replicated({64, 8}, 1), {kData, kScales});
  spec.reads = {.per_microbatch = 1, .lookup = Lookup::rows};
  EXPECT_THAT([&] { make_parameter(spec, {}, {.parts = 2}, {}); },
              ThrowsMessage<Error>(HasSubstr("rows travel by index only if each row is on one compute rank")));
  spec.reads.lookup = Lookup::automatic;
  EXPECT_FALSE(make_parameter(spec, {}, {.parts = 2}, {}).by_rows);
}

TEST(Planes, RefuseMoreThanTheMaximum) {
  const ParameterSpec spec = spec_of(layout::replicated({4, 8}, 1), std::vector<PlaneSpec>(kMaxPlanes + 1, kData));
  EXPECT_THAT([&] { make_parameter(spec, {}, {}, {}); },
              ThrowsMessage<Error>(HasSubstr("5 planes, expected 4 at most")));
}

TEST(Planes, RefuseAFirstPlaneByTile) {
  EXPECT_THAT(
      [&] {
        make_parameter(spec_of(layout::replicated({4, 8}, 1), {kScales, kData}), {}, {}, {});
      },
      ThrowsMessage<Error>(HasSubstr("the first plane has tiles of")));
}

TEST(Planes, RefuseTilesBelowOneElement) {
  const PlaneSpec none{.name = "none", .tile = {.rows = 0, .cols = 4}};
  EXPECT_THAT(
      [&] {
        make_parameter(spec_of(layout::replicated({4, 8}, 1), {kData, none}), {}, {}, {});
      },
      ThrowsMessage<Error>(HasSubstr("expected 1 x 1 or more")));
}

// A single plane of 8-bit data is not the master, even if the model's type equals the accumulator's type.
TEST(Planes, OfAnotherTypeThanTheAccumulatorHaveAMaster) {
  const ShardedParameter parameter = make_parameter(spec_of(layout::replicated({4, 8}, 1), {kData}), {}, {}, {});
  EXPECT_TRUE(parameter.has_master());
  EXPECT_EQ(parameter.master.size(), 4u * 8 * 4);
}

TEST(Types, OfAParameterOverrideThoseOfTheRun) {
  ParameterSpec spec = spec_of(layout::replicated({4, 8}, 1), {});
  const ParameterTypes run{.model = DType::bf16, .wire = DType::bf16};
  EXPECT_EQ(types_of(spec, run).model, DType::bf16);
  spec.types = ParameterTypes{};
  EXPECT_EQ(types_of(spec, run).model, DType::fp32);
  EXPECT_EQ(types_of(spec, run).wire, DType::fp32);
}

TEST(UpdatedParts, HaveTheSizesThatAreCountedWithoutLayouts) {
  for (const std::int64_t rows : {1, 5, 16, 37})
    for (const std::int64_t together : {1, 4})
      for (const int replicas : {1, 2, 3, 8, 40}) {
        const ParameterLayouts layouts{.home = layout::replicated({rows, 3}, 1), .together = together};
        const layout::LocalLayout& local = layouts.home.ranks.front();
        const std::vector<layout::LocalLayout> parts = layouts.updated(local, replicas);
        for (int replica = 0; replica < replicas; ++replica) {
          const auto at = static_cast<std::size_t>(replica);
          EXPECT_EQ(layouts.updated_elements(local, replicas, replica), parts[at].size);
          if (replica > 0) {
            EXPECT_LE(parts[at].size, parts[at - 1].size);
          }
        }
      }
}

// Every element is counted on one rank of the world, in whole rows of this rank's state.
TEST(CountedParts, OfAllRanksCoverAWeightOnce) {
  const layout::Layout overlapping = layout::rows_by_rank({10, 4}, {{{0, 4}, {8, 10}}, {{4, 10}}});
  for (const layout::Layout& compute : {layout::cut_cols({10, 4}, 2), overlapping, layout::replicated({10, 4}, 2)})
    for (const bool sharded : {true, false})
      for (const Cuts& cuts :
           {Cuts{}, Cuts{.parts = 3}, Cuts{.replicas = 2}, Cuts{.parts = 7, .replicas = 2, .zero = true}}) {
        if (!sharded && compute == overlapping) continue;  // stored whole, or sharded without overlaps
        ParameterSpec spec = spec_of(compute, {});
        spec.sharded = sharded;
        layout::Layout counted{.shape = compute.shape};
        for (int rank = 0; rank < 2 * cuts.parts * cuts.replicas; ++rank) {
          const Place place{.compute = rank % 2, .part = rank / 2 % cuts.parts, .replica = rank / 2 / cuts.parts};
          const ShardedParameter parameter = make_parameter(spec, {}, cuts, place);
          counted.ranks.push_back(counted_part(parameter));
          EXPECT_TRUE(counted.ranks.back().pieces.empty() || counted.ranks.back() == parameter.local_state);
        }
        EXPECT_NO_THROW(layout::validate(counted, layout::Cover::exact)) << layout::to_string(counted);
      }
}

}  // namespace
}  // namespace tessera::shard
