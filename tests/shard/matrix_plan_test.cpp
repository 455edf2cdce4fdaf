#include "tessera/shard/matrices/matrix_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/layout/redistribute.h"

namespace tessera::shard {
namespace {

constexpr int kExperts = 5;

RankLayout layout_of(int tp, int gtp, int dp) {
  return {.mesh = mesh::Mesh(mesh::Grid{{"tp", tp}, {"gtp", gtp}, {"dp", dp}}),
          .domains = {{.compute = {"tp"}, .storage = {"gtp"}, .duplicates = {}, .replicas = {"dp"}}}};
}

RankLayout expert_layout(int ep, int egtp, int edp, int dp) {
  const mesh::Grid dense{{"tp", 1}, {"gtp", ep * egtp * edp}, {"dp", dp}};
  const mesh::Grid experts{{"ep", ep}, {"egtp", egtp}, {"edp", edp}, {"dp", dp}};
  return {.mesh = mesh::Mesh({dense, experts}, mesh::live_places(dense, {})),
          .domains = {{.compute = {"tp"}, .storage = {"gtp"}, .duplicates = {}, .replicas = {"dp"}},
                      {.compute = {"ep"}, .storage = {"egtp"}, .duplicates = {"edp"}, .replicas = {"dp"}}}};
}

// Sizes that no degree divides.
std::vector<ParameterSpec> parameters_of(const RankLayout& layout) {
  const int tp = layout.mesh.size(layout.domains.front().compute);
  std::vector<ParameterSpec> specs{
      {.name = "qkv",
       .dims = {17, 10},
       .compute = layout::cut_rows({17, 10}, {{"q", 9}, {"k", 4}, {"v", 4}}, tp),
       .blocks = {{.name = "q", .rows = 9}, {.name = "k", .rows = 4}, {.name = "v", .rows = 4}}},
      {.name = "output", .dims = {10, 9}, .compute = layout::cut_cols({10, 9}, tp)},
      {.name = "row", .dims = {1, 7}, .compute = layout::cut_rows({1, 7}, {{"", 1}}, tp)}};
  if (layout.domains.size() < 2) return specs;
  const int ep = layout.mesh.size(layout.domains.back().compute);
  std::vector<std::vector<layout::Range>> rows;
  for (int rank = 0; rank < ep; ++rank) {
    const layout::Range experts = layout::even_part(kExperts, rank, ep);
    rows.push_back({{experts.begin * 6, experts.end * 6}});
    if (experts.size() == 0) rows.back().clear();
  }
  specs.push_back({.name = "experts",
                   .dims = {kExperts, 6, 10},
                   .compute = layout::rows_by_rank({kExperts * 6, 10}, rows),
                   .blocks = {{.name = "gate", .rows = 3}, {.name = "up", .rows = 3}},
                   .domain = 1});
  return specs;
}

double area(std::int64_t rows, std::int64_t cols) {
  return static_cast<double>(rows * cols);
}

std::vector<JoinedMatrices> plan_of(const RankLayout& layout, const std::vector<ParameterSpec>& specs, int rank,
                                    bool zero, MatrixPlan& plan) {
  std::vector<MatrixParameter> bucket;
  for (std::size_t id = 0; id < specs.size(); ++id)
    bucket.push_back({static_cast<int>(id), &specs[id], id == 2 ? quant::DType::fp32 : quant::DType::bf16});
  EXPECT_EQ(plan.group()[static_cast<std::size_t>(plan.group_rank())], rank);
  EXPECT_EQ(plan.transfer(),
            zero && layout.mesh.size("dp") > 1 ? mesh::Transfer::replica_matrices : mesh::Transfer::matrices);
  return plan.add(bucket);
}

// Fills each rank's buffer with the logical position of each element, moves the buffers by `plan`, and returns them.
std::vector<std::vector<std::int64_t>> moved(const layout::Layout& from, const layout::Layout& to,
                                             const std::vector<std::vector<std::int64_t>>& buffers) {
  std::vector<std::vector<std::int64_t>> result;
  for (const layout::LocalLayout& local : to.ranks) result.emplace_back(static_cast<std::size_t>(local.size), -1);
  for (const layout::Transfer& one : layout::redistribute(from, to).transfers)
    for (std::int64_t row = 0; row < one.box.rows; ++row)
      for (std::int64_t col = 0; col < one.box.cols; ++col)
        result[static_cast<std::size_t>(one.target)]
              [static_cast<std::size_t>(one.target_offset + row * one.target_stride + col)] =
                  buffers[static_cast<std::size_t>(one.source)]
                         [static_cast<std::size_t>(one.source_offset + row * one.source_stride + col)];
  return result;
}

std::vector<std::vector<std::int64_t>> positions(const layout::Layout& layout) {
  std::vector<std::vector<std::int64_t>> buffers;
  for (const layout::LocalLayout& local : layout.ranks) {
    buffers.emplace_back(static_cast<std::size_t>(local.size), -1);
    for (const layout::Piece& piece : local.pieces)
      for (std::int64_t row = 0; row < piece.box.rows; ++row)
        for (std::int64_t col = 0; col < piece.box.cols; ++col)
          buffers.back()[static_cast<std::size_t>(piece.offset + row * piece.stride + col)] =
              (piece.box.row + row) * layout.shape.cols + piece.box.col + col;
  }
  return buffers;
}

void check(const RankLayout& layout, bool zero) {
  const std::vector<ParameterSpec> specs = parameters_of(layout);
  std::map<std::vector<int>, std::vector<JoinedMatrices>> by_group;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    MatrixPlan plan(layout, rank, zero, area);
    const std::vector<JoinedMatrices> joined = plan_of(layout, specs, rank, zero, plan);
    ASSERT_EQ(joined.size(), 2U);
    // All ranks of a group plan the same exchanges.
    const auto [known, is_new] = by_group.emplace(plan.group(), joined);
    for (std::size_t t = 0; t < joined.size(); ++t) {
      const JoinedMatrices& it = joined[t];
      EXPECT_EQ(it.states, known->second[t].states);
      EXPECT_EQ(it.wholes, known->second[t].wholes);
      layout::validate(it.states);
      layout::validate(it.wholes);
      EXPECT_EQ(moved(it.states, it.wholes, positions(it.states)), positions(it.wholes));
      EXPECT_EQ(moved(it.wholes, it.states, positions(it.wholes)), positions(it.states));
      // The matrices of this rank are dense, in batches of equal shapes.
      const layout::LocalLayout& local = it.wholes.ranks[static_cast<std::size_t>(plan.group_rank())];
      auto piece = local.pieces.begin();
      for (const LocalMatrices& batch : it.own)
        for (std::int64_t i = 0; i < batch.count; ++i, ++piece) {
          EXPECT_EQ(piece->box.rows, batch.rows);
          EXPECT_EQ(piece->box.cols, batch.cols);
          EXPECT_EQ(piece->stride, batch.cols);
          EXPECT_EQ(piece->offset, batch.offset + i * batch.stride);
          EXPECT_EQ(piece->offset % kMatrixAlignment, 0);
        }
      EXPECT_EQ(piece, local.pieces.end());
      // A matrix is on a rank that stores a part of it.
      for (std::size_t r = 0; r < it.wholes.ranks.size(); ++r)
        for (const layout::Piece& whole : it.wholes.ranks[r].pieces)
          EXPECT_TRUE(std::ranges::any_of(it.states.ranks[r].pieces, [&](const layout::Piece& state) {
            return layout::intersect(state.box, whole.box).has_value();
          }));
    }
    // Every matrix is on one rank.
    std::multiset<std::int64_t> rows;
    for (const layout::LocalLayout& local : joined[0].wholes.ranks)
      for (const layout::Piece& whole : local.pieces) rows.insert(whole.box.row);
    std::multiset<std::int64_t> expected{0, 9, 13, 17};
    if (specs.size() == 4)
      for (int i = 0; i < 2 * kExperts; ++i) expected.insert(27 + 3 * i);
    EXPECT_EQ(rows, expected);
  }
}

TEST(MatrixPlan, BringsMatricesToOneRankAndBack) {
  for (const bool zero : {false, true})
    for (const auto& [tp, gtp, dp] :
         {std::tuple(1, 1, 1), {1, 2, 1}, {1, 3, 2}, {2, 1, 1}, {3, 2, 2}, {2, 4, 1}, {1, 1, 4}})
      check(layout_of(tp, gtp, dp), zero);
}

TEST(MatrixPlan, BringsMatricesOfExpertsToOneRankAndBack) {
  for (const bool zero : {false, true})
    for (const auto& [ep, egtp, edp, dp] :
         {std::tuple(1, 1, 1, 1), {2, 1, 1, 1}, {2, 2, 1, 1}, {1, 2, 2, 2}, {6, 1, 1, 1}, {2, 1, 2, 2}, {1, 3, 1, 1}})
      check(expert_layout(ep, egtp, edp, dp), zero);
}

// Without egtp, an expert is on one rank, which computes with it.
TEST(MatrixPlan, MatricesThatOneRankStoresDoNotMove) {
  const RankLayout layout = expert_layout(2, 1, 1, 1);
  const std::vector<ParameterSpec> specs = parameters_of(layout);
  MatrixPlan plan(layout, 0, false, area);
  const MatrixParameter experts{3, &specs[3], quant::DType::bf16};
  const std::vector<JoinedMatrices> joined = plan.add({&experts, 1});
  EXPECT_EQ(joined[0].gathered_bytes, 0);
  EXPECT_EQ(joined[0].scattered_bytes, 0);
}

TEST(MatrixPlan, SumsOfFlopsCarryOver) {
  const RankLayout layout = layout_of(1, 2, 1);
  const ParameterSpec spec{.name = "w", .dims = {8, 8}, .compute = layout::replicated({8, 8}, 1)};
  MatrixPlan plan(layout, 0, false, area);
  std::vector<int> holders;
  for (int bucket = 0; bucket < 4; ++bucket) {
    const MatrixParameter w{0, &spec, quant::DType::fp32};
    const JoinedMatrices joined = plan.add({&w, 1}).front();
    holders.push_back(joined.wholes.ranks[0].pieces.empty() ? 1 : 0);
    EXPECT_EQ(joined.flops[static_cast<std::size_t>(holders.back())], 64);
    EXPECT_EQ(joined.gathered_bytes, 32 * 4);
    EXPECT_EQ(joined.scattered_bytes, 32 * 4);
  }
  EXPECT_EQ(holders, (std::vector<int>{0, 1, 0, 1}));
}

}  // namespace
}  // namespace tessera::shard
