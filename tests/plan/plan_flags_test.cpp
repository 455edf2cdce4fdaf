// Tests the inputs of `tessera plan`: machines, flags, recorded events and runs.
#include "tessera/plan/search/plan_flags.h"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "tessera/base/json_file.h"
#include "tessera/plan/plan_report.h"
#include "tessera/schedule/events_json.h"
#include "tessera/telemetry/metrics.h"
#include "tests/plan/plan_testing.h"
#include "tests/settings/config_test_support.h"

namespace tessera::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(PlanMachine, FilesDescribeAMachine) {
  for (const char* name : {"laptop", "h100", "h200"}) {
    const predict::Machine machine = predict::find_machine(name, configs() / "machines");
    EXPECT_EQ(machine.flops.size(), 3u);
    EXPECT_GT(machine.within_node.bytes_per_second, machine.between_nodes.bytes_per_second);
  }
}

// Returns the refusal of a valid machine after replacing the value at `pointer`; a null removes the value.
std::string machine_refusal(const std::string& pointer, const json& value) {
  json good = json::parse(R"({"description": "", "ranks_per_node": 2, "processors": 2, "flops": {"fp32": 1e9},
    "efficiency": {"gemm": 1, "attention_forward": 0.5, "attention_backward": 0.5}, "memory_bytes_per_second": 1e9,
    "links": {"within_node": {"bytes_per_second": 1e9, "latency_s": 1e-6},
              "between_nodes": {"bytes_per_second": 1e9, "latency_s": 1e-6}}})");
  EXPECT_EQ(predict::parse_machine(good, "m", "FILE").flops.at(quant::DType::fp32), 1e9);
  const json::json_pointer at(pointer);
  if (value.is_null()) good[at.parent_pointer()].erase(at.back());
  if (!value.is_null()) good[at] = value;
  return base::refusal([&] { predict::parse_machine(good, "m", "FILE"); });
}

TEST(PlanMachine, BadFilesAreRefusedByPlace) {
  EXPECT_EQ(machine_refusal("/efficiency/gemm", 1.5),
            "FILE: efficiency: gemm: got 1.5, expected a number above 0 and at most 1");
  for (const json& keys :
       {json("flops"), json::array({1}), json::array({"flops", "links.far"}), json::array({"rank_spread"})})
    EXPECT_EQ(machine_refusal("/unmeasured", keys),
              fmt::format("FILE: unmeasured: got {}, expected a list of keys of this file, such as links.between_nodes",
                          keys.dump()));
  EXPECT_EQ(machine_refusal("/links/shared", 3), "FILE: links: shared: got 3, expected true or false");
  EXPECT_EQ(machine_refusal("/links/within_node/latency_s", nullptr),
            "FILE: links: within_node: key 'latency_s' is missing");
  EXPECT_EQ(machine_refusal("/processors", 1.5), "FILE: processors: got 1.5, expected an integer");
  EXPECT_EQ(machine_refusal("/flops/int8", 1e15), "FILE: flops: unknown key 'int8', expected bf16, fp32, fp64, fp8");
  EXPECT_THAT(machine_refusal("/memory_bytes_per_second", -1), HasSubstr("got -1, expected a number above 0"));
  EXPECT_THAT(base::refusal([] { predict::find_machine("none", configs() / "machines"); }),
              HasSubstr("--machine: 'none' not found"));
}

TEST(PlanCommandFlags, OfUnusedPlacesAreCheckedAsInTraining) {
  const settings::SettingWords mesh{{"model", {"llama-tiny"}}, {"tp", {"2"}}, {"dp", {"2"}}};
  const auto refused = [&](PlanCommandFlags flags, const settings::SettingWords& more) {
    flags.settings = mesh;
    for (const auto& [name, words] : more) flags.settings[name] = words;
    return base::refusal([&] { plan_command_inputs(flags, configs()); });
  };
  EXPECT_THAT(refused({}, {{"dead", {"dp2:0"}}}), HasSubstr("--dead: place dp2.gtp0:0 is in replica 2"));
  EXPECT_THAT(refused({}, {{"dead", {"none.json"}}}), HasSubstr("none.json"));
  EXPECT_THAT(refused({}, {{"dead", {"dp0:0"}}, {"idle", {"dp0:0"}}}), HasSubstr("is also named by --dead"));
  EXPECT_THAT(refused({}, {{"reduced_batch", {"1"}}}), HasSubstr("--reduced-batch: got 1 without --dead"));
  EXPECT_THAT(refused({.search = true}, {{"dead", {"dp0:0"}}}), HasSubstr("--search: got it with --dead"));
  EXPECT_THAT(refused({.evaluate = true}, {{"idle", {"dp0:0"}}}), HasSubstr("--evaluate: got it with --idle"));
  EXPECT_THAT(refused({.dead_share = 0.1}, {{"dead", {"dp0:0"}}}), HasSubstr("--dead-share: got 0.1 with --dead"));
  for (const double share : {1.0, -0.1, std::nan("")}) {
    const std::string words = fmt::format("got {}, expected 0 or more and below 1, such as ", share);
    EXPECT_EQ(refused({.dead_share = share}, {}), "--dead-share: " + words + "0.001");
    EXPECT_EQ(refused({.memory_margin = share}, {}), "--memory-margin: " + words + "0.03");
  }
  EXPECT_THAT(refused({.dead_seeds = 3}, {}), HasSubstr("--dead-seeds: got 3 without --dead-share"));
  EXPECT_THAT(refused({.dead_share = 0.1, .dead_seeds = 0}, {}), HasSubstr("--dead-seeds: got 0, expected 1 to 1000"));
  PlanCommandFlags flags{.settings = mesh};
  flags.settings["dead"] = {"dp0:0"};
  const PlanCommandInputs task = plan_command_inputs(flags, configs());
  EXPECT_TRUE(task.has_unused);
  EXPECT_EQ(task.request.run->mesh.ranks, 3);
  EXPECT_EQ(task.request.run->global_batch, 2) << "one microbatch for each reader of the whole mesh";
}

TEST(PlanCommandFlags, FlagsThatDoNotFitTogetherAreRefused) {
  const auto task = [](const PlanCommandFlags& flags) { return plan_command_inputs(flags, configs()); };
  EXPECT_THAT(base::refusal([&] { task({}); }), HasSubstr("--model is missing"));
  EXPECT_THAT(base::refusal([&] {
                task({.settings = {{"model", {"llama-tiny"}}, {"ranks", {"4"}}, {"gtp", {"3"}}}});
              }),
              HasSubstr("--ranks: got 4"));
  EXPECT_THAT(base::refusal([&] {
                task({.settings = {{"model", {"llama-tiny"}}, {"gather_budget", {"5 apples"}}}});
              }),
              HasSubstr("--gather-budget: got '5 apples', expected min, auto, or bytes"));
  EXPECT_THAT(base::refusal([&] {
                task({.settings = {{"model", {"llama-tiny"}}}, .measured = "nowhere"});
              }),
              HasSubstr("--model: got llama-tiny with --measured"));
  EXPECT_THAT(base::refusal([&] { task({.measured = "/nowhere"}); }), HasSubstr("--measured: '/nowhere' holds no run"));
  const PlanCommandInputs good = task({.settings = {{"model", {"llama-tiny"}}, {"ranks", {"4096"}}, {"gtp", {"8"}}}});
  EXPECT_EQ(good.request.run->mesh.dp, 512);
  EXPECT_EQ(good.request.run->global_batch, 4096);  // one microbatch
}

TEST(PlanCommandFlags, LargeDegreesOfGtpAndDpArePlanned) {
  const auto ranks_of = [](const std::string& gtp, const std::string& dp) {
    const PlanCommandFlags flags{.settings = {{"model", {"llama-tiny"}}, {"gtp", {gtp}}, {"dp", {dp}}}};
    return plan_command_inputs(flags, configs()).request.run->mesh.ranks;
  };
  EXPECT_EQ(ranks_of("1048576", "1"), 1048576);
  EXPECT_EQ(ranks_of("1024", "1024"), 1048576);
  EXPECT_THAT(base::refusal([&] { ranks_of("2048", "1024"); }),
              HasSubstr("--tp 1 * --gtp 2048 * --dp 1024: a mesh of 2097152 places, expected at most 1048576"));
  EXPECT_THAT(base::refusal([&] { ranks_of("1048576", "1048576"); }), HasSubstr("expected at most 1048576"));
}

TEST(PlanCommandFlags, MoreExpertsThanTheRoutersOfGpusSupportAreRefused) {
  nlohmann::json model = base::read_json_file(configs() / "mixtral-demo/config.json");
  model["num_local_experts"] = 1024;
  const base::TempFile file(model.dump());
  const auto plan_on = [&](const std::string& machine) {
    PlanCommandFlags flags{.settings = {{"model", {file.path()}}, {"gtp", {"2"}}, {"ep", {"2"}}}};
    flags.machine = machine;
    return plan_command_inputs(flags, configs());
  };
  EXPECT_THAT(base::refusal([&] { plan_on("h100"); }), HasSubstr("has 1024 experts in a layer, expected at most 1023"));
  EXPECT_NO_THROW(plan_on("laptop"));
}

TEST(PlanCommandFlags, ABudgetThatIsTooSmallIsRefused) {
  StepPlanRequest request = request_of({{"gtp", "2"}});
  request.gather_budget = 100;
  EXPECT_THAT([&] { plan_step(request); }, ThrowsMessage<InputError>(HasSubstr("--gather-budget")));
}

TEST(PlanCommandFlags, AStepOfTooManyEventsIsRefused) {
  for (const std::string batch : {"1000000", "2147483646"})
    EXPECT_THAT(base::refusal([&] {
                  plan_step(request_of({{"gtp", "2"}, {"global_batch", batch}}));
                }),
                HasSubstr("events each, expected at most 4000000"));
}

TEST(PlanCommandFlags, RecordedEventsArePlannedInstead) {
  const base::TempFolder folder;
  const PlanCommandFlags flags{.settings = {{"model", {"llama-tiny"}}, {"gtp", {"2"}}},
                               .events = (folder / "e.json").string()};
  PlanCommandFlags written = flags;
  written.events.clear();
  written.evaluate = true;
  const StepPlanRequest request = plan_command_inputs(written, configs()).request;
  const StepPlan step = plan_step(request);
  schedule::save_trace(folder / "e.json", {step.names(), step.trace});
  const StepPlanRequest read = plan_command_inputs(flags, configs()).request;
  EXPECT_EQ(read.kind, schedule::StepKind::evaluate);
  EXPECT_EQ(plan_step(read).schedule, step.schedule);
  EXPECT_EQ(read.run->global_batch, 2);
  // The events have three microbatches; --global-batch may repeat this number and must not contradict it.
  written.settings["global_batch"] = {"6"};
  const StepPlan three = plan_step(plan_command_inputs(written, configs()).request);
  schedule::save_trace(folder / "e.json", {three.names(), three.trace});
  EXPECT_EQ(plan_command_inputs(flags, configs()).request.run->global_batch, 6);
  PlanCommandFlags with_batch = flags;
  with_batch.settings["global_batch"] = {"6"};
  EXPECT_EQ(plan_step(plan_command_inputs(with_batch, configs()).request).schedule, three.schedule);
  with_batch.settings["global_batch"] = {"4"};
  EXPECT_THAT(base::refusal([&] { plan_command_inputs(with_batch, configs()); }),
              HasSubstr("--global-batch: is 4, expected 6: " + flags.events + " holds 3 microbatches of 2 sequences"));
  schedule::save_trace(folder / "e.json", {{"w"}, {{.parameter = 0}}});
  EXPECT_THAT(base::refusal([&] { plan_command_inputs(flags, configs()); }),
              HasSubstr("holds 1 parameters, expected the"));
}

// The first three steps are warm-up.
void write_run(const base::TempFolder& folder, const std::function<double(int step)>& exposed_ms, int steps = 6) {
  const StepPlanRequest request = request_of({{"gtp", "2"}, {"global_batch", "4"}});
  const json stored = {{"config", to_json(request.run.stored())},
                       {"model", models::LlamaConfig(even_model()).to_json()}};
  std::ofstream(folder / "config.json") << stored.dump();
  std::ofstream(folder / "summary.json") << json{
      {"step", steps}, {"trained_steps", steps}, {"gather_arena_bytes", 1'000'000}};
  std::ofstream metrics(folder / "metrics.jsonl");
  for (int step = 1; step <= steps; ++step)
    metrics << telemetry::metrics_line({.step = step,
                                        .step_ms = step <= 3 ? 1000.0 : 10.0 * step,
                                        .exposed_comm_ms = exposed_ms(step),
                                        .gathered_bytes = 4864,
                                        .reduced_bytes = 10});
  metrics << R"({"step":)";  // the run is writing this line
}

TEST(PlanMeasured, ComparesARunWithItsPlan) {
  const base::TempFolder folder;
  write_run(folder, [](int step) { return 1.0 * step; });
  const PlanCommandInputs task = plan_command_inputs({.measured = folder.path().string()}, configs());
  EXPECT_EQ(task.request.run->mesh.gtp, 2);
  EXPECT_EQ(models::decoder_of(*task.request.run.model()), even_model());
  const StepPlan step = plan_step(task.request);
  const ordered_json comparison = comparison_json(step, *task.run, "RUN");
  EXPECT_EQ(comparison["steps"], 3);
  ASSERT_EQ(comparison["rows"].size(), 5u);
  EXPECT_EQ(comparison["rows"][0]["measured"], 50.0);
  EXPECT_EQ(comparison["rows"][2]["predicted"], 2 * 1216 * 4 / 2);
  EXPECT_EQ(comparison["rows"][4]["name"], "gather_arena_bytes");
  const std::string text = comparison_text(comparison);
  EXPECT_THAT(text, HasSubstr("RUN: medians of 3 steps"));
  EXPECT_THAT(text, HasSubstr("1.000"));  // 4864 gathered bytes, as predicted

  std::ofstream(folder / "metrics.jsonl") << "";
  EXPECT_THAT(base::refusal([&] { read_measured_run(folder.path()); }), HasSubstr("holds no step"));
}

TEST(PlanMeasured, ARunWithinTheWarmUpHasItsLastStep) {
  const base::TempFolder folder;
  for (const int steps : {1, 2, 3, 4}) {
    write_run(
        folder, [](int step) { return 1.0 * step; }, steps);
    const MeasuredRun run = read_measured_run(folder.path());
    EXPECT_EQ(run.steps, 1);
    EXPECT_EQ(run.medians.exposed_comm_ms, steps);
    EXPECT_EQ(run.medians.gathered_bytes, 4864);
  }
}

TEST(PlanMeasured, StepsBeforeTheLastResumeAreLeftOut) {
  const base::TempFolder folder;
  write_run(folder, [](int step) { return 1.0 * step; });  // 6 steps
  nlohmann::json state = base::read_json_file(folder / "config.json");
  state["first_step"] = 5;
  std::ofstream(folder / "config.json") << state;
  EXPECT_EQ(read_measured_run(folder.path()).medians.exposed_comm_ms, 6);  // step 5 is a first step
  state["first_step"] = 7;
  std::ofstream(folder / "config.json") << state;
  EXPECT_THAT(base::refusal([&] { read_measured_run(folder.path()); }), HasSubstr("holds no step from 7 on"));
}

// Writes a summary of the steps since `first_step`.
void write_summary(const base::TempFolder& folder, int first_step, int last_step, const json& more) {
  json summary{{"step", last_step},
               {"trained_steps", last_step - first_step + 1},
               {"gather_arena_bytes", 1'000'000},
               {"reduce_arena_bytes", 1'000'000},
               {"exchange_scratch_bytes", 1'000}};
  summary.update(more);
  std::ofstream(folder / "summary.json") << summary;
}

// An evaluation may have a larger schedule in the same arenas.
TEST(PlanMeasured, TakesTheArenasOfTrainingSteps) {
  const base::TempFolder folder;
  write_run(folder, [](int) { return 1.0; });
  write_summary(folder, 1, 6,
                {{"train_arenas", {{"gather_bytes", 2048}, {"reduce_bytes", 512}, {"scratch_bytes", 256}}}});
  PlanCommandInputs task = plan_command_inputs({.measured = folder.path().string()}, configs());
  EXPECT_EQ(task.request.gather_budget, 2048);
  EXPECT_EQ(task.request.reduce_budget, 512 + 256);
  write_summary(folder, 1, 6, json::object());  // as older programs wrote it
  task = plan_command_inputs({.measured = folder.path().string()}, configs());
  EXPECT_EQ(task.request.gather_budget, 1'000'000);
}

// The summary of an earlier part of a run remains until the resumed run ends. The run may have had other arenas then.
TEST(PlanMeasured, ASummaryOfOtherStepsIsNotUsed) {
  const base::TempFolder folder;
  write_run(folder, [](int) { return 1.0; });
  for (const auto& [first, last] : {std::pair{1, 5}, {4, 6}}) {
    write_summary(folder, first, last, json::object());
    const MeasuredRun run = read_measured_run(folder.path());
    EXPECT_EQ(run.gather_arena_bytes, std::nullopt);
    EXPECT_EQ(run.reduce_arena_bytes, std::nullopt);
  }
}

// Steps 7 and 9 gather the weights again that the step before has prefetched: an evaluation follows step 6, and the
// update of step 8 is suppressed.
TEST(PlanMeasured, BytesAreThoseOfSteadySteps) {
  const base::TempFolder folder;
  write_run(
      folder, [](int) { return 1.0; }, 5);
  std::ofstream metrics(folder / "metrics.jsonl");
  for (int step = 1; step <= 9; ++step) {
    telemetry::StepMetrics line{.step = step, .step_ms = 10.0 * step, .gathered_bytes = 9000, .reduced_bytes = 10};
    if (step >= 4 && step <= 6) line.gathered_bytes = 4864;
    if (step == 6) line.valid_losses[""] = 2;
    if (step == 8) line.suppressed = 1;
    metrics << telemetry::metrics_line(line);
  }
  metrics.close();
  MeasuredRun run = read_measured_run(folder.path());
  EXPECT_EQ(run.medians.gathered_bytes, 4864);
  EXPECT_TRUE(run.is_steady);
  EXPECT_EQ(run.steps, 6);
  EXPECT_EQ(run.medians.step_ms, 70);  // times are those of all measured steps
}

TEST(PlanMeasured, StatesWhyGatheredBytesDiffer) {
  const base::TempFolder folder;
  write_run(folder, [](int) { return 1.0; });
  PlanCommandInputs task = plan_command_inputs({.measured = folder.path().string()}, configs());
  const StepPlan step = plan_step(task.request);
  const auto note = [&](const std::function<void(MeasuredRun&)>& change) {
    MeasuredRun run = *task.run;
    run.gather_arena_bytes = step.schedule.gather_arena;
    run.medians.gathered_bytes = step.all_ranks.gathered + 1;
    change(run);
    const ordered_json comparison = comparison_json(step, run, "RUN");
    const std::string text = comparison["notes"].empty() ? "" : comparison["notes"][0].get<std::string>();
    EXPECT_THAT(comparison_text(comparison), EndsWith(text.empty() ? "" : text + "\n"));
    return text;
  };
  EXPECT_EQ(note([&](MeasuredRun& run) { run.medians.gathered_bytes = step.all_ranks.gathered; }), "");
  EXPECT_THAT(note([](MeasuredRun& run) { run.is_steady = false; }), HasSubstr("differ: no measured step is steady"));
  EXPECT_THAT(note([](MeasuredRun& run) { run.gather_arena_bytes.reset(); }), HasSubstr("summary.json is missing"));
  EXPECT_THAT(note([](MeasuredRun& run) { run.departed_steps = 2; }), HasSubstr("2 steps departed"));
  EXPECT_THAT(note([](MeasuredRun& run) { ++*run.gather_arena_bytes; }), HasSubstr("arenas of different sizes"));
}

// Steps with a graph do not measure waits.
TEST(PlanMeasured, ValuesThatStepsDoNotMeasureAreIgnored) {
  const base::TempFolder folder;
  write_run(folder, [](int step) { return step == 5 ? std::nan("") : 7.5; });
  EXPECT_EQ(read_measured_run(folder.path()).medians.exposed_comm_ms, 7.5);
  write_run(folder, [](int) { return std::nan(""); });
  const PlanCommandInputs task = plan_command_inputs({.measured = folder.path().string()}, configs());
  EXPECT_TRUE(std::isnan(task.run->medians.exposed_comm_ms));
  EXPECT_EQ(task.run->medians.step_ms, 50);
  const ordered_json comparison = comparison_json(plan_step(task.request), *task.run, "RUN");
  EXPECT_THAT(comparison_text(comparison), ContainsRegex("exposed_comm_ms +[0-9.]+ +- +-\n"));
  EXPECT_TRUE(json::parse(comparison.dump())["rows"][1]["measured"].is_null());
}

}  // namespace
}  // namespace tessera::plan
