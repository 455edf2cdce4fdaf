#include "tessera/bench/kernels/kernels.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/bench/kernels/kernels_cases.h"
#include "tessera/bench/kernels/kernels_clock.h"
#include "tessera/models/size_limits.h"
#include "tessera/settings/resolve/run_limits.h"

namespace tessera::bench {
namespace {

class WallClock final : public KernelClock {
 public:
  double seconds_of(int calls, const std::function<void(int)>& work) override {
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) work(call);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::vector<double> seconds_of_parts(std::span<const std::function<void()>> parts) override {
    std::vector<double> seconds;
    for (const std::function<void()>& part : parts) seconds.push_back(seconds_of(1, [&](int) { part(); }));
    return seconds;
  }
};

void check(const KernelBench& b) {
  struct Size {
    const char* name;
    std::int64_t value, most;
  };
  for (const auto& [name, value, most] : {Size{"tokens", b.tokens, settings::kMaxMicrobatchTokens},
                                          {"hidden", b.hidden, models::kMaxWidth},
                                          {"ffn", b.ffn, models::kMaxWidth},
                                          {"q-heads", b.q_heads, models::kMaxWidth},
                                          {"kv-heads", b.kv_heads, models::kMaxWidth},
                                          {"head-dim", b.head_dim, models::kMaxWidth},
                                          {"vocabulary", b.vocabulary, models::kMaxVocabulary},
                                          {"experts", b.experts, models::kMaxExperts},
                                          {"choices", b.choices, models::kMaxExperts},
                                          {"expert-width", b.expert_width, models::kMaxWidth},
                                          {"parameters", b.parameters, std::int64_t{1} << 40},
                                          {"threads", b.threads, 4096},
                                          {"repetitions", b.repetitions, 1'000'000}})
    if (value < 1 || value > most) throw InputError("{}: expected 1 to {}, got {}", name, most, value);
  if (b.choices > b.experts) throw InputError("choices: expected at most {} experts, got {}", b.experts, b.choices);
  if (b.head_dim < 2 || b.head_dim % 2 != 0) throw InputError("head-dim: expected an even number, got {}", b.head_dim);
  if (!quant::is_floating(b.type)) throw InputError("dtype: expected bf16, fp32 or fp64");
  if (b.cuda && !at::hasCUDA()) throw InputError("no CUDA device here");
}

// Returns a call's median seconds over the repetitions. Each repetition makes one call on each of `sets` sets of
// buffers.
double measure(KernelClock& clock, const KernelCase& one, int sets, int repetitions) {
  std::vector<std::function<void()>> calls;
  for (int set = 0; set < sets; ++set)
    calls.push_back(one.prepare(std::uint64_t{10} * static_cast<std::uint64_t>(set)));
  const auto work = [&](int call) { calls[static_cast<std::size_t>(call)](); };
  clock.seconds_of(sets, work);
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) seconds.push_back(clock.seconds_of(sets, work) / sets);
  std::ranges::nth_element(seconds, seconds.begin() + repetitions / 2);
  return seconds[static_cast<std::size_t>(repetitions / 2)];
}

}  // namespace

std::unique_ptr<KernelClock> make_wall_clock() {
  return std::make_unique<WallClock>();
}

KernelBench kernel_bench_on_cuda() {
  return {.cuda = true,
          .tokens = 8192,
          .hidden = 4096,
          .ffn = 14336,
          .q_heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .vocabulary = 128256,
          .experts = 128,
          .choices = 8,
          .expert_width = 768,
          .parameters = 128 << 20};
}

std::vector<KernelRow> kernel_rows(const KernelBench& bench) {
  check(bench);
  at::set_num_threads(bench.threads);
  // A repetition moves several times as many bytes as the caches hold: 60 MB on an H200, a few MB per CPU core.
  const double least = bench.cuda ? 400e6 : 32e6;
  const std::unique_ptr<KernelClock> clock = bench.cuda ? base::cuda_only<make_event_clock>() : make_wall_clock();
  std::vector<KernelRow> rows;
  for (const KernelCase& one : kernel_cases(bench, bench.cuda ? 1 << 30 : 16 << 20)) {
    if (!rows.empty() && one.name.find(bench.only) == std::string::npos) continue;
    const int sets = static_cast<int>(std::clamp(std::ceil(least / one.bytes), 1.0, 32.0));
    KernelRow row{.name = one.name,
                  .bytes = one.bytes,
                  .seconds = measure(*clock, one, sets, bench.repetitions),
                  .operations = one.operations};
    row.copy_rate = rows.empty() ? row.rate() : rows.front().rate();
    rows.push_back(row);
  }
  if (rows.size() == 1 && rows.front().name.find(bench.only) == std::string::npos)
    throw InputError("--only: no kernel's name contains '{}'", bench.only);
  return rows;
}

std::string kernel_text(const KernelBench& bench, const std::vector<KernelRow>& rows) {
  std::string text = fmt::format(
      "{} on {}, {} tokens; bytes: each input read once, each output written once\n\n{:24} {:>10} {:>10} {:>9} {:>7} "
      "{:>9}\n",
      name_of(bench.type), bench.cuda ? "cuda" : "the CPU", bench.tokens, "kernel", "MB", "us", "GB/s", "of copy",
      "GFLOP/s");
  for (const KernelRow& row : rows) {
    text += fmt::format("{:24} {:>10.1f} {:>10.1f} {:>9.0f} {:>6.0f}%", row.name, row.bytes / 1e6, row.seconds * 1e6,
                        row.rate() / 1e9, 100 * row.share());
    text += row.operations > 0 ? fmt::format(" {:>9.0f}\n", row.operation_rate() / 1e9) : "\n";
  }
  return text;
}

nlohmann::ordered_json kernel_json(const KernelBench& bench, const std::vector<KernelRow>& rows) {
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const KernelRow& row : rows) {
    table.push_back({{"kernel", row.name},
                     {"bytes", row.bytes},
                     {"seconds", row.seconds},
                     {"bytes_per_second", row.rate()},
                     {"of_copy", row.share()}});
    if (row.operations > 0) table.back()["operations_per_second"] = row.operation_rate();
  }
  return {{"benchmark", "kernels"},           {"device", bench.cuda ? "cuda" : "cpu"},
          {"dtype", name_of(bench.type)},     {"tokens", bench.tokens},
          {"hidden", bench.hidden},           {"ffn", bench.ffn},
          {"q_heads", bench.q_heads},         {"kv_heads", bench.kv_heads},
          {"head_dim", bench.head_dim},       {"vocabulary", bench.vocabulary},
          {"parameters", bench.parameters},   {"threads", bench.threads},
          {"repetitions", bench.repetitions}, {"rows", table}};
}

}  // namespace tessera::bench
