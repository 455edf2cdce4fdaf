#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "command_line.h"
#include "configs_folder.h"
#include "subcommands.h"
#include "tessera/base/cuda_only.h"
#include "tessera/base/device.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/bench/kernels/kernels.h"
#include "tessera/bench/kernels/products.h"
#include "tessera/bench/kernels/token_products.h"
#include "tessera/bench/links.h"
#include "tessera/bench/schedule_table.h"
#include "tessera/bench/step.h"
#include "tessera/comm/local/world.h"
#include "tessera/launch/gpu_launch.h"
#include "tessera/launch/launcher_check.h"
#include "tessera/launch/process_settings.h"
#include "tessera/models/registry.h"
#include "tessera/plan/search/plan_flags.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/stop_requests.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/text/flags.h"

namespace tessera::apps {
namespace {

// Replaces the help text that the settings table gives.
void describe(CLI::App& app, std::string_view setting, const std::string& help) {
  app.get_option(settings::flag_of(setting))->description(help);
}

std::filesystem::path configs() {
  return configs_folder(base::read_environment());
}

int bench_schedule(const Arguments& arguments) {
  CLI::App app(
      "How much communication the schedule hides: runs a model's step over links of several speeds, with several "
      "budgets. Weights are transferred; compute only takes its predicted time.",
      "tessera bench schedule");
  plan::PlanCommandFlags flags{.use = settings::Use::bench};
  bool json = false, real = false;
  flags.settings["model"] = {"llama-tiny"};
  flags.settings["gtp"] = {"2"};
  settings::add_flags(app, settings::Command::bench_schedule, flags.settings);
  app.add_option("--layers", flags.layers, "number of layers (default: the model's)");
  app.add_option("--machine", flags.machine,
                 "machine that predicts compute times: NAME under configs/machines or a file")
      ->capture_default_str();
  app.add_flag("--real", real, "sleep in real time instead of using a virtual clock");
  app.add_flag("--json", json, "print as JSON");
  if (!parse(app, arguments)) return 0;
  flags.settings["backend"] = {"local"};
  const plan::PlanCommandInputs task = plan::plan_command_inputs(flags, configs());
  print_warnings(task.warnings);
  const bench::ScheduleBench bench{.run = task.request.run,
                                   .machine = task.request.machine,
                                   .coalesce_bytes = task.request.coalesce_bytes,
                                   .real = real};
  const std::vector<bench::ScheduleRow> rows = bench::schedule_rows(bench);
  const std::vector<bench::TokenProductRow> products = bench::token_product_rows();
  if (json) {
    nlohmann::ordered_json report = bench::schedule_json(bench, rows);
    report["token_products"] = bench::token_product_json(products);
    fmt::print("{}\n", report.dump(2));
  } else {
    fmt::print("{}{}", bench::schedule_text(bench, rows), bench::token_product_text(products));
  }
  return 0;
}

int bench_kernels(const Arguments& arguments) {
  CLI::App app("Measures time and rate of the operators and of a gradient sum, compared with the device's copy speed",
               "tessera bench kernels");
  // The defaults of other flags depend on the device, so this flag is read first.
  const bool cuda = std::ranges::find(arguments, "--cuda") != arguments.end();
  bench::KernelBench bench = cuda ? bench::kernel_bench_on_cuda() : bench::KernelBench();
  settings::SettingWords words{{"dtype", {std::string(name_of(bench.type))}},
                               {"threads", {std::to_string(bench.threads)}}};
  bool json = false;
  app.add_flag("--cuda", bench.cuda,
               "run on the GPU with the sizes of Llama-3-8B (default: on the CPU with small sizes)");
  settings::add_flags(app, settings::Command::bench_kernels, words);
  describe(app, "threads", fmt::format("threads of the CPU's products, attention and copies [{}]", bench.threads));
  app.add_option("--tokens", bench.tokens, "tokens of a microbatch")->capture_default_str();
  app.add_option("--hidden", bench.hidden, "hidden size")->capture_default_str();
  app.add_option("--ffn", bench.ffn, "columns of the feed-forward part")->capture_default_str();
  app.add_option("--q-heads", bench.q_heads, "query heads")->capture_default_str();
  app.add_option("--kv-heads", bench.kv_heads, "key/value heads")->capture_default_str();
  app.add_option("--head-dim", bench.head_dim, "elements of a head")->capture_default_str();
  app.add_option("--vocabulary", bench.vocabulary, "rows of the vocabulary")->capture_default_str();
  app.add_option("--experts", bench.experts, "experts of a layer")->capture_default_str();
  app.add_option("--choices", bench.choices, "experts of a token")->capture_default_str();
  app.add_option("--expert-width", bench.expert_width, "columns of an expert")->capture_default_str();
  app.add_option("--parameters", bench.parameters, "elements of the optimizer's kernels and of a sum")
      ->capture_default_str();
  app.add_option("--repetitions", bench.repetitions, "timed calls of each kernel")->capture_default_str();
  app.add_option("--only", bench.only, "run only kernels whose name contains this");
  app.add_flag("--json", json, "print as JSON");
  if (!parse(app, arguments)) return 0;
  settings::TrainConfig config;
  settings::set_from_words(config, words);
  bench.type = config.dtype;
  bench.threads = static_cast<int>(config.threads);
  const std::vector<bench::KernelRow> rows = bench::kernel_rows(bench);
  if (json)
    fmt::print("{}\n", bench::kernel_json(bench, rows).dump(2));
  else
    fmt::print("{}", bench::kernel_text(bench, rows));
  return 0;
}

// Throws InputError unless a launcher started as many processes as there are ranks.
void check_processes(const settings::ResolvedRun& run) {
  launch::check_launcher(run->backend, "nccl");
  const rendezvous::Launch launch = rendezvous::read_ranks(rendezvous::own_variables());
  if (run->backend == settings::Backend::nccl && !launch.launcher.empty() && launch.size != run->mesh.ranks)
    throw InputError("--tp {} --gtp {} --dp {}: {} ranks, expected {}, the number of processes that {} started",
                     run->mesh.tp, run->mesh.gtp, run->mesh.dp, run->mesh.ranks, launch.size, launch.launcher);
}

int bench_step(const Arguments& arguments) {
  CLI::App app("Measures whole training steps on random tokens, compared with the hardware's limits",
               "tessera bench step");
  plan::PlanCommandFlags flags{.use = settings::Use::bench};
  int warmup = bench::kWarmupSteps;
  std::filesystem::path profile;
  bool json = false;
  const std::string backend = base::cuda_device_count() > 0 ? "nccl" : "local";
  flags.settings["backend"] = {backend};
  flags.settings["steps"] = {std::to_string(bench::kMeasuredSteps)};
  settings::add_flags(app, settings::Command::bench_step, flags.settings);
  describe(app, "backend", fmt::format("ranks are threads (local) or GPUs (nccl) [{}]", backend));
  app.get_option("--backend")->option_text("local|nccl");
  describe(app, "steps", fmt::format("measured steps [{}]", bench::kMeasuredSteps));
  app.add_option("--layers", flags.layers, "number of layers (default: the model's)");
  app.add_option("--warmup", warmup, "steps before the measured ones")->capture_default_str();
  std::string routing;
  app.add_option("--routing", routing, "experts: load of the experts, even or skewed (even)")
      ->check(CLI::IsMember({"even", "skewed"}));
  app.add_option("--profile", profile, "write every kernel of two further steps to this file, for Perfetto");
  app.add_flag("--json", json, "print as JSON");
  if (!parse(app, arguments)) return 0;
  check_output("--profile", profile);
  const plan::PlanCommandInputs task = plan::plan_command_inputs(flags, configs());
  print_warnings(task.warnings);
  const settings::ResolvedRun& run = task.request.run;
  const bench::StepBench bench{.run = run,
                               .warmup = warmup,
                               .steps = static_cast<int>(run->steps),
                               .profile = profile,
                               .routing = routing == "skewed" ? bench::Routing::skewed : bench::Routing::even};
  if (!routing.empty() && !run.has_experts()) throw InputError("--routing: model '{}' has no experts", run->model);
  if (bench.steps < 1 || bench.warmup < 0)
    throw InputError("--steps, --warmup: got {} and {}, expected 1 and 0 or more", bench.steps, bench.warmup);
  check_processes(run);
  const auto body = [&](comm::World& world) {
    const bench::StepReport report = bench::measure_step(world, bench);
    if (world.rank() != 0) return;
    if (json)
      fmt::print("{}\n", bench::step_json(bench, report).dump());
    else
      fmt::print("{}", bench::step_text(bench, report));
  };
  launch::set_up_process(run->threads, run->deterministic);
  const auto ranks = static_cast<int>(run->mesh.ranks);
  if (run->backend == settings::Backend::nccl) return launch::run_with_nccl({.ranks = ranks}, body);
  comm::run_local(ranks, {}, body);
  return 0;
}

int bench_products(const Arguments& arguments) {
  CLI::App app("Measures every algorithm that cuBLASLt offers for a model's matrix products", "tessera bench products");
  bench::ProductBench bench;
  settings::SettingWords words{{"model", {"llama3-8b"}}};
  settings::add_flags(app, settings::Command::bench_products, words);
  app.add_option("--tokens", bench.tokens, "tokens of a rank's microbatch")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, settings::kMaxMicrobatchTokens));
  app.add_option("--only", bench.only, "measure only products whose name contains this, for example 'gate_up'");
  app.add_option("--candidates", bench.candidates, "algorithms of cuBLASLt that are measured for each product")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--repetitions", bench.repetitions, "timed calls of each candidate")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seconds", bench.seconds, "seconds that each candidate runs, as in long steps; 0: short runs")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  if (!parse(app, arguments)) return 0;
  settings::TrainConfig config;
  settings::set_from_words(config, words);
  bench.tp = config.mesh.tp;
  const std::filesystem::path file = models::find_model_config(config.model, configs());
  bench.model = models::read_model_config(file);
  print_warnings(models::model_config_warnings(file));
  if (!base::kHasCuda) throw InputError("bench products: this build has no CUDA");
  fmt::print("{}", bench::product_text(base::cuda_only<bench::product_rows>(bench)));
  return 0;
}

int bench_links(const Arguments& arguments) {
  CLI::App app(
      "Measures all-gathers between the GPUs of a host, by copies and by NCCL, without and with concurrent products",
      "tessera bench links");
  bench::LinkBench bench;
  std::vector<std::int64_t> megabytes;
  bool json = false;
  settings::SettingWords words;
  settings::add_flags(app, settings::Command::bench_links, words);
  describe(app, "ranks", "number of GPUs (default: all)");
  app.add_option("--megabytes", megabytes, "size that a rank sends to each peer, in MiB")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--rounds", bench.rounds, "transfers that are timed one after the other")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  app.add_flag("--json", json, "print as JSON");
  if (!parse(app, arguments)) return 0;
  if (!megabytes.empty()) bench.bytes.clear();
  for (const std::int64_t size : megabytes) bench.bytes.push_back(size << 20);
  settings::TrainConfig config;
  settings::set_from_words(config, words);
  return launch::run_with_nccl({.ranks = static_cast<int>(config.mesh.ranks)}, [&](comm::World& world) {
    const std::vector<bench::LinkRow> rows = bench::link_rows(world, bench);
    if (world.rank() == 0) fmt::print("{}", json ? bench::link_json(rows).dump(2) + "\n" : bench::link_text(rows));
  });
}

struct Benchmark {
  std::string_view name, summary;
  int (*run)(const Arguments&);
};

constexpr Benchmark kBenchmarks[] = {
    {"kernels", "time and rate of the operators", bench_kernels},
    {"step", "whole training steps compared with the hardware's limits, and exposed communication", bench_step},
    {"products", "algorithms of the matrix products of a model on a GPU", bench_products},
    {"links", "all-gathers between GPUs, by copies and by NCCL, without and with concurrent products", bench_links},
    {"schedule", "how much communication the schedule hides, predicted and measured", bench_schedule},
};

}  // namespace

int run_bench(const Arguments& arguments) {
  rendezvous::accept_stop_signals();
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    fmt::print("usage: tessera bench BENCHMARK [ARGUMENTS]; tessera bench BENCHMARK --help lists its flags\n\n");
    for (const Benchmark& benchmark : kBenchmarks) fmt::print("  {:10} {}\n", benchmark.name, benchmark.summary);
    return 0;
  }
  for (const Benchmark& benchmark : kBenchmarks)
    if (arguments[0] == benchmark.name) return benchmark.run({arguments.begin() + 1, arguments.end()});
  throw InputError("unknown benchmark '{}': tessera bench lists them", arguments[0]);
}

}  // namespace tessera::apps
