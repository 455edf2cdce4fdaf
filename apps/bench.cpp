#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "command_line.h"
#include "subcommands.h"
#include "tessera/base/error.h"
#include "tessera/bench/kernels.h"
#include "tessera/bench/schedule_table.h"

namespace tessera::apps {
namespace {

int bench_schedule(const Arguments& arguments) {
  CLI::App app(
      "How much communication the schedule hides: a synthetic step over links of several speeds, with several budgets",
      "tessera bench schedule");
  bench::ScheduleBench bench;
  double forward_ms = bench.layer.forward_seconds * 1e3;
  bool json = false;
  app.add_option("--layers", bench.layers, "weights of the model, all alike")->capture_default_str();
  app.add_option("--weight-bytes", bench.layer.weight_bytes, "of a layer")->capture_default_str();
  app.add_option("--compute-ms", forward_ms, "of a layer's forward; backward takes twice, the update a quarter of it")
      ->capture_default_str();
  app.add_option("--tp", bench.degrees.tp)->capture_default_str();
  app.add_option("--gtp", bench.degrees.gtp)->capture_default_str();
  app.add_option("--dp", bench.degrees.dp)->capture_default_str();
  app.add_option("--microbatches", bench.microbatches)->capture_default_str();
  app.add_flag("--tied", bench.tied, "the last layer uses the weight of the first");
  app.add_flag("--real", bench.real, "sleep instead of counting time");
  app.add_flag("--json", json, "print as JSON");
  if (!parse(app, arguments)) return 0;
  bench.layer.forward_seconds = forward_ms * 1e-3;
  bench.layer.update_seconds = bench.layer.forward_seconds / 4;
  const std::vector<bench::ScheduleRow> rows = bench::schedule_rows(bench);
  if (json)
    fmt::print("{}\n", bench::schedule_json(bench, rows).dump(2));
  else
    fmt::print("{}", bench::schedule_text(bench, rows));
  return 0;
}

int bench_kernels(const Arguments& arguments) {
  CLI::App app("Time and memory rate of the operators, beside the device's copy speed", "tessera bench kernels");
  // The device decides the defaults of the rest.
  const bool cuda = std::ranges::find(arguments, "--cuda") != arguments.end();
  bench::KernelBench bench = cuda ? bench::kernel_bench_on_cuda() : bench::KernelBench();
  std::string dtype(base::name_of(bench.type));
  bool json = false;
  app.add_flag("--cuda", bench.cuda, "on the GPU, with the sizes of Llama-3-8B; else on the CPU with small ones");
  app.add_option("--dtype", dtype, "bf16, fp32 or fp64")->capture_default_str();
  app.add_option("--tokens", bench.tokens)->capture_default_str();
  app.add_option("--hidden", bench.hidden)->capture_default_str();
  app.add_option("--ffn", bench.ffn)->capture_default_str();
  app.add_option("--q-heads", bench.q_heads)->capture_default_str();
  app.add_option("--kv-heads", bench.kv_heads)->capture_default_str();
  app.add_option("--head-dim", bench.head_dim)->capture_default_str();
  app.add_option("--vocabulary", bench.vocabulary)->capture_default_str();
  app.add_option("--parameters", bench.parameters, "of the optimizer's kernels")->capture_default_str();
  app.add_option("--repetitions", bench.repetitions)->capture_default_str();
  app.add_option("--only", bench.only, "kernels whose name holds this");
  app.add_flag("--json", json, "print as JSON");
  if (!parse(app, arguments)) return 0;
  bench.type = base::parse_dtype(dtype);
  const std::vector<bench::KernelRow> rows = bench::kernel_rows(bench);
  if (json)
    fmt::print("{}\n", bench::kernel_json(bench, rows).dump(2));
  else
    fmt::print("{}", bench::kernel_text(bench, rows));
  return 0;
}

struct Benchmark {
  std::string_view name, summary;
  int (*run)(const Arguments&);
};

constexpr Benchmark kBenchmarks[] = {
    {"kernels", "time and memory rate of the operators", bench_kernels},
    {"schedule", "how much communication the schedule hides, predicted and measured", bench_schedule},
};

}  // namespace

int run_bench(const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    fmt::print("usage: tessera bench BENCHMARK [ARGUMENTS]; tessera bench BENCHMARK --help says more\n\n");
    for (const Benchmark& benchmark : kBenchmarks) fmt::print("  {:10} {}\n", benchmark.name, benchmark.summary);
    return 0;
  }
  for (const Benchmark& benchmark : kBenchmarks)
    if (arguments[0] == benchmark.name) return benchmark.run({arguments.begin() + 1, arguments.end()});
  throw InputError("unknown benchmark '{}': tessera bench lists them", arguments[0]);
}

}  // namespace tessera::apps
