// Tests reads of rows of a table by index, and the way of their gradient.
#include <gtest/gtest.h>

#include <array>

#include "tessera/shard/rows/rows.h"
#include "tessera/shard/ways/reduction.h"
#include "tests/shard/way_ranks.h"

namespace tessera::shard {
namespace {

using mesh::Transfer;
using quant::DType;

constexpr std::int64_t kRows = 11, kColumns = 3, kMaxRead = 6;
using Ids = std::array<std::int64_t, kMaxRead>;

// Returns the ids of a storing rank, different on each rank. Some ids are equal, and some are outside the compute
// rank's part.
Ids ids_of(int part) {
  return {part, 3 + part, 20, 3 + part, -1, kRows - 1};
}

ParameterSpec table(int compute) {
  ParameterSpec spec{.name = "table",
                     .dims = {kRows, kColumns},
                     .compute = layout::cut_rows({kRows, kColumns}, {{"all", kRows}}, compute)};
  spec.reads = {.per_microbatch = kMaxRead, .lookup = Lookup::rows};
  return spec;
}

// Returns the ids of a compute rank's part.
layout::Range ids_held(const WayRank& rank) {
  return layout::even_part(kRows, rank.parameter.place.compute, rank.parameter.spec.compute.size());
}

float element(std::int64_t row, std::int64_t column) {
  return static_cast<float>(row * kColumns + column + 1);
}

void read_rows(WayRank& rank) {
  ShardedParameter& parameter = rank.parameter;
  ASSERT_TRUE(parameter.by_rows);
  const DType type = parameter.types.model;
  runtime::for_each_element(parameter.local_storage, kColumns, [&](std::int64_t at, std::int64_t index) {
    put(parameter.weight().data(), type, at, element(index / kColumns, index % kColumns));
  });
  RowGather rows(parameter, rank.parallel);
  const layout::Range held = ids_held(rank);
  for (const std::int64_t count : {kMaxRead, std::int64_t{2}}) {
    const Ids ids = ids_of(parameter.place.part);
    Guarded out(static_cast<std::size_t>(bytes_of(count * kColumns, type)));
    const RowIds wanted{.data = ids.data(), .count = count, .first = held.begin};
    rows.start(parameter, rank.parallel.of(0, Transfer::rows), wanted, {}, out.data(), {}).wait();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t id = ids[static_cast<std::size_t>(i)];
      const bool is_held = id >= held.begin && id < held.end;
      for (std::int64_t c = 0; c < kColumns; ++c)
        EXPECT_EQ(get(out.data(), type, i * kColumns + c), is_held ? element(id, c) : 0) << "id " << id;
    }
    EXPECT_TRUE(out.is_guard_whole());
  }
  // Every other rank sends rows and indices. The number of bytes does not depend on the ids.
  EXPECT_EQ(rows.received_bytes(), (rank.cuts.parts - 1) * (bytes_of(kMaxRead * kColumns, type) + kMaxRead * 8));
  EXPECT_TRUE(rank.ways.gather.empty());
}

TEST(RowsWay, ReturnsCopiesOfRowsAndZerosForOtherIds) {
  for (const int compute : {1, 2, 3})
    for (const int parts : {2, 3})
      for (const DType type : {DType::fp32, DType::bf16})
        on_way_ranks({.compute = compute, .parts = parts}, table(compute), {.model = type}, read_rows);
}

float token_gradient(int block, int part, std::int64_t token, std::int64_t column) {
  return 1.0F / static_cast<float>(1 + (block * 17 + part * 7 + token * 5 + column * 3) % 23) - 0.2F;
}

// Returns one rank's gradient of a row: added in fp32 in token order, then rounded to the wire type.
float row_given(int block, int part, std::int64_t row, std::int64_t column, DType wire) {
  float sum = 0;
  const Ids ids = ids_of(part);
  for (std::size_t token = 0; token < ids.size(); ++token)
    if (ids[token] == row) sum += token_gradient(block, part, static_cast<std::int64_t>(token), column);
  return wire == DType::bf16 ? static_cast<float>(quant::bfloat16(sum)) : sum;
}

void write_rows(const RowReducer& rows, const RowIds& ids, std::byte* staging, int block, int part) {
  const std::int64_t* slots = rows.find_slots(ids, staging);
  auto* gradient = reinterpret_cast<float*>(staging);
  std::fill(gradient, gradient + kMaxRead * kColumns, 0.0F);
  for (std::int64_t token = 0; token < ids.count; ++token)
    for (std::int64_t column = 0; column < kColumns && slots[token] >= 0; ++column)
      gradient[slots[token] * kColumns + column] += token_gradient(block, part, token, column);
}

void reduce_rows(WayRank& rank) {
  ShardedParameter& parameter = rank.parameter;
  const Reducer reducer(parameter, rank.parallel, rank.cuts, rank.ways.reduce);
  ASSERT_NE(reducer.rows(), nullptr);
  const Ids ids = ids_of(parameter.place.part);
  for (int block = 0; block < 2; ++block) {
    Guarded staging(reducer.staging_bytes()), scratch(reducer.scratch_bytes());
    const RowIds read{.data = ids.data(), .count = kMaxRead, .first = ids_held(rank).begin};
    write_rows(*reducer.rows(), read, staging.data(), block, parameter.place.part);
    Reducing member{&parameter, &reducer, staging.data(), scratch.data()};
    reduce({&member, 1}, rank.parallel, /*is_last=*/block == 1).wait();
    EXPECT_TRUE(staging.is_guard_whole() && scratch.is_guard_whole());
  }
  const DType wire = parameter.types.wire;
  const auto sums = parameter.main_grad.as<float>();
  runtime::for_each_element(parameter.local_storage, kColumns, [&](std::int64_t at, std::int64_t index) {
    float expected = 0;
    for (int block = 0; block < 2; ++block)
      for (int part = 0; part < rank.cuts.parts; ++part)
        expected += row_given(block, part, index / kColumns, index % kColumns, wire);
    EXPECT_EQ(sums[static_cast<std::size_t>(at)], expected) << "element " << index;
  });
  EXPECT_EQ(bytes_over(rank.ways.reduce, Transfer::reduce),
            (rank.cuts.parts - 1) * (bytes_of(kMaxRead * kColumns, wire) + kMaxRead * 8));
}

TEST(RowsWay, AddsGradientsOfRowsInRankOrder) {
  for (const int compute : {1, 2, 3})
    for (const int parts : {1, 2, 3})
      for (const DType wire : {DType::fp32, DType::bf16})
        on_way_ranks({.compute = compute, .parts = parts}, table(compute), {.wire = wire}, reduce_rows);
}

// A frozen table has no gradient, and no group for reductions is made.
TEST(RowsWay, AFrozenTableIsOnlyRead) {
  ParameterSpec spec = table(2);
  spec.trainable = false;
  on_way_ranks({.compute = 2, .parts = 2}, spec, {}, [](WayRank& rank) {
    read_rows(rank);
    EXPECT_FALSE(rank.parallel.has(0, Transfer::reduce));
    EXPECT_TRUE(rank.ways.reduce.empty());
    EXPECT_EQ(Reducer(rank.parameter, rank.parallel, rank.cuts, rank.ways.reduce).rows(), nullptr);
  });
}

}  // namespace
}  // namespace tessera::shard
