// Tests meshes other than tp x gtp x dp: whole runs have the same bits as runs on such a mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using ::testing::AnyOf;
using testing::expect_same_bits;
using ::testing::HasSubstr;
using testing::odd_model;
using testing::run;
using testing::RunOptions;
using testing::RunResult;
using ::testing::ThrowsMessage;

shard::Domain dense() {
  return {.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}};
}

// Returns a function that places parameters with `part` in their names in the second domain.
std::function<int(const shard::ParameterSpec&)> second_if_named(std::string part) {
  return [part = std::move(part)](const shard::ParameterSpec& spec) {
    return spec.name.find(part) != std::string::npos ? 1 : 0;
  };
}

// `dead` are the dead places of a grid with this number of places.
shard::RankLayout with_dead(int compute, int parts, int replicas, std::vector<int> dead) {
  const mesh::Grid grid{{"a", compute}, {"b", parts}, {"c", replicas}};
  return {.mesh = mesh::Mesh({grid}, mesh::live_places(grid, std::move(dead))), .domains = {dense()}};
}

// Two replicas of 3 and 2 ranks. The numbers of the ranks do not follow the order of their places.
shard::RankLayout permuted(int replicas) {
  shard::RankLayout ranks = with_dead(1, 3, replicas, {4});
  std::vector<int> places = mesh::live_places(ranks.mesh.grids().front(), {4});
  std::ranges::rotate(places, places.begin() + 2);
  ranks.mesh = mesh::Mesh(ranks.mesh.grids(), places);
  return ranks;
}

class UnequalReplicas : public ::testing::TestWithParam<quant::DType> {};

// The ranks of the larger replica have fewer microbatches and a different schedule.
TEST_P(UnequalReplicas, HaveTheBitsOfReplicasOfOneRank) {
  for (const int replicas : {2, 3}) {
    RunOptions options{.model = odd_model(), .dp = replicas, .dtype = GetParam(), .blocks = 6 * replicas, .steps = 4};
    options.evaluated = {1, 3};  // classes of ranks also have different schedules for these
    const RunResult expected = run(options);
    std::vector<std::pair<std::string, shard::RankLayout>> cases{
        {"3 and 2 ranks", with_dead(1, 3, replicas, {4})},     {"1 and 3 ranks", with_dead(1, 3, replicas, {0, 2})},
        {"2 and 3 ranks", with_dead(1, 3, replicas, {1})},     {"2 and 2 ranks", with_dead(1, 3, replicas, {2, 5})},
        {"2 and 2 others", with_dead(1, 3, replicas, {0, 5})}, {"permuted places", permuted(replicas)}};
    bool with_rows = replicas == 3;  // each case reads rows with one number of replicas, and gathers with the other
    for (auto& [what, ranks] : cases) {
      options.ranks = ranks;
      options.embedding = with_rows ? shard::Lookup::rows : shard::Lookup::gather;
      options.coalesce_bytes = with_rows ? 1 << 20 : 0;
      expect_same_bits(expected, run(options), what + " of " + std::to_string(replicas));
      with_rows = !with_rows;
    }
  }
}

TEST_P(UnequalReplicas, HaveTheSameBitsWithTensorParallelism) {
  RunOptions options{
      .model = odd_model(), .tp = 2, .dp = 2, .dtype = GetParam(), .sequence_parallel = true, .blocks = 12, .steps = 3};
  const RunResult expected = run(options);
  options.ranks = with_dead(2, 3, 2, {8, 9});
  expect_same_bits(expected, run(options), "3 and 2 ranks store a part");
}

// Suppresses the planned step, a step without a schedule, and two steps in a row, next to a skipped step.
TEST_P(UnequalReplicas, RepeatSuppressedSteps) {
  RunOptions options{.model = odd_model(), .dp = 2, .dtype = GetParam(), .blocks = 12, .steps = 5, .spoiled = {1}};
  const RunResult expected = run(options);
  options.ranks = with_dead(1, 3, 2, {4});
  for (const std::map<int, int>& suppressed : {std::map<int, int>{{0, 1}}, {{2, 2}}, {{2, 1}, {3, 1}, {4, 1}}}) {
    options.suppressed = suppressed;
    const RunResult result = run(options);
    EXPECT_EQ(result.skipped, expected.skipped);
    EXPECT_EQ(result.updates, 4);
    for (const auto& [name, values] : expected.tensors) EXPECT_EQ(result.tensors.at(name), values) << name;
  }
}

// Covers one scale per matrix, which all ranks compute together, one scale per tile, and a table that is both read and
// multiplied.
TEST(UnequalReplicasInFormats, HaveTheBitsOfReplicasOfOneRank) {
  using enum quant::Format;
  for (const auto& [wire, products] : {std::pair{fp8, bf16}, {mxfp8, bf16}, {fp8, fp8}}) {
    RunOptions options{.model = odd_model(),
                       .dp = 2,
                       .dtype = quant::DType::bf16,
                       .recompute = nn::Recompute::full,
                       .steps = 3,
                       .wire = wire,
                       .products = products};
    options.model.tie_word_embeddings = true;
    const RunResult expected = run(options);
    options.ranks = with_dead(1, 3, 2, {4});
    options.coalesce_bytes = 1 << 20;
    expect_same_bits(expected, run(options),
                     std::string(name_of(wire)) + " products " + std::string(name_of(products)));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, UnequalReplicas, ::testing::Values(quant::DType::fp32, quant::DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Only the largest class of equal replicas updates the weights.
TEST(UnequalReplicasWithZero, HaveTheSameBits) {
  for (const quant::DType dtype : {quant::DType::fp32, quant::DType::bf16})
    for (const int replicas : {2, 3}) {
      RunOptions options{.model = odd_model(), .dp = replicas, .dtype = dtype, .blocks = 6 * replicas, .steps = 3};
      const RunResult expected = run(options);
      options.zero = true;
      for (const std::vector<int>& dead : {std::vector{4}, {0, 2}, {2, 5}, {1}}) {
        options.ranks = with_dead(1, 3, replicas, dead);
        expect_same_bits(expected, run(options), std::to_string(replicas) + " replicas, the state is sharded");
      }
    }
}

TEST(UnequalReplicasRefuse, BlocksThatTheirRanksDoNotDivide) {
  RunOptions options{.model = odd_model(), .blocks = 8};
  options.ranks = with_dead(1, 3, 2, {4});
  // Each rank counts the blocks of its own replica; the error of the first rank that refuses is thrown.
  EXPECT_THAT([&] { run(options); },
              ThrowsMessage<Error>(AnyOf(HasSubstr("a replica has 4 blocks for 3 ranks, expected a multiple"),
                                         HasSubstr("a replica has 3 blocks for 2 ranks, expected a multiple"))));
}

// The ranks of a tp group share the parts of its dead place. The replica, whose other tp group is full, is one class.
TEST(UnequalGroups, TrainAsOneClass) {
  RunOptions options{.model = odd_model(), .dtype = quant::DType::fp64, .blocks = 4, .steps = 20};
  const RunResult expected = run(options);
  options.ranks = with_dead(2, 2, 1, {3});
  options.at_end = [](Trainer& trainer) { EXPECT_FALSE(trainer.parallel().has_classes()); };
  testing::expect_within_fp64_bounds(expected, run(options), "2 and 1 ranks share a matrix");
}

TEST(DomainRefuse, AxesThatDoNotMatchTheGridsOrder) {
  for (const auto& [domain, refusal] :
       {std::pair{shard::Domain{{"a"}, {"c"}, {}, {"b"}}, "a domain names the axes a, c, b ("},
        {shard::Domain{{"a"}, {"b"}, {}, {}},
         "a domain names 1 compute, 1 storage and 0 replica axes, expected at least one of each"},
        {shard::Domain{{"a"}, {"b"}, {}, {"b"}}, "a domain names the axes a, b, b ("},
        {shard::Domain{{"a"}, {"b"}, {"c"}, {"d"}}, "a domain names the axes a, b, c, d ("}}) {
    RunOptions options{.model = odd_model()};
    options.ranks = with_dead(1, 2, 2, {});
    options.ranks->domains = {domain};
    EXPECT_THAT([&] { run(options); }, ThrowsMessage<Error>(HasSubstr(refusal)));
  }
}

struct Second {
  int compute, parts, duplicates, replicas;
  bool zero = false;
  quant::DType dtype = quant::DType::fp32;
  quant::Format wire = quant::Format::bf16;
};

class SecondDomain : public ::testing::TestWithParam<Second> {};

// The feed-forward matrices are sharded over fewer ranks and stored in duplicates.
TEST_P(SecondDomain, HasTheBitsOfTheFirst) {
  const Second& it = GetParam();
  RunOptions options{.model = odd_model(),
                     .tp = it.compute,
                     .gtp = it.parts * it.duplicates,
                     .dp = it.replicas,
                     .zero = it.zero,
                     .dtype = it.dtype,
                     .blocks = 12,
                     .steps = 3,
                     .wire = it.wire};
  const RunResult expected = run(options);
  const mesh::Grid first{{"a", it.compute}, {"b", it.parts * it.duplicates}, {"c", it.replicas}};
  const mesh::Grid second{{"u", it.compute}, {"v", it.parts}, {"w", it.duplicates}, {"c", it.replicas}};
  const shard::Domain other{.compute = {"u"}, .storage = {"v"}, .duplicates = {"w"}, .replicas = {"c"}};
  options.ranks = {.mesh = mesh::Mesh({first, second}, mesh::live_places(first, {})), .domains = {dense(), other}};
  options.domain_of = second_if_named("mlp.");
  expect_same_bits(expected, run(options), "two domains");
  options.coalesce_bytes = 1 << 20;
  expect_same_bits(expected, run(options), "two domains, of which neighbours travel together");
}

INSTANTIATE_TEST_SUITE_P(Meshes, SecondDomain,
                         ::testing::Values(Second{1, 2, 2, 1}, Second{1, 1, 3, 1}, Second{1, 3, 2, 1},
                                           Second{2, 1, 2, 1}, Second{1, 2, 1, 2}, Second{1, 2, 2, 2, true},
                                           Second{1, 2, 2, 1, false, quant::DType::bf16, quant::Format::fp8}),
                         [](const auto& info) {
                           const Second& it = info.param;
                           return std::to_string(it.compute) + "x" + std::to_string(it.parts) + "x" +
                                  std::to_string(it.duplicates) + "x" + std::to_string(it.replicas) +
                                  (it.zero ? "split" : "") + std::string(name_of(it.dtype));
                         });

// The feed-forward matrices have two parts in two duplicates; the other matrices have four parts.
shard::RankLayout with_duplicates() {
  const mesh::Grid first{{"a", 1}, {"b", 4}, {"c", 1}}, second{{"u", 1}, {"v", 2}, {"w", 2}, {"c", 1}};
  return {.mesh = mesh::Mesh({first, second}, mesh::live_places(first, {})),
          .domains = {dense(), {.compute = {"u"}, .storage = {"v"}, .duplicates = {"w"}, .replicas = {"c"}}}};
}

void set_layout(RunOptions& options, const shard::RankLayout& layout) {
  options.ranks = layout;
  if (layout.domains.size() > 1) options.domain_of = second_if_named("mlp.");
}

// Every element is written once and read by every rank that stores it, for any mesh of the other run.
TEST(RankLayouts, ReadCheckpointsOfEachOther) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tessera_rank_layouts";
  const shard::RankLayout all[] = {with_dead(1, 1, 1, {}), with_dead(1, 3, 2, {4}), permuted(2), with_duplicates()};
  for (const shard::RankLayout& writer : all) {
    std::filesystem::remove_all(folder);
    RunOptions options{.model = odd_model(), .blocks = 12, .steps = 2};
    set_layout(options, writer);
    options.after_step = [&](Trainer& trainer, int step) {
      if (step == 1) save_trainer(trainer, folder, 2, nlohmann::json::object());
    };
    const RunResult written = run(options);
    for (const shard::RankLayout& reader : all) {
      RunOptions other{.model = odd_model(), .blocks = 12, .steps = 1, .left_out = {0}};
      set_layout(other, reader);
      other.at_end = [&](Trainer& trainer) { load_trainer(trainer, checkpoint::CheckpointReader(folder)); };
      const RunResult read = run(other);
      EXPECT_EQ(read.updates, 2);
      for (const auto& [name, values] : written.tensors) {
        if (name.starts_with("main_grad/")) continue;
        EXPECT_EQ(read.tensors.at(name), values) << name;
      }
    }
  }
  std::filesystem::remove_all(folder);
}

// Gradients of one parameter are added over two ranks and then over replicas, those of the other over all four ranks.
// They travel on separate lanes that share the memory of exchanges.
TEST(SecondDomainOfOtherGroups, HasTheSameBitsIfNeighboursTravelTogether) {
  RunOptions options{.model = odd_model(), .gtp = 2, .dp = 2, .blocks = 8, .steps = 3};
  const RunResult dense_only = run(options);
  const mesh::Grid first{{"a", 1}, {"b", 2}, {"c", 2}}, second{{"u", 1}, {"v", 4}, {"r", 1}};
  const shard::Domain other{.compute = {"u"}, .storage = {"v"}, .duplicates = {}, .replicas = {"r"}};
  for (const char* part : {"mlp_norm", "attention"}) {
    options.ranks = {.mesh = mesh::Mesh({first, second}, mesh::live_places(first, {})), .domains = {dense(), other}};
    options.domain_of = second_if_named(part);
    options.coalesce_bytes = 0;
    const RunResult expected = run(options);
    EXPECT_LE(testing::largest_difference(expected.losses, dense_only.losses), 1e-5) << part;
    EXPECT_LE(testing::largest_difference(expected.norms, dense_only.norms), 1e-4) << part;
    options.coalesce_bytes = 1 << 20;
    expect_same_bits(expected, run(options), part);
  }
}

}  // namespace
}  // namespace tessera::train
