#include "tessera/settings/resolved_run.h"

#include <gmock/gmock.h>

#include "tessera/base/error.h"
#include "tessera/models/architectures/mixtral.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

using ::testing::HasSubstr;

ResolvedRun whole_run() {
  TrainConfig config{.mesh = {.ranks = 24, .tp = 3, .gtp = 4, .dp = 2}, .micro_batch = 5, .global_batch = 240};
  config.given = {"global_batch"};
  return run_of(config);
}

TEST(ResolvedRun, OnAnotherMeshHasItsRanksAndPlaces) {
  const ResolvedRun whole = whole_run();
  EXPECT_EQ(std::tuple(whole.mesh().ranks, whole.has_unused_places()), std::tuple(24, false));
  const UnusedPlaces unused{.dead = {{{.dp = 1, .gtp = 3}, {0}}}, .idle = {{{.dp = 0, .gtp = 0}, {1, 2}}}};
  const ResolvedRun smaller = whole.without(unused);
  EXPECT_EQ(std::tuple(smaller.mesh().ranks, smaller->mesh.ranks), std::tuple(21, 21));
  EXPECT_EQ(smaller.degrees().unused, (std::vector<int>{1, 2, 21}));
  EXPECT_EQ(smaller.mesh().text, "21 ranks (tp 3 x gtp 4 x dp 2, dead dp1.gtp3:0, idle dp0.gtp0:1,2)");
  UnusedPlaces spares = unused;
  spares.dead[{.dp = 0, .gtp = 1}] = {0, 1};
  spares.tp_spares = "auto";  // each group with a dead slot leaves two slots unused
  EXPECT_EQ(whole.without(spares).mesh().ranks, 18);
  EXPECT_EQ(smaller.without({}).mesh().ranks, 24);
  EXPECT_THROW(whole.without({.dead = {{{.dp = 2}, {0}}}}), InputError);
  EXPECT_EQ(whole.on({.tp = 2, .gtp = 5}).mesh().text, "10 ranks (tp 2 x gtp 5 x dp 1)");
  EXPECT_EQ(std::tuple(whole.alone().mesh().ranks, whole.alone().microbatches()), std::tuple(1, 1));
}

TEST(ResolvedRun, AReplicaHasItsPlacesAndItsShareOfTheBatch) {
  const ResolvedRun replica =
      whole_run().without({.dead = {{{.dp = 1}, {0}}}, .tp_spares = "1"}).replica({{{.dp = 0, .gtp = 3}, {2}}}, 30);
  EXPECT_EQ(std::tuple(replica.mesh().ranks, replica.degrees().dp, replica->global_batch), std::tuple(11, 1, 30));
  EXPECT_EQ(replica.degrees().unused, std::vector<int>{11});
}

TEST(ResolvedRun, AMicrobatchOfEveryReaderIsAStep) {
  const ResolvedRun run = whole_run().with_microbatches(3);
  EXPECT_EQ(std::tuple(run.microbatches(), run->global_batch), std::tuple(3, 3 * 5 * 4 * 2));
}

TrainConfig twelve_ranks() {
  return {.mesh = {.tp = 2, .gtp = 3, .dp = 2}, .micro_batch = 2};
}

TEST(ResolvedRun, OfAPlanHasOneMicrobatchAndNoBackend) {
  const ResolvedRun run = resolve(twelve_ranks(), small_model(), Use::plan);
  EXPECT_EQ(std::tuple(run->global_batch, run.microbatches(), run->backend), std::tuple(12, 1, Backend::mpi));
  EXPECT_EQ(std::tuple(run->seq_len, run->grad_wire, run.tokens()), std::tuple(10, run->dtype, 120));
  TrainConfig config = twelve_ranks();
  config.global_batch = 36, config.given = {"global_batch"};
  EXPECT_EQ(resolve(config, small_model(), Use::plan).microbatches(), 3);
  // A run on GPUs that refused emulated products can be planned.
  config.dtype = quant::DType::bf16, config.formats.products = quant::Format::fp8;
  config.formats.kernels = GemmKernels::native;
  EXPECT_NO_THROW(resolve(config, small_model(), Use::plan));
}

TEST(ResolvedRun, OfABenchmarkStartsItsRanks) {
  TrainConfig config = twelve_ranks();
  config.given = {"backend"};
  EXPECT_EQ(resolve(config, small_model(), Use::bench)->backend, Backend::local);
  config.cuda_graph = true;
  EXPECT_THAT(base::refusal([&] { resolve(config, small_model(), Use::bench); }),
              HasSubstr("--cuda-graph: got on with --backend local"));
  EXPECT_NO_THROW(resolve(config, small_model(), Use::plan));
  config.backend = Backend::mpi;
  EXPECT_EQ(base::refusal([&] { resolve(config, small_model(), Use::bench); }),
            "--backend: got mpi, expected local or nccl");
}

TEST(ResolvedRun, OfAForwardPassShardsExpertsLikeDenseWeights) {
  TrainConfig config{.mesh = {.tp = 2, .gtp = 3}, .micro_batch = 2, .global_batch = 7};
  const ResolvedRun dense = resolve(config, small_model(), Use::forward, 12);
  EXPECT_EQ(std::tuple(dense->mesh.dp, dense->global_batch, dense.has_experts()), std::tuple(2, 12, false));
  models::DecoderConfig sparse{.vocab_size = 16, .hidden_size = 8, .num_layers = 1, .max_position_embeddings = 10};
  sparse.num_heads = sparse.num_kv_heads = 2, sparse.head_dim = 4;
  sparse.experts = models::ExpertsConfig{.count = 3, .per_token = 2, .width = 8, .sparse = {true}};
  const ResolvedRun experts = resolve(config, std::make_shared<models::MixtralConfig>(sparse), Use::forward, 12);
  EXPECT_EQ(std::tuple(experts->mesh.etp, experts->mesh.ep, experts->mesh.egtp), std::tuple(2, 1, 3));
  EXPECT_EQ(experts.degrees().experts->egtp, 3);
  EXPECT_EQ(resolve_mesh(config, Use::forward).ranks, 6);
}

TEST(ResolvedRun, EvaluatesNamedSetsAndNeedsThemForFlagsOfEvaluations) {
  const auto refusal_of = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--model", "m", "--data", "d", "--steps", "9", "--out", "o"});
    return base::refusal([&] { check(parse(flags)); });
  };
  EXPECT_THAT(refusal_of({"--eval-samples", "5"}), HasSubstr("--eval-samples: got 5 without --valid"));
  EXPECT_THAT(refusal_of({"--eval-first", "on"}), HasSubstr("--eval-first: got on without --valid"));
  EXPECT_THAT(refusal_of({"--valid", "a", "x=b", "x=c"}), HasSubstr("--valid: set 'x' is given twice"));
  EXPECT_NO_THROW(check(parse({"--valid", "a", "x=b", "--eval-samples", "5", "--eval-first", "--model", "m", "--data",
                               "d", "--steps", "9", "--out", "o"})));
}

TEST(ResolvedRun, OfTrainingIsCheckedBeforeItsModelIsRead) {
  const std::vector<std::string> flags{"--model", "m", "--data", "d", "--steps", "9", "--gtp", "2", "--dp", "3"};
  EXPECT_THAT(base::refusal([&] { check(parse(flags)); }), HasSubstr("--out is missing"));
  EXPECT_EQ(resolve_mesh(parse(flags), Use::train).text, "6 ranks (tp 1 x gtp 2 x dp 3)");
  EXPECT_THAT(base::refusal([&] { resolve_mesh(parse(flags), Use::train, 4); }),
              HasSubstr("4 processes were started, expected --tp 1 * --gtp 2 * --dp 3 = 6"));
}

}  // namespace
}  // namespace tessera::settings
