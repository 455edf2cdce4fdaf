#include "tessera/settings/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "tessera/models/architectures/llama.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve.h"
#include "tessera/settings/run_mesh.h"
#include "tessera/settings/settings.h"
#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Settings in force of a finished run, as a checkpoint stores them.
json stored(std::vector<std::string> more = {}) {
  std::vector<std::string> flags{"--model",          "m",  "--data", "d", "--out",     "o",   "--steps", "20",
                                 "--schedule-steps", "40", "--tp",   "2", "--gtp",     "2",   "--lr",    "0.01",
                                 "--warmup-steps",   "3",  "--seed", "7", "--seq-len", "128", "--dtype", "bf16",
                                 "--micro-batch",    "2"};
  flags.insert(flags.end(), more.begin(), more.end());
  return to_json(resolve_ranks(resolve_settings(parse(flags)), std::nullopt));
}

TEST(Resume, KeepsTheComputationAndTakesTheMeshFromTheCommandLine) {
  const MergedConfig merged =
      merge_stored(parse({"--resume", "latest", "--out", "o", "--steps", "40", "--gtp", "3"}), stored(), "c");
  EXPECT_EQ(merged.config.rates.lr, 0.01);
  EXPECT_EQ(merged.config.rates.warmup_steps, 3);
  EXPECT_EQ(merged.config.rates.schedule_steps, 40);
  EXPECT_EQ(merged.config.seed, 7u);
  EXPECT_EQ(merged.config.seq_len, 128);
  EXPECT_EQ(merged.config.dtype, quant::DType::bf16);
  EXPECT_EQ(merged.config.micro_batch, 2);
  EXPECT_EQ(merged.config.model, "m");
  EXPECT_THAT(merged.config.data, ElementsAre("d"));
  EXPECT_EQ(merged.config.mesh.tp, 1);
  EXPECT_EQ(merged.config.mesh.gtp, 3);
  EXPECT_EQ(merged.config.resume, "latest");
  EXPECT_THAT(merged.changes, ElementsAre("--tp: 2 -> 1", "--gtp: 2 -> 3", "--steps: 20 -> 40"));
  EXPECT_EQ(resolve_ranks(resolve_settings(merged.config), std::nullopt).mesh.ranks, 3);
}

TEST(Resume, KeepsTheWholeMeshUnlessAMeshFlagIsGiven) {
  const json before = stored({"--dp", "3"});
  const MergedConfig kept = merge_stored(parse({"--steps", "40", "--out", "o"}), before, "c");
  EXPECT_TRUE(kept.keeps_mesh);
  const TrainConfig config = resolve_ranks(resolve_settings(kept.config), std::nullopt);
  EXPECT_EQ(mesh_text(config.mesh), "12 ranks (tp 2 x gtp 2 x dp 3)");
  EXPECT_EQ(mesh_note(kept, mesh_of(config.mesh, false)), "mesh of the checkpoint: 12 ranks (tp 2 x gtp 2 x dp 3)");
  const MergedConfig without_checkpoint = merge_stored(parse({"--out", "o"}), before, "c", false);
  EXPECT_EQ(mesh_note(without_checkpoint, mesh_of(config.mesh, false)),
            "mesh of the run: 12 ranks (tp 2 x gtp 2 x dp 3)");
  for (const char* flag : {"--ranks", "--tp", "--gtp", "--dp"}) {
    const MergedConfig given = merge_stored(parse({flag, "2", "--out", "o"}), before, "c");
    EXPECT_FALSE(given.keeps_mesh);
    const TrainConfig resolved = resolve_ranks(resolve_settings(given.config), std::nullopt);
    EXPECT_EQ(resolved.mesh.ranks, 2) << flag;
    EXPECT_EQ(mesh_note(given, mesh_of(resolved.mesh, false)),
              "mesh of the command line: " + mesh_text(resolved.mesh) +
                  "; the checkpoint's was 12 ranks (tp 2 x gtp 2 x dp 3)");
  }
}

TEST(Resume, KeepsTheMeshIfOnlyUnusedPlacesAreGiven) {
  const json before = stored({"--dp", "3", "--dead", "dp0:1", "--tp-spares", "auto", "--reduced-batch", "auto"});
  const auto merged = [&](std::vector<std::string> flags) {
    for (const char* word : {"--out", "o"}) flags.emplace_back(word);
    const MergedConfig result = merge_stored(parse(flags), before, "c");
    EXPECT_FALSE(result.keeps_mesh);
    return resolve_ranks(resolve_settings(result.config), std::nullopt).mesh;
  };
  const MeshSettings other = merged({"--dead", "dp2:0"});
  EXPECT_EQ(std::tuple(other.ranks, other.tp, other.gtp, other.dp), std::tuple(11, 2, 2, 3));
  EXPECT_EQ(std::tuple(to_text(other.unused.dead), other.unused.tp_spares, other.unused.reduced_batch),
            std::tuple("dp2.gtp0:0", "auto", "auto"));
  const MeshSettings more = merged({"--idle", "dp1:0,1"});
  EXPECT_EQ(std::tuple(more.ranks, to_text(more.unused.dead), to_text(more.unused.idle)),
            std::tuple(9, "dp0.gtp0:1", "dp1.gtp0:0,1"));
  // With a flag of the mesh, the stored places do not count.
  const MeshSettings new_mesh = merged({"--tp", "2"});
  EXPECT_EQ(std::tuple(new_mesh.ranks, new_mesh.gtp, to_text(new_mesh.unused.dead)), std::tuple(2, 1, ""));
}

TEST(Resume, KeepsHowTheRunIsComputed) {
  const std::vector<std::string> flags{
      "--zero",    "off", "--sequence-parallel", "on",  "--recompute",  "auto", "--embedding", "gather",
      "--backend", "mpi", "--activation-budget", "1GB", "--save-every", "5"};
  const json before = stored(flags), kept = to_json(merge_stored(parse({}), before, "c").config);
  for (const char* key :
       {"zero", "sequence_parallel", "recompute", "embedding", "backend", "activation_budget", "save_every"})
    EXPECT_EQ(kept[key], before[key]) << key;
  const TrainConfig given =
      merge_stored(parse({"--zero", "on", "--backend", "local", "--recompute", "full"}), before, "c").config;
  EXPECT_TRUE(given.zero);
  EXPECT_EQ(given.backend, Backend::local);
  EXPECT_EQ(given.recompute, RecomputeSetting::full);
}

json other_values_of_the_update() {
  return {{"lr", 0.5},
          {"min_lr", 0.25},
          {"warmup_steps", 4},
          {"lr_schedule", "constant"},
          {"decay_steps", 3},
          {"decay_shape", "sqrt"},
          {"beta1", 0.5},
          {"beta2", 0.75},
          {"eps", 0.125},
          {"weight_decay", 0.375},
          {"moments", "bf16"},
          {"lr_rules", "a=0.5"},
          {"decay_rules", "b=0"},
          {"optimizer", "muon"},
          {"optimizer_rules", "c=adamw"},
          {"muon_lr", 0.125},
          {"muon_momentum", 0.5},
          {"muon_nesterov", false},
          {"muon_steps", 4},
          {"muon_scale", "original"},
          {"masters", "fp32"}};
}

// A value that is not the default, for every setting but those of one call of the program.
json other_values() {
  json values = {{"model", "m"},
                 {"init", "i"},
                 {"data", {"d"}},
                 {"valid", {"v"}},
                 {"eval_samples", 7},
                 {"save_minutes", 2.5},
                 {"eval_first", true},
                 {"backend", "mpi"},
                 {"ranks", 8},
                 {"tp", 2},
                 {"gtp", 2},
                 {"dp", 2},
                 {"micro_batch", 3},
                 {"global_batch", 36},
                 {"seq_len", 64},
                 {"steps", 9},
                 {"schedule_steps", 11},
                 {"seed", 5},
                 {"dtype", "bf16"},
                 {"grad_wire", "fp32"},
                 {"wire_format", "nvfp4"},
                 {"wire_rules", "a=fp8"},
                 {"wire_format_backward", "mxfp8"},
                 {"wire_rules_backward", "b=fp8"},
                 {"gemm_format", "fp8"},
                 {"gemm_rules", "c=nvfp4"},
                 {"nvfp4_hadamard", false},
                 {"nvfp4_rounding", "nearest"},
                 {"fp8_scaling", "delayed"},  // the settings of delayed scaling depend on it: "current" is tested below
                 {"fp8_recipe", "e4m3"},
                 {"fp8_history", 7},
                 {"fp8_amax", "newest"},
                 {"fp8_margin", 2},
                 {"tp_wire_format", "fp8"},
                 {"clip", 0.625},
                 {"hidden_dropout", 0.25},
                 {"embedding_dropout", 0.5},
                 {"mask_documents", true},
                 {"recompute", "auto"},
                 {"activation_budget", "1GB"},
                 {"sequence_parallel", true},
                 {"tp_chunks", "3"},
                 {"reduce_order", "hierarchical"},
                 {"ranks_per_node", 4},
                 {"zero", false},
                 {"embedding", "rows"},
                 {"dead", "dp0.gtp0:1"},
                 {"idle", "dp1.gtp0:0"},
                 {"tp_spares", "2"},
                 {"reduced_batch", "3"},
                 {"save_every", 6}};
  values.update(other_values_of_the_update());
  return values;
}

// As other_values, for the settings of models with experts.
json other_values_of_experts() {
  return {{"etp", 2},
          {"ep", 2},
          {"egtp", 2},
          {"moe_aux", "pooled"},
          {"router_z_loss", 0.125},
          {"expert_bias_rate", 0.25},
          {"expert_capacity", 1.5}};
}

const std::set<std::string_view> kOfOneCall{
    "threads",    "gather_budget", "reduce_budget", "coalesce",       "deterministic", "pushes",
    "cuda_graph", "debug_poison",  "debug_delays",  "debug_suppress", "trace_step",    "keep",
    "keep_every", "stop_minutes",  "save_failures", "eval_every",     "timeout_s",     "expert_counts",
    "peak_flops", "tp_overlap",    "expert_room",   "gemm_kernels"};

TEST(Resume, KeepsEverySettingButThoseOfOneCall) {
  json before = other_values();
  before.update(other_values_of_experts());
  const json defaults = to_json(TrainConfig{});
  json after = to_json(merge_stored(parse({}), before, "c").config);
  for (const Setting& setting : settings()) {
    const std::string name(setting.name);
    if (name == "resume" || name == "out") continue;
    EXPECT_NE(before.contains(name), kOfOneCall.contains(setting.name)) << name << " is in neither list, or in both";
    EXPECT_EQ(after[name], before.contains(name) ? before[name] : defaults[name]) << name;
    if (before.contains(name) && name != "fp8_scaling") {
      EXPECT_NE(before[name], defaults[name]) << name;
    }
  }
  json current = before;
  for (const char* name : {"fp8_history", "fp8_amax", "fp8_margin"}) current.erase(name);
  current["fp8_scaling"] = "current";
  EXPECT_EQ(merge_stored(parse({}), current, "c").config.products.scaling, nn::Fp8Scaling::current);
}

// Runs of earlier versions did not store the recipe of nvfp4 products. They had neither a transform nor random numbers.
TEST(Resume, ContinuesNvfp4ProductsOfEarlierRunsWithoutTheRecipe) {
  json before = stored({"--gemm-format", "nvfp4"});
  before.erase("nvfp4_hadamard");
  before.erase("nvfp4_rounding");
  const auto formats_of = [](const MergedConfig& merged) { return merged.config.formats; };
  const MergedConfig kept = merge_stored(parse({"--out", "o"}), before, "c");
  EXPECT_EQ(formats_of(kept).nvfp4_hadamard, false);
  EXPECT_EQ(formats_of(kept).nvfp4_rounding, nn::GradientRounding::nearest);
  EXPECT_THAT(kept.changes, IsEmpty());
  EXPECT_THAT(kept.note, AllOf(HasSubstr("--nvfp4-hadamard off"), HasSubstr("--nvfp4-rounding nearest")));
  const MergedConfig changed = merge_stored(parse({"--out", "o", "--nvfp4-hadamard", "on"}), before, "c");
  EXPECT_EQ(formats_of(changed).nvfp4_hadamard, true);
  EXPECT_EQ(formats_of(changed).nvfp4_rounding, nn::GradientRounding::nearest);
  EXPECT_THAT(changed.changes, ElementsAre("--nvfp4-hadamard: false -> true"));
  EXPECT_THAT(changed.note, AllOf(Not(HasSubstr("--nvfp4-hadamard")), HasSubstr("--nvfp4-rounding nearest")));

  // A later run stores the recipe. A run without nvfp4 products has no recipe.
  before["nvfp4_hadamard"] = true;
  before["nvfp4_rounding"] = "nearest";
  const MergedConfig later = merge_stored(parse({"--out", "o"}), before, "c");
  EXPECT_EQ(formats_of(later).nvfp4_hadamard, true);
  EXPECT_EQ(later.note, "");
  const MergedConfig without = merge_stored(parse({"--out", "o", "--gemm-format", "bf16"}), before, "c");
  EXPECT_EQ(formats_of(without).nvfp4_hadamard, std::nullopt);
  EXPECT_EQ(formats_of(without).nvfp4_rounding, std::nullopt);
  const MergedConfig begins = merge_stored(parse({"--out", "o", "--gemm-format", "nvfp4"}), stored(), "c");
  EXPECT_EQ(formats_of(begins).nvfp4_hadamard, std::nullopt);  // resolved to the default
  EXPECT_EQ(begins.note, "");
}

// If a flag removes a setting, the settings that depend on it return to their defaults.
TEST(Resume, DropsSettingsWithoutMeaning) {
  const auto resolved = [](const std::vector<std::string>& before, std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--out", "o"});
    const TrainConfig config = merge_stored(parse(flags), stored(before), "c").config;
    return resolve_ranks(resolve_settings(config), std::nullopt);
  };
  const std::vector<std::string> nodes{"--reduce-order", "hierarchical", "--ranks-per-node", "2"};
  EXPECT_EQ(resolved(nodes, {}).ranks_per_node, 2);
  EXPECT_EQ(resolved(nodes, {"--reduce-order", "sequential"}).ranks_per_node, 0);
  const std::vector<std::string> budget{"--recompute", "auto", "--activation-budget", "1GB"};
  EXPECT_EQ(resolved(budget, {}).activation_budget.text, "1GB");
  EXPECT_EQ(resolved(budget, {"--recompute", "none"}).activation_budget.text, "");
  const std::vector<std::string> wire{"--gemm-format", "fp8", "--sequence-parallel", "on", "--tp-wire-format", "fp8"};
  EXPECT_EQ(resolved(wire, {}).products.tp_wire, quant::Format::fp8);
  EXPECT_EQ(resolved(wire, {"--gtp", "2"}).products.tp_wire, quant::Format::bf16);
  EXPECT_EQ(resolved(wire, {"--sequence-parallel", "off"}).products.tp_wire, quant::Format::bf16);
  EXPECT_EQ(resolved(wire, {"--gemm-format", "nvfp4"}).products.tp_wire, quant::Format::bf16);
  EXPECT_EQ(resolved(wire, {"--gemm-format", "nvfp4", "--tp-wire-format", "nvfp4"}).products.tp_wire,
            quant::Format::nvfp4);
  const std::vector<std::string> chunks{"--sequence-parallel", "on", "--tp-chunks", "2"};
  EXPECT_EQ(resolved(chunks, {}).tp_chunks, "2");
  EXPECT_EQ(resolved(chunks, {"--sequence-parallel", "off"}).tp_chunks, "auto");
}

TEST(Resume, TakesSettingsThatAreNotStoredFromTheCommandLine) {
  json before = stored();
  for (const char* key : {"ranks", "tp", "gtp", "dp", "backend", "zero", "recompute", "save_every"}) before.erase(key);
  const MergedConfig merged = merge_stored(parse({"--zero", "off", "--out", "o"}), before, "c");
  EXPECT_FALSE(merged.keeps_mesh);
  EXPECT_FALSE(merged.config.zero);
  const TrainConfig config = resolve_ranks(resolve_settings(merged.config), 6);
  EXPECT_EQ(mesh_note(merged, mesh_of(config.mesh, false)),
            "mesh of the command line: 6 ranks (tp 1 x gtp 1 x dp 6); the checkpoint stores no mesh");
}

TEST(Resume, FlagsChangeTheRateSchedule) {
  const MergedConfig merged =
      merge_stored(parse({"--lr", "0.02", "--schedule-steps", "60", "--lr-schedule", "constant"}), stored(), "c");
  EXPECT_EQ(merged.config.rates.lr, 0.02);
  EXPECT_EQ(merged.config.rates.schedule_steps, 60);
  EXPECT_EQ(merged.config.rates.shape, train::RateShape::constant);
  EXPECT_EQ(merged.config.steps, 20);
  EXPECT_THAT(merged.changes, Contains("--lr: 0.01 -> 0.02"));
  EXPECT_THAT(merged.changes, Contains("--lr-schedule: \"cosine\" -> \"constant\""));
}

TEST(Resume, ListsNoChangesWithoutChanges) {
  const MergedConfig merged = merge_stored(parse({"--tp", "2", "--gtp", "2", "--seed", "7"}), stored(), "c");
  EXPECT_THAT(merged.changes, IsEmpty());
}

TEST(Resume, AScheduleOfNoStepsFollowsTheNewRun) {
  const json initial = stored({});
  json none = initial;
  none["steps"] = 0;
  none["schedule_steps"] = 0;
  const MergedConfig merged = merge_stored(parse({"--steps", "30", "--out", "o"}), none, "c");
  EXPECT_EQ(resolve_settings(merged.config).rates.schedule_steps, 30);
}

TEST(Resume, RefusesChangesThatBreakTheRun) {
  const std::vector<std::array<std::string, 3>> cases{
      {"--seed", "8", "7"}, {"--seq-len", "64", "128"}, {"--global-batch", "48", "24"}, {"--dtype", "fp32", "bf16"}};
  for (const auto& [flag, other, kept] : cases) {
    const std::string message = base::refusal([&, f = flag, a = other] {
      merge_stored(parse({f, a}), stored(), "step-20");
    });
    EXPECT_THAT(message, HasSubstr(flag));
    EXPECT_THAT(message, HasSubstr(other));
    EXPECT_THAT(message, HasSubstr(kept));
    EXPECT_THAT(message, HasSubstr("step-20"));
    EXPECT_NO_THROW(merge_stored(parse({flag, kept}), stored(), "c"));
  }
}

TEST(Resume, RefusesStoredStateThatIsNotSettings) {
  EXPECT_THAT(base::refusal([] { merge_stored(parse({}), json::array(), "step-20"); }), HasSubstr("step-20"));
  EXPECT_THAT(base::refusal([] { merge_stored(parse({}), {{"lr", "x"}}, "step-20"); }), HasSubstr("'lr'"));
  EXPECT_THAT(base::refusal([] { merge_stored(parse({}), {{"what", 1}}, "step-20"); }), HasSubstr("'what'"));
}

TEST(Resume, ComparesModelAndData) {
  models::DecoderConfig model{.vocab_size = 10,
                              .hidden_size = 8,
                              .intermediate_size = 4,
                              .num_layers = 1,
                              .num_heads = 2,
                              .num_kv_heads = 1,
                              .head_dim = 4};
  const json before = models::LlamaConfig(model).to_json();
  EXPECT_NO_THROW(require_same_model(before, models::LlamaConfig(model), "c"));
  model.num_layers = 2;
  EXPECT_THAT(base::refusal([&] { require_same_model(before, models::LlamaConfig(model), "c"); }),
              HasSubstr("num_hidden_layers is 2, expected 1"));
  const json data = {{{"share", 1}, {"tokens", 100}}};
  EXPECT_NO_THROW(require_same_data(data, data, "c"));
  json other = data;
  other[0]["tokens"] = 101;
  EXPECT_THAT(base::refusal([&] { require_same_data(data, other, "c"); }), HasSubstr("101"));
  other = data;
  other.push_back(data[0]);
  EXPECT_THAT(base::refusal([&] { require_same_data(data, other, "c"); }), HasSubstr("--data"));
}

}  // namespace
}  // namespace tessera::settings
