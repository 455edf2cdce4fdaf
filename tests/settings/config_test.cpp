#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/architectures/llama.h"
#include "tessera/models/architectures/mixtral.h"
#include "tessera/settings/resolve.h"
#include "tessera/settings/run_mesh.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/text/parse.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TrainFlags, SetTheirValuesAndKeepOtherDefaults) {
  const TrainConfig config = parse({"--model",
                                    "m",
                                    "--data",
                                    "0.3",
                                    "a",
                                    "0.7",
                                    "b",
                                    "--tp",
                                    "2",
                                    "--gtp=3",
                                    "--lr",
                                    "1e-3",
                                    "--seed",
                                    "18446744073709551615",
                                    "--sequence-parallel",
                                    "on",
                                    "--recompute",
                                    "full",
                                    "--lr-schedule",
                                    "constant",
                                    "--dtype",
                                    "bf16",
                                    "--grad-wire",
                                    "fp32",
                                    "--micro-batch",
                                    "4",
                                    "--timeout-s",
                                    "0.5"});
  EXPECT_EQ(config.model, "m");
  EXPECT_THAT(config.data, ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_EQ(config.mesh.tp, 2);
  EXPECT_EQ(config.mesh.gtp, 3);
  EXPECT_EQ(config.rates.lr, 1e-3);
  EXPECT_EQ(config.seed, 18446744073709551615u);
  EXPECT_EQ(config.sequence_parallel, true);
  EXPECT_EQ(config.recompute, RecomputeSetting::full);
  EXPECT_EQ(config.rates.shape, train::RateShape::constant);
  EXPECT_EQ(config.dtype, quant::DType::bf16);
  EXPECT_EQ(config.grad_wire, quant::DType::fp32);
  EXPECT_EQ(config.micro_batch, 4);
  EXPECT_EQ(config.timeout_s, 0.5);
  EXPECT_TRUE(config.given.count("grad_wire"));
  EXPECT_FALSE(config.given.count("beta1"));
  const TrainConfig defaults = parse({});
  EXPECT_EQ(defaults.rates.lr, 3e-4);
  EXPECT_EQ(defaults.rates.min_lr, 0.0);
  EXPECT_EQ(defaults.rates.warmup_steps, 0);
  EXPECT_EQ(defaults.rates.shape, train::RateShape::cosine);
  EXPECT_EQ(defaults.adamw.beta1, 0.9);
  EXPECT_EQ(defaults.adamw.beta2, 0.95);
  EXPECT_EQ(defaults.adamw.eps, 1e-8);
  EXPECT_EQ(defaults.adamw.weight_decay, 0.1);
  EXPECT_EQ(defaults.clip, 1.0);
  EXPECT_EQ(defaults.timeout_s, 60.0);
  EXPECT_EQ(defaults.threads, 1);
  EXPECT_FALSE(defaults.mask_documents);
  EXPECT_TRUE(defaults.given.empty());
}

TEST(TrainFlags, HelpNamesEverySetting) {
  EXPECT_TRUE(parse_train_flags({"--help"}).help);
  EXPECT_TRUE(parse_train_flags({"--steps", "3", "-h"}).help);
  const std::string help = train_help();
  for (const Setting& setting : settings()) EXPECT_THAT(help, HasSubstr(flag_of(setting.name) + " "));
  EXPECT_THAT(help, HasSubstr("--config"));
}

struct BadFlags {
  std::vector<std::string> flags;
  std::vector<std::string> named;  // texts that the message must contain
};
class BadTrainFlags : public ::testing::TestWithParam<BadFlags> {};

TEST_P(BadTrainFlags, AreRefusedByName) {
  const std::string message = base::refusal([] { parse(GetParam().flags); });
  for (const std::string& name : GetParam().named) EXPECT_THAT(message, HasSubstr(name));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadTrainFlags,
    ::testing::Values(
        BadFlags{{"--stepz", "3"}, {"--stepz", "did you mean '--steps'"}}, BadFlags{{"--gpt=2"}, {"--gpt", "'--gtp'"}},
        BadFlags{{"--micro_batch", "3"}, {"--micro_batch", "'--micro-batch'"}},
        BadFlags{{"--learning-rate", "1"}, {"unknown flag --learning-rate", "did you mean '--lr'"}},
        BadFlags{{"--lerning-rate", "1"}, {"unknown flag --lerning-rate", "did you mean '--lr'"}},
        BadFlags{{"--gradient-checkpoint"}, {"--gradient-checkpoint", "'--recompute'"}},
        BadFlags{{"--max_grad_norm=1"}, {"--max_grad_norm", "'--clip'"}},
        BadFlags{{"--xyzzy"}, {"unknown flag --xyzzy"}}, BadFlags{{"word"}, {"'word'"}}, BadFlags{{"-x"}, {"-x"}},
        BadFlags{{"--steps"}, {"--steps"}}, BadFlags{{"--data"}, {"--data"}},
        BadFlags{{"--out", ""}, {"--out", "\"\""}}, BadFlags{{"--steps", "3", "--steps", "4"}, {"--steps"}},
        BadFlags{{"--steps", "abc"}, {"--steps", "\"abc\"", "integer"}},
        BadFlags{{"--steps", "3.5"}, {"--steps", "3.5", "integer"}}, BadFlags{{"--steps", "1e3"}, {"--steps", "1e3"}},
        BadFlags{{"--steps", "-1"}, {"--steps", "-1", "at least 0"}},
        BadFlags{{"--steps", " 3"}, {"--steps", "\" 3\""}},
        BadFlags{{"--steps", "99999999999999999999"}, {"--steps", "99999999999999999999"}},
        BadFlags{{"--steps", "3000000000"}, {"--steps", "3000000000"}},
        BadFlags{{"--tp", "0"}, {"--tp", "got 0", "at least 1"}}, BadFlags{{"--gtp", "-2"}, {"--gtp", "-2"}},
        BadFlags{{"--tp", "1048576"}, {"--tp: got 1048576", "at most 1024"}},
        BadFlags{{"--etp", "1025"}, {"--etp: got 1025", "at most 1024"}},
        BadFlags{{"--ep", "65537"}, {"--ep: got 65537", "at most 65536"}},
        BadFlags{{"--micro-batch", "2147483647"}, {"--micro-batch: got 2147483647", "at most 67108864"}},
        BadFlags{{"--seq-len", "67108865"}, {"--seq-len: got 67108865", "at most 67108864"}},
        BadFlags{{"--seed", "-1"}, {"--seed", "-1"}},
        BadFlags{{"--seed", "18446744073709551616"}, {"--seed", "18446744073709551616"}},
        BadFlags{{"--lr", "fast"}, {"--lr", "\"fast\"", "number"}}, BadFlags{{"--lr", "-0.1"}, {"--lr", "-0.1"}},
        BadFlags{{"--lr", "nan"}, {"--lr", "nan"}}, BadFlags{{"--lr", "inf"}, {"--lr", "inf"}},
        BadFlags{{"--lr", "1e999"}, {"--lr", "1e999"}}, BadFlags{{"--beta1", "1"}, {"--beta1", "below 1"}},
        BadFlags{{"--eps", "0"}, {"--eps", "above 0"}}, BadFlags{{"--clip", "-1"}, {"--clip", "at least 0"}},
        BadFlags{{"--timeout-s", "0"}, {"--timeout-s", "at least 0.001"}},
        BadFlags{{"--dtype", "fp16"}, {"--dtype", "fp16", "fp32, bf16, fp64"}},
        BadFlags{{"--grad-wire", "u8"}, {"--grad-wire", "u8"}},
        BadFlags{{"--backend", "gloo"}, {"--backend", "gloo", "local"}},
        BadFlags{{"--recompute", "some"}, {"--recompute", "some", "selective"}},
        BadFlags{{"--lr-schedule", "step"}, {"--lr-schedule", "step", "constant, cosine, linear, wsd"}},
        BadFlags{{"--decay-shape", "round"}, {"--decay-shape", "round", "linear, sqrt, cosine"}},
        BadFlags{{"--decay-steps", "-1"}, {"--decay-steps"}},
        BadFlags{{"--lr-rules", "a=-1"}, {"--lr-rules: in 'a=-1': got '-1', expected a number of at least 0"}},
        BadFlags{{"--lr-rules", "a=1,b=nan"}, {"--lr-rules: in 'b=nan': got 'nan'"}},
        BadFlags{{"--lr-rules", "a"}, {"--lr-rules: got 'a', expected PATTERN=NUMBER,PATTERN=NUMBER,..."}},
        BadFlags{{"--optimizer", "lion"}, {"--optimizer", "lion", "adamw, muon"}},
        BadFlags{{"--optimizer-rules", "a=lion"}, {"in 'a=lion': got 'lion', expected adamw or muon"}},
        BadFlags{{"--muon-momentum", "1"}, {"--muon-momentum", "below 1"}},
        BadFlags{{"--muon-steps", "0"}, {"--muon-steps", "at least 1"}},
        BadFlags{{"--muon-lr", "-1"}, {"--muon-lr", "at least 0"}},
        BadFlags{{"--muon-scale", "large"}, {"--muon-scale", "moonshot, original"}},
        BadFlags{{"--decay-rules", "a=inf"}, {"--decay-rules: in 'a=inf': got 'inf'"}},
        BadFlags{{"--decay-rules", "a=1e999"}, {"--decay-rules: in 'a=1e999'"}},
        BadFlags{{"--decay-rules", "a="}, {"--decay-rules: in 'a=': got ''"}},
        BadFlags{{"--mask-documents", "yes"}, {"--mask-documents", "yes", "on or off"}},
        BadFlags{{"--zero", "word"}, {"--zero", "word", "on or off"}}, BadFlags{{"--zero", ""}, {"--zero"}},
        BadFlags{{"--zero", "--zero"}, {"--zero"}}, BadFlags{{"--cp", "2"}, {"--cp", "\"2\"", "not built yet"}},
        BadFlags{{"--pp", "4"}, {"--pp", "not built yet"}}, BadFlags{{"--etp", "0"}, {"--etp", "at least 1"}},
        BadFlags{{"--ep", "x"}, {"--ep", "an integer"}}, BadFlags{{"--egtp", "-1"}, {"--egtp"}},
        BadFlags{{"--moe-aux", "none"}, {"--moe-aux", "layer, pooled"}},
        BadFlags{{"--reduce-order", "tree"}, {"--reduce-order", "tree", "sequential, hierarchical"}},
        BadFlags{{"--config", "/nowhere/x.json"}, {"/nowhere/x.json"}}));

TEST(TrainFlags, OfBooleansNeedNoValue) {
  const TrainConfig config =
      parse_train_flags({"--debug-poison", "--zero", "off", "--sequence-parallel", "--tp", "2", "--cuda-graph"}).config;
  EXPECT_TRUE(config.debug_poison && config.sequence_parallel.value() && config.cuda_graph);
  EXPECT_FALSE(config.zero);
  EXPECT_EQ(config.mesh.tp, 2);
  EXPECT_TRUE(config.given.contains("cuda_graph"));
}

TEST(TrainFlags, OfUnbuiltFeaturesAcceptTheNeutralValue) {
  EXPECT_NO_THROW(parse({"--cp", "1", "--pp", "1", "--ep", "1", "--etp", "1", "--egtp", "1"}));
}

TEST(ConfigFile, HasTheSameEffectAsFlagsAndFlagsOverrideIt) {
  const base::TempFile file(R"({"model": "m", "data": ["1", "a", 2.5, "b"], "valid": "v", "micro_batch": 2, "lr": 1,
                          "mask_documents": true, "sequence_parallel": "on", "dtype": "bf16", "cp": 1, "dp": null})");
  const TrainConfig config = parse({"--config", file.path(), "--micro-batch", "8"});
  EXPECT_EQ(config.micro_batch, 8);
  EXPECT_EQ(config.rates.lr, 1.0);
  EXPECT_THAT(config.data, ElementsAre("1", "a", "2.5", "b"));
  EXPECT_THAT(config.valid, ElementsAre("v"));
  EXPECT_TRUE(config.mask_documents);
  EXPECT_EQ(config.sequence_parallel, true);
  EXPECT_EQ(config.dtype, quant::DType::bf16);
  EXPECT_TRUE(config.given.count("lr"));
  EXPECT_FALSE(config.given.count("dp"));
}

struct BadFile {
  const char* text;
  std::vector<std::string> named;
};
class BadConfigFiles : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadConfigFiles, AreRefusedByFileAndKey) {
  const base::TempFile file(GetParam().text);
  const std::string message = base::refusal([&] { parse({"--config", file.path()}); });
  EXPECT_THAT(message, HasSubstr(file.path()));
  for (const std::string& name : GetParam().named) EXPECT_THAT(message, HasSubstr(name));
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadConfigFiles,
    ::testing::Values(BadFile{"{\"stps\": 3}", {"'stps'", "did you mean 'steps'"}},
                      BadFile{"{\"micro-batch\": 3}", {"'micro-batch'", "'micro_batch'"}},
                      BadFile{"{\"learning_rate\": 3}", {"'learning_rate'", "did you mean 'lr'"}},
                      BadFile{"{\"steps\": \"3\"}", {"'steps'", "\"3\"", "integer"}},
                      BadFile{"{\"steps\": 3.0}", {"'steps'", "3.0"}}, BadFile{"{\"lr\": \"1\"}", {"'lr'", "number"}},
                      BadFile{"{\"lr\": true}", {"'lr'", "true"}}, BadFile{"{\"model\": 3}", {"'model'", "3"}},
                      BadFile{"{\"data\": {}}", {"'data'", "{}"}}, BadFile{"{\"data\": [[\"a\"]]}", {"'data'"}},
                      BadFile{"{\"mask_documents\": 1}", {"'mask_documents'", "on or off"}},
                      BadFile{"{\"dtype\": 16}", {"'dtype'", "16"}}, BadFile{"{\"pp\": 2}", {"'pp'", "not built yet"}},
                      BadFile{"{\"config\": \"x\"}", {"'config'"}},
                      BadFile{"{\"tp_chunks\": -2}", {"'tp_chunks'", "-2"}},
                      BadFile{"{\"tp_spares\": \"1\\n\"}", {"'tp_spares'", "\"1\\n\"", "control characters"}},
                      BadFile{"{\"data\": [\"a\\tb\"]}", {"'data'", "control characters"}},
                      BadFile{"{\"coalesce\": 1.5}", {"'coalesce'", "1.5"}},
                      BadFile{"{\"tp\": 1, \"tp\": 2}", {"\"tp\"", "twice"}}, BadFile{"[1]", {"[1]", "object"}},
                      BadFile{"{", {"JSON"}}, BadFile{"", {"empty"}}));

TEST(ConfigFile, LongTextsAreShortenedInMessages) {
  const std::string text(100'000, 'y');
  int refused = 0;
  for (const Setting& setting : settings()) {
    TrainConfig config;
    try {
      set_from_json(config, setting, text, "here");
      resolve_ranks(config, std::nullopt);
    } catch (const InputError& error) {
      ++refused;
      EXPECT_LT(std::string_view(error.what()).size(), 1000u) << setting.name;
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(ConfigFile, MayContainNumbersForTextsLikeAutoOrANumber) {
  const base::TempFile file(
      "{\"tp\": 2, \"tp_chunks\": 2, \"gather_budget\": 4096, \"coalesce\": 7, \"activation_budget\": 5}");
  const TrainConfig config = parse({"--config", file.path()});
  EXPECT_EQ(config.tp_chunks, "2");
  EXPECT_EQ(config.gather_budget.value, 4096);
  EXPECT_EQ(config.coalesce.value, 7);
  EXPECT_EQ(config.activation_budget.value, 5);
}

TEST(Settings, RoundTripThroughJson) {
  const TrainConfig config = parse({"--model",
                                    "m",
                                    "--data",
                                    "1",
                                    "a",
                                    "2",
                                    "b",
                                    "--steps",
                                    "5",
                                    "--lr",
                                    "0.1",
                                    "--seed",
                                    "18446744073709551615",
                                    "--dtype",
                                    "bf16",
                                    "--recompute",
                                    "selective",
                                    "--backend",
                                    "mpi",
                                    "--mask-documents",
                                    "on",
                                    "--resume",
                                    "latest",
                                    "--min-lr",
                                    "1e-300"});
  TrainConfig again;
  apply_json(again, json::parse(to_json(config).dump()), "f");
  EXPECT_EQ(to_json(again), to_json(config));
  EXPECT_EQ(to_json(again).size(), settings().size());
  EXPECT_EQ(again.seed, config.seed);
  EXPECT_EQ(again.rates.lr, 0.1);
  EXPECT_EQ(again.mesh.dp, 0);
}

TrainConfig resolved(std::vector<std::string> flags, std::optional<std::int64_t> world = std::nullopt) {
  for (const char* word : {"--model", "m", "--data", "d", "--out", "o"}) flags.emplace_back(word);
  if (std::find(flags.begin(), flags.end(), "--steps") == flags.end()) flags.insert(flags.end(), {"--steps", "10"});
  return resolve_ranks(resolve_settings(parse(flags)), world);
}

TEST(Resolve, FillsInDependentSettings) {
  EXPECT_EQ(resolved({}).mesh.ranks, 1);
  EXPECT_EQ(resolved({"--tp", "2", "--gtp", "3"}).mesh.ranks, 6);
  EXPECT_EQ(resolved({"--tp", "2", "--gtp", "3"}).mesh.dp, 1);
  EXPECT_EQ(resolved({"--tp", "2", "--ranks", "8"}).mesh.dp, 4);
  EXPECT_EQ(resolved({"--tp", "2", "--dp", "4"}).mesh.ranks, 8);
  EXPECT_EQ(resolved({"--tp", "2", "--backend", "mpi"}, 6).mesh.dp, 3);
  EXPECT_EQ(resolved({}).rates.schedule_steps, 10);
  EXPECT_EQ(resolved({"--schedule-steps", "40"}).rates.schedule_steps, 40);
  EXPECT_EQ(resolved({"--dtype", "bf16"}).grad_wire, quant::DType::bf16);
  EXPECT_EQ(resolved({"--dtype", "bf16", "--grad-wire", "fp32"}).grad_wire, quant::DType::fp32);
  EXPECT_EQ(resolved({"--steps", "0", "--warmup-steps", "5"}).rates.schedule_steps, 0);
}

class BadCombinations : public ::testing::TestWithParam<BadFlags> {};

TEST_P(BadCombinations, AreRefusedByName) {
  const std::string message = base::refusal([] { resolved(GetParam().flags); });
  for (const std::string& name : GetParam().named) EXPECT_THAT(message, HasSubstr(name));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadCombinations,
    ::testing::Values(
        BadFlags{{"--tp", "2", "--gtp", "1048576"},
                 {"--tp 2 * --gtp 1048576 * --dp 1", "2097152 places", "at most 1048576"}},
        BadFlags{{"--gtp", "1024", "--dp", "1048576", "--backend", "mpi"}, {"1073741824 places"}},
        BadFlags{{"--tp", "1024", "--gtp", "1048576", "--dp", "1048576"}, {"at most 1048576"}},
        BadFlags{{"--gtp", "1024", "--dead", "dp1048576:0"}, {"--dp 1048577", "at most 1048576"}},
        BadFlags{{"--tp", "2", "--dp", "3", "--dead", "dp1:0", "--reduced-batch", "25"},
                 {"--reduced-batch: got 25", "at most --global-batch 24"}},
        BadFlags{{"--ranks", "4", "--tp", "3"}, {"--ranks", "got 4", "--tp 3", "multiple"}},
        BadFlags{{"--ranks", "4", "--tp", "2", "--gtp", "2", "--dp", "2"}, {"--ranks", "got 4", "--dp 2", "= 8"}},
        BadFlags{{"--ranks", "2000", "--global-batch", "2000"}, {"--ranks", "2000", "1024"}},
        BadFlags{{"--gtp", "5"}, {"--global-batch", "got 24", "--gtp 5", "= 5"}},
        BadFlags{{"--cuda-graph", "on"}, {"--cuda-graph: got on with --backend local", "nccl"}},
        BadFlags{{"--cuda-graph", "on", "--backend", "nccl", "--mask-documents", "on"},
                 {"--cuda-graph: got on with --mask-documents on"}},
        BadFlags{{"--cuda-graph", "on", "--backend", "nccl", "--debug-delays", "3"},
                 {"--cuda-graph: got on with --debug-delays 3"}},
        BadFlags{{"--micro-batch", "7"}, {"--global-batch", "got 24", "--micro-batch 7"}},
        BadFlags{{"--dp", "5"}, {"--global-batch", "--dp 5"}},
        BadFlags{{"--dtype", "fp64", "--grad-wire", "fp32"}, {"--grad-wire", "fp32", "fp64"}},
        BadFlags{{"--grad-wire", "fp64"}, {"--grad-wire", "fp64", "fp32"}},
        BadFlags{{"--coalesce", "0"}, {"--coalesce: '0'", "2GiB"}},
        BadFlags{{"--tp", "2", "--sequence-parallel", "on", "--tp-chunks", "0"},
                 {"--tp-chunks: got 0", "auto or a number above 0"}},
        BadFlags{{"--tp", "2", "--sequence-parallel", "off", "--tp-overlap", "on"},
                 {"--tp-overlap: got on", "--sequence-parallel on"}},
        BadFlags{{"--tp", "2", "--sequence-parallel", "off", "--tp-chunks", "2"},
                 {"--tp-chunks: got 2", "--sequence-parallel on"}},
        BadFlags{{"--min-lr", "1"}, {"--min-lr", "got 1", "--lr 0.0003"}},
        BadFlags{{"--min-lr", "1", "--lr-schedule", "linear"}, {"--min-lr", "got 1"}},
        BadFlags{{"--decay-steps", "3"}, {"--decay-steps: got 3", "--lr-schedule wsd"}},
        BadFlags{{"--decay-shape", "sqrt", "--lr-schedule", "linear"}, {"--decay-shape: got sqrt", "wsd"}},
        BadFlags{{"--lr-schedule", "wsd"}, {"--lr-schedule: got wsd without --decay-steps"}},
        BadFlags{{"--lr-schedule", "wsd", "--decay-steps", "9", "--warmup-steps", "2"},
                 {"--decay-steps: got 9, expected at most 8", "--schedule-steps 10", "--warmup-steps 2"}},
        BadFlags{{"--moments", "bf16", "--dtype", "fp64"}, {"--moments: got bf16 with --dtype fp64"}},
        BadFlags{{"--masters", "low"}, {"--masters: got \"low\"", "auto, fp32, split"}},
        BadFlags{{"--warmup-steps", "11"}, {"--warmup-steps", "11", "--schedule-steps 10"}},
        BadFlags{{"--eval-every", "5"}, {"--eval-every", "5", "--valid"}}));

TEST(Resolve, RefusesAWorldOfAnotherSize) {
  const std::string message = base::refusal([] { resolved({"--backend", "mpi", "--ranks", "4"}, 6); });
  EXPECT_THAT(message, HasSubstr("--ranks: got 4, expected 6: 6 processes were started (mpirun -n 4 "));
  EXPECT_THAT(base::refusal([] {
                resolved({"--backend", "mpi", "--tp", "2"}, 1);
              }),
              HasSubstr("1 process was started, expected a multiple of --tp 2 * --gtp 1 = 2 (mpirun -n 2 "));
  EXPECT_THAT(base::refusal([] {
                resolved({"--backend", "mpi", "--gtp", "2", "--dp", "2"}, 3);
              }),
              HasSubstr("3 processes were started, expected --tp 1 * --gtp 2 * --dp 2 = 4 (mpirun -n 4 "));
}

TEST(Resolve, RefusesMissingSettings) {
  const std::vector<std::pair<std::string, std::string>> all{
      {"--model", "m"}, {"--data", "d"}, {"--steps", "1"}, {"--out", "o"}};
  for (const auto& [left_out, unused] : all) {
    std::vector<std::string> flags;
    for (const auto& [flag, value] : all)
      if (flag != left_out) flags.insert(flags.end(), {flag, value});
    EXPECT_THAT(base::refusal([&] { resolve_settings(parse(flags)); }), HasSubstr(left_out + " is missing"));
  }
}

TEST(Resolve, TakesTheModelsLongestSequence) {
  const models::LlamaConfig model({.max_position_embeddings = 128});
  EXPECT_EQ(resolve_model(resolved({}), model).seq_len, 128);
  EXPECT_EQ(resolve_model(resolved({"--seq-len", "64"}), model).seq_len, 64);
  const std::string message = base::refusal([&] { resolve_model(resolved({"--seq-len", "129"}), model); });
  EXPECT_THAT(message, HasSubstr("--seq-len: got 129, expected at most 128"));
}

TEST(Resolve, RefusesMicrobatchesOfTooManyTokens) {
  const models::LlamaConfig small({.hidden_size = 8, .max_position_embeddings = 1 << 26});
  EXPECT_EQ(resolve_model(resolved({}), small).seq_len, 1 << 26);
  EXPECT_EQ(base::refusal([&] {
              resolve_model(resolved({"--micro-batch", "2", "--global-batch", "2", "--seq-len", "33554433"}), small);
            }),
            "--micro-batch 2 * --seq-len 33554433: a microbatch of 67108866 tokens, expected at most 67108864");
  models::DecoderConfig large{.hidden_size = 1 << 20, .num_layers = 16384, .max_position_embeddings = 1 << 26};
  large.intermediate_size = 1 << 20;
  EXPECT_THAT(base::refusal([&] { resolve_model(resolved({}), models::LlamaConfig(large)); }),
              HasSubstr("the activations of model 'm' would have 7.38e+19 bytes, expected at most 1e+18"));
}

TEST(Resolve, RefusesMoreExpertsThanTheRoutersOfGpusSupport) {
  models::DecoderConfig config{.vocab_size = 16, .hidden_size = 8, .num_layers = 1, .max_position_embeddings = 8};
  config.num_heads = config.num_kv_heads = 1, config.head_dim = 8;
  config.experts = models::ExpertsConfig{.count = 1024, .per_token = 2, .width = 8, .sparse = {true}};
  const auto resolve = [&](const char* backend, const char* ep) {
    return resolve_model(resolved({"--backend", backend, "--gtp", ep, "--ep", ep}), models::MixtralConfig(config));
  };
  for (const char* ep : {"1", "2", "8"}) {
    EXPECT_EQ(base::refusal([&] { resolve("nccl", ep); }),
              "--model: 'm' has 1024 experts in a layer, expected at most 1023 on GPUs: a router chooses among all of "
              "them, for every --ep");
    EXPECT_NO_THROW(resolve("mpi", ep));
  }
  config.experts->count = 1023;
  EXPECT_NO_THROW(resolve("nccl", "8"));
}

TEST(Resolve, RefusesEmulatedProductsIfTheKernelsAreNative) {
  models::DecoderConfig config{.vocab_size = 16, .hidden_size = 8, .num_layers = 1, .max_position_embeddings = 128};
  config.intermediate_size = config.head_dim = 8, config.num_heads = config.num_kv_heads = 1;
  const models::LlamaConfig model(config);
  const auto resolve = [&](const char* backend, const char* kernels, const char* flag, const std::string& value) {
    resolve_model(resolved({"--backend", backend, "--dtype", "bf16", "--gemm-kernels", kernels, flag, value}), model);
  };
  for (const auto& [flag, value] : {std::pair{"--gemm-format", "nvfp4"}, {"--gemm-rules", "*=nvfp4"}})
    EXPECT_EQ(base::refusal([&] { resolve("nccl", "native", flag, value); }),
              "--gemm-kernels: got native with products in nvfp4, which --backend nccl multiplies as decoded values; "
              "expected auto, or products in bf16, fp8 or fp8_block");
  EXPECT_THAT(base::refusal([&] { resolve("nccl", "native", "--gemm-format", "mxfp8"); }), HasSubstr("mxfp8"));
  for (const char* format : {"fp8", "fp8_block", "mxfp8", "nvfp4"}) {
    EXPECT_NO_THROW(resolve("nccl", "auto", "--gemm-format", format)) << format;
    EXPECT_NO_THROW(resolve("local", "auto", "--gemm-format", format)) << format;
    EXPECT_THAT(base::refusal([&] { resolve("local", "native", "--gemm-format", format); }),
                HasSubstr(std::string("products in ") + format + ", which --backend local"));
  }
  for (const char* format : {"fp8", "fp8_block"}) EXPECT_NO_THROW(resolve("nccl", "native", "--gemm-format", format));
}

TEST(Resolve, RefusesEmulatedProductsOfExpertsIfTheKernelsAreNative) {
  const auto resolve = [&](std::int64_t width, const char* format, const char* recipe, const char* rules) {
    models::DecoderConfig config{.vocab_size = 16, .hidden_size = 32, .num_layers = 1, .max_position_embeddings = 128};
    config.num_heads = config.num_kv_heads = 1, config.head_dim = 8;
    config.experts = models::ExpertsConfig{.count = 4, .per_token = 2, .width = width, .sparse = {true}};
    resolve_model(resolved({"--backend", "nccl", "--dtype", "bf16", "--gemm-kernels", "native", "--gemm-format", format,
                            "--gemm-rules", rules, "--fp8-recipe", recipe}),
                  models::MixtralConfig(config));
  };
  EXPECT_NO_THROW(resolve(16, "fp8", "e4m3", "layers.*.attention.*=bf16"));
  for (const auto& [width, format, recipe, product] :
       {std::tuple{16, "fp8", "hybrid", "fp8"}, {24, "fp8", "e4m3", "fp8"}, {16, "fp8", "e4m3", "fp8_block"}}) {
    const std::string rule = "*experts*=" + std::string(product);
    EXPECT_THAT(base::refusal([&] { resolve(width, format, recipe, rule.c_str()); }),
                AllOf(HasSubstr("--gemm-kernels: got native with products in " + std::string(product) + " of '"),
                      HasSubstr("--fp8-recipe e4m3")));
    EXPECT_NO_THROW(resolve(width, format, recipe, "*experts*=bf16"));
  }
}

// Every given value is refused, also one that equals the default.
TEST(Resolve, RefusesTheRecipeOfNvfp4WithoutSuchProducts) {
  models::DecoderConfig config{.vocab_size = 16, .hidden_size = 8, .num_layers = 1, .max_position_embeddings = 128};
  config.intermediate_size = config.head_dim = 8, config.num_heads = config.num_kv_heads = 1;
  const models::LlamaConfig model(config);
  const auto resolve = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--dtype", "bf16"});
    return resolve_model(resolved(flags), model).formats;
  };
  for (const auto& [flag, value] : {std::pair{"--nvfp4-hadamard", "on"},
                                    {"--nvfp4-hadamard", "off"},
                                    {"--nvfp4-rounding", "stochastic"},
                                    {"--nvfp4-rounding", "nearest"}})
    for (const char* product : {"bf16", "fp8", "mxfp8"})
      EXPECT_THAT(base::refusal([&] {
                    resolve({"--gemm-format", product, flag, value});
                  }),
                  AllOf(HasSubstr(std::string(flag) + ": got " + value + ","), HasSubstr("--gemm-format nvfp4")));
  EXPECT_EQ(resolve({}).nvfp4_hadamard, std::nullopt);
  EXPECT_EQ(resolve({"--wire-format", "nvfp4"}).nvfp4_rounding, std::nullopt);
  for (const std::vector<std::string>& products :
       {std::vector<std::string>{"--gemm-format", "nvfp4"}, {"--gemm-rules", "*.down.weight=nvfp4"}}) {
    EXPECT_EQ(resolve(products).nvfp4_hadamard, true);
    EXPECT_EQ(resolve(products).nvfp4_rounding, nn::GradientRounding::stochastic);
  }
  const FormatSettings off =
      resolve({"--gemm-format", "nvfp4", "--nvfp4-hadamard", "off", "--nvfp4-rounding", "nearest"});
  EXPECT_EQ(off.nvfp4_hadamard, false);
  EXPECT_EQ(off.nvfp4_rounding, nn::GradientRounding::nearest);
}

TEST(Resolve, WarnsOfARateThatHasEnded) {
  EXPECT_TRUE(warnings_of(resolved({})).empty());
  EXPECT_THAT(warnings_of(resolved({"--schedule-steps", "5"})), ElementsAre(HasSubstr("ends at step 5")));
  EXPECT_THAT(warnings_of(resolved({"--schedule-steps", "5", "--lr-schedule", "linear"})),
              ElementsAre(HasSubstr("ends at step 5")));
  EXPECT_TRUE(warnings_of(resolved({"--schedule-steps", "5", "--lr-schedule", "constant"})).empty());
  EXPECT_NO_THROW(resolved({"--lr-schedule", "wsd", "--decay-steps", "8", "--warmup-steps", "2"}));
}

// Products on several CPU threads have other bits; on a GPU, products do not run on the host's threads.
TEST(Resolve, WarnsOfThreadsOnCpus) {
  EXPECT_THAT(warnings_of(resolved({"--threads", "2"})), ElementsAre(HasSubstr("--threads 2: results are comparable")));
  EXPECT_TRUE(warnings_of(resolved({"--threads", "2", "--backend", "nccl"})).empty());
}

}  // namespace
}  // namespace tessera::settings
