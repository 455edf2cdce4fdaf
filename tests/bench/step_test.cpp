// Tests `bench step` on CPUs with a small model on several ranks.
#include "tessera/bench/step.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/launch/process_settings.h"
#include "tessera/models/architectures/llama.h"
#include "tessera/models/architectures/mixtral.h"
#include "tessera/predict/model_flops.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::bench {
namespace {

// 2 layers with 120 x 16 weights each, an output layer of 32 x 16. The embedding is not a product.
models::DecoderConfig small_sizes() {
  return {.vocab_size = 32,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 4,
          .max_position_embeddings = 8};
}
settings::TrainConfig small_settings(int tp, int gtp, int dp = 1) {
  settings::TrainConfig config{.model = "small", .mesh = {.tp = tp, .gtp = gtp, .dp = dp}};
  config.global_batch = std::int64_t{2} * gtp * dp;  // the step has two microbatches
  config.given = {"backend", "global_batch"};
  return config;
}
StepBench bench_of(const settings::TrainConfig& config, const models::DecoderConfig& sizes = small_sizes()) {
  models::ModelConfigPtr model = std::make_shared<models::LlamaConfig>(sizes);
  if (sizes.experts) model = std::make_shared<models::MixtralConfig>(sizes);
  return {.run = settings::resolve(config, model, settings::Use::bench), .warmup = 2, .steps = 5};
}
StepBench small_bench(int tp, int gtp, int dp = 1) {
  return bench_of(small_settings(tp, gtp, dp));
}

std::vector<StepReport> reports_of(const StepBench& bench) {
  launch::set_up_process(bench.run->threads, bench.run->deterministic);
  std::vector<StepReport> reports(static_cast<std::size_t>(bench.run->mesh.ranks));
  comm::run_local(static_cast<int>(bench.run->mesh.ranks), {}, [&](comm::World& world) {
    reports[static_cast<std::size_t>(world.rank())] = measure_step(world, bench);
  });
  return reports;
}

TEST(StepBenchmark, MeasuresStepsAndTheirLimit) {
  for (const auto& [tp, gtp] : {std::array{1, 1}, {1, 2}, {2, 1}, {2, 3}}) {
    SCOPED_TRACE(testing::Message() << "tp " << tp << " gtp " << gtp);
    const StepBench bench = small_bench(tp, gtp);
    for (const StepReport& report : reports_of(bench)) {
      EXPECT_GT(report.p10_ms, 0);
      EXPECT_LE(report.p10_ms, report.median_ms);
      EXPECT_LE(report.median_ms, report.p90_ms);
      EXPECT_NEAR(report.tokens_per_second_per_rank * report.median_ms / 1e3 * tp, 16, 1e-9);
      EXPECT_GE(report.metrics.exposed_comm_ms, 0);
      EXPECT_LE(report.metrics.exposed_comm_ms, report.p90_ms);
      EXPECT_GE(report.least_exposed_comm_ms, 0);
      EXPECT_LE(report.least_exposed_comm_ms, report.metrics.exposed_comm_ms);
      EXPECT_EQ(report.metrics.exposed_tp_ms.value_or(0) > 0, tp > 1);
      EXPECT_GE(report.metrics.exposed_weights_ms.value_or(0), 0);
      EXPECT_EQ(report.memory_bytes, 0);
      EXPECT_NEAR(report.loss, std::log(32), 1);
      EXPECT_EQ(report.ranks, tp * gtp);
      EXPECT_EQ(report.gather_arena_bytes > 0, gtp > 1);
      EXPECT_GE(report.limit.rounds, 1);
      for (const double part : {report.limit.products, report.limit.attention, report.limit.copy_rate})
        EXPECT_TRUE(part > 0 && std::isfinite(part)) << part;
    }
  }
}

// Two owners of 3 experts each, and 2 x 8 tokens with 2 choices.
TEST(StepBenchmark, ReportsTheRowsAndTheTransportOfExperts) {
  models::DecoderConfig sizes = small_sizes();
  sizes.experts = models::ExpertsConfig{.count = 6, .per_token = 2, .width = 8, .sparse = {true, true}};
  settings::TrainConfig config = small_settings(1, 2);
  config.mesh.ep = 2;
  const StepBench bench = bench_of(config, sizes);
  const nlohmann::ordered_json json = step_json(bench, reports_of(bench).front());
  EXPECT_EQ(json.at("expert_room_rows"), 2 * 8 * 2);
  EXPECT_EQ(json.at("expert_transport"), "local");
  EXPECT_EQ(json.at("padded_products"), 0);
  EXPECT_FALSE(step_json(small_bench(1, 1), reports_of(small_bench(1, 1)).front()).contains("expert_room_rows"));
}

// The counts of 8 experts have a mean of at least 64 and a standard deviation of about 7, if tokens choose
// independently.
TEST(StepBenchmark, HasTheLoadOfItsRouting) {
  models::DecoderConfig sizes = small_sizes();
  sizes.vocab_size = 1024;
  sizes.num_layers = 4;
  sizes.max_position_embeddings = 256;
  sizes.experts = models::ExpertsConfig{.count = 8, .per_token = 2, .width = 8, .sparse = {true, true, true, true}};
  for (const int gtp : {1, 2}) {
    SCOPED_TRACE(gtp);
    settings::TrainConfig config = small_settings(1, gtp);
    config.mesh.ep = gtp;
    config.global_batch = gtp;
    StepBench bench = bench_of(config, sizes);
    const double even = reports_of(bench).front().expert_load.value();
    EXPECT_LT(even, 1.5);
    bench.routing = Routing::skewed;
    const double skewed = reports_of(bench).front().expert_load.value();
    EXPECT_GT(skewed, 1.6);
    EXPECT_LT(skewed, 3);
  }
}

TEST(StepBenchmark, AllRanksReportTheSameSteps) {
  const std::vector<StepReport> reports = reports_of(small_bench(1, 3));
  for (const StepReport& report : reports) {
    EXPECT_EQ(report.median_ms, reports[0].median_ms);
    EXPECT_EQ(report.p90_ms, reports[0].p90_ms);
    EXPECT_EQ(report.metrics.exposed_comm_ms, reports[0].metrics.exposed_comm_ms);
    EXPECT_EQ(report.least_exposed_comm_ms, reports[0].least_exposed_comm_ms);
    EXPECT_EQ(report.limit.seconds(), reports[0].limit.seconds());
    EXPECT_EQ(report.loss, reports[0].loss);
  }
}

std::string error_of(const StepBench& bench) {
  try {
    reports_of(bench);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

StepBench bench_without_finite_gradient(int tp, int gtp) {
  models::DecoderConfig sizes = small_sizes();
  sizes.initializer_range = 1e37;
  return bench_of(small_settings(tp, gtp), sizes);
}

TEST(StepBenchmark, FailsIfAStepIsSkipped) {
  for (const auto& [tp, gtp] : {std::array{1, 1}, {2, 1}, {1, 2}})
    EXPECT_THAT(error_of(bench_without_finite_gradient(tp, gtp)),
                testing::AllOf(testing::HasSubstr("step 1 of 7"), testing::HasSubstr("skipped"),
                               testing::ContainsRegex("loss .*, norm -?nan"), testing::HasSubstr("no figure")));
}

TEST(StepBenchmark, NamesTheGraphIfTheGpuWaitsForItsHost) {
  settings::TrainConfig config = small_settings(1, 1);
  config.backend = settings::Backend::nccl;
  const StepBench bench = bench_of(config);
  StepReport report{.median_ms = 60, .waiting_ms = 50};
  EXPECT_THAT(step_text(bench, report), testing::HasSubstr("\nthe GPU waits for its host in 83 % of a step: "
                                                           "--cuda-graph on"));
  EXPECT_EQ(step_json(bench, report).at("waiting_ms"), 50);
  report.waiting_ms = 20;
  EXPECT_THAT(step_text(bench, report), testing::Not(testing::HasSubstr("--cuda-graph")));
  report.waiting_ms = 50;
  config.cuda_graph = true;
  EXPECT_THAT(step_text(bench_of(config), report), testing::Not(testing::HasSubstr("--cuda-graph")));
}

// Other ranks of the process may already compute when a rank starts.
TEST(StepBenchmark, ARankDoesNotChangeTheSettingsOfItsProcess) {
  launch::set_up_process(/*threads=*/2, /*deterministic=*/false);
  settings::TrainConfig config = small_settings(1, 2);
  config.deterministic = true;
  const StepBench bench = bench_of(config);
  comm::run_local(2, {}, [&](comm::World& world) {
    measure_step(world, bench);
    EXPECT_EQ(at::get_num_threads(), 2);
  });
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  launch::set_up_process(/*threads=*/1, /*deterministic=*/false);
}

TEST(StepBenchmark, FailsOnEveryRankWithTheSameError) {
  const StepBench bench = bench_without_finite_gradient(1, 3);
  std::array<std::string, 3> errors;
  comm::run_local(3, {}, [&](comm::World& world) {
    try {
      measure_step(world, bench);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  EXPECT_THAT(errors[0], testing::HasSubstr("no figure"));
  EXPECT_THAT(errors, testing::Each(errors[0]));
}

// The gradient of the first step is finite, but the weights that AdamW computes from it are not.
TEST(StepBenchmark, NamesTheNonFiniteStep) {
  settings::TrainConfig config = small_settings(1, 2);
  config.adamw.weight_decay = 1e43;
  EXPECT_THAT(error_of(bench_of(config)),
              testing::AllOf(testing::HasSubstr("step 2 of 7"), testing::HasSubstr("no figure")));
}

// A weight has 6 operations for each token. Attention has two products in the forward pass and five in the backward
// pass, each over half of the scores.
TEST(StepBenchmark, CountsTheFlopsOfARank) {
  constexpr double weights = 2 * 120 * 16 + 32 * 16, tokens = 8, scores = 8 * 8 / 2.0;
  constexpr double microbatch = 6 * weights * tokens + 2 * 7 * 2 * scores * 16;
  const auto flops = [](const StepBench& bench) {
    return settings::model_flops(bench.run) / static_cast<double>(bench.run->mesh.ranks);
  };
  EXPECT_EQ(flops(small_bench(1, 1)), 2 * microbatch);
  EXPECT_EQ(flops(small_bench(1, 4)), 2 * microbatch);
  EXPECT_EQ(flops(small_bench(2, 1)), microbatch);
}

double bytes_of(StepBench bench, int microbatches, int rank = 0) {
  // Gathers the whole table of embeddings.
  bench.run = bench.run.with_microbatches(microbatches).with_lookup(settings::Lookup::gather);
  return measure_limit(bench, rank, {}).bytes;
}

// fp32, one microbatch per step. AdamW reads four numbers per weight and writes three; the weight is its own master.
// The norm's squares read one number.
TEST(StepBenchmark, CountsTheBytesOutsideProducts) {
  constexpr double parameters = 2 * 120 * 16 + 2 * 32 * 16 + 5 * 16;
  const double one = bytes_of(small_bench(1, 1), 1), three = bytes_of(small_bench(1, 1), 3);
  // The number of bytes does not depend on the number of microbatches, because at gtp 1 no parts are added.
  EXPECT_NEAR(one - (three - one) / 2, parameters * (4 + 3 + 1) * 4, 1e-6);
  // With gtp, a rank updates its part and adds up two ranks' gradients of it. Except in the first microbatch, each sum
  // also reads the previous sum. The sums of matrices give the squares.
  const double two_ranks = bytes_of(small_bench(1, 2), 1);
  constexpr double norms = 5 * 16, matrices = parameters - norms;  // norms are whole on both ranks
  EXPECT_NEAR(two_ranks - one, matrices * 4 * (-8 + 7 / 2.0 + (2 + 1) / 2.0) + norms * 4 * (2 + 1), 1e-6);
}

// Numbers of elements of trained parameters: stored by each rank's runtime, updated, and read for their squares.
struct Held {
  double stored = 0, updated = 0, squared = 0;
};
std::vector<Held> held_by_rank(const StepBench& bench) {
  std::vector<Held> held(static_cast<std::size_t>(bench.run->mesh.ranks));
  comm::run_local(static_cast<int>(bench.run->mesh.ranks), {}, [&](comm::World& world) {
    train::Trainer trainer(world, settings::trainer_options(bench.run));
    Held& own = held[static_cast<std::size_t>(world.rank())];
    for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id) {
      const shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
      own.stored += static_cast<double>(parameter.shard_elements());
      own.updated += static_cast<double>(parameter.state_elements());
      if (bench.run->mesh.gtp == 1 || parameter.columns_of_sum(static_cast<int>(bench.run->mesh.dp)) == 0)
        own.squared += static_cast<double>(parameter.state_elements());
    }
  });
  return held;
}

// A rank's limit contains exactly the work of that rank; otherwise a step could be faster than its limit.
TEST(StepBenchmark, LimitCountsTheElementsThatTheRankUpdates) {
  for (const auto& [tp, gtp, dp] : {std::array{1, 1, 2}, {1, 2, 2}, {1, 1, 4}, {3, 2, 4}, {2, 3, 1}, {2, 3, 4}})
    for (const bool zero : {false, true}) {
      SCOPED_TRACE(testing::Message() << "tp " << tp << " gtp " << gtp << " dp " << dp << " zero " << zero);
      settings::TrainConfig config = small_settings(tp, gtp, dp);
      config.zero = zero;
      config.embedding = settings::Lookup::gather;
      const StepBench bench = bench_of(config);
      const std::vector<Held> held = held_by_rank(bench);
      for (int rank = 0; rank < bench.run->mesh.ranks; ++rank) {
        const auto [stored, updated, squared] = held[static_cast<std::size_t>(rank)];
        const double one = bytes_of(bench, 1, rank), three = bytes_of(bench, 3, rank);
        // The first sum of a step does not read its destination.
        const double first_sum = gtp == 1 ? 0 : stored;
        EXPECT_NEAR(one - (three - one) / 2, 4 * (updated * (4 + 3) + squared - first_sum), 1e-6) << rank;
      }
      // With ZeRO each replica updates a part of the matrices.
      EXPECT_EQ(held.front().updated < held.front().stored, zero && dp > 1);
    }
}

TEST(StepBenchmark, PrintsItsMeasurements) {
  const StepBench bench = small_bench(1, 1);
  StepReport report{.median_ms = 8, .p10_ms = 7, .p90_ms = 9, .tokens_per_second_per_rank = 2000, .loss = 3.5};
  report.limit = {.products = 1e-3, .attention = 2e-3, .bytes = 3e9, .copy_rate = 3e12, .rounds = 2};
  report.gather_arena_bytes = 2'000'000'000;
  report.reduce_arena_bytes = 1'500'000'000;
  report.scratch_bytes = 250'000'000;
  const nlohmann::ordered_json json = step_json(bench, report);
  EXPECT_EQ(json.at("reduce_arena_bytes"), 1'500'000'000);
  EXPECT_DOUBLE_EQ(json.at("limit_ms").get<double>(), 4);
  EXPECT_DOUBLE_EQ(json.at("limit_ratio").get<double>(), 0.5);
  EXPECT_EQ(json.at("median_ms"), 8.0);
  EXPECT_EQ(json.at("loss"), 3.5);
  EXPECT_EQ(json.at("exposed_comm_ms"), report.metrics.exposed_comm_ms);
  EXPECT_FALSE(json.contains("grad_norm") || json.contains("gathered_bytes"));
  EXPECT_TRUE(json.at("mfu").is_null());
  const std::string text = step_text(bench, report);
  EXPECT_THAT(text, testing::HasSubstr("small with 2 layers"));
  EXPECT_THAT(text, testing::HasSubstr("8.00 ms (p10 7.00, p90 9.00)"));
  EXPECT_THAT(text, testing::HasSubstr("3.75 GB: gathers 2.00, gradients 1.50, scratch 0.25"));
  EXPECT_THAT(text, testing::HasSubstr("products 1.00, attention 2.00, 3.0 GB at 3.00 TB/s"));
  EXPECT_THAT(text,
              testing::Not(testing::AnyOf(testing::HasSubstr("memory"), testing::HasSubstr("mfu"))));  // only for GPUs
  report.memory_bytes = 5'000'000'000;
  report.flops = 989e12 * 8e-3 / 4;
  report.peak_flops = 989e12;
  EXPECT_DOUBLE_EQ(step_json(bench, report).at("mfu").get<double>(), 0.25);
  EXPECT_THAT(step_text(bench, report), testing::HasSubstr("5.00 GB: 0.00 for tensors"));
  EXPECT_THAT(step_text(bench, report), testing::HasSubstr("2000 a rank, mfu 0.250 (of 989 TFLOP/s)"));
  report.metrics.exposed_comm_ms = std::nan("");
  EXPECT_THAT(step_text(bench, report), testing::HasSubstr("not measured under a graph"));
}

TEST(StepBenchmark, RemarksThatALimitAboveTheStepIsNoLowerBound) {
  const StepBench bench = small_bench(1, 1);
  StepReport report{.median_ms = 4};
  report.limit = {.products = 1e-3, .attention = 2e-3, .bytes = 3e9, .copy_rate = 3e12, .rounds = 2};
  EXPECT_THAT(step_text(bench, report), testing::HasSubstr("limit / step       1.000\n"));
  EXPECT_FALSE(step_json(bench, report).contains("limit_remark"));
  report.median_ms = 3;
  EXPECT_THAT(step_text(bench, report),
              testing::HasSubstr("limit / step       1.333 (the limit is above the step, so"));
  EXPECT_THAT(step_json(bench, report).at("limit_remark"), testing::HasSubstr("no lower bound"));
}

}  // namespace
}  // namespace tessera::bench
