#include "tessera/bench/step.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <random>

#include "tessera/base/device.h"
#include "tessera/bench/profile.h"
#include "tessera/ops/attention.h"
#include "tessera/train/optimizer.h"
#include "tessera/train/trainer_options.h"

namespace tessera::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kPeakFlops = 989e12;  // bf16, dense, of a Hopper GPU

nn::Batch random_batch(const StepBench& bench, std::uint64_t seed) {
  const std::int64_t tokens = bench.config.micro_batch * bench.config.seq_len;
  std::mt19937_64 random(seed);
  nn::Batch batch{.tokens = at::empty({tokens}, at::kLong),
                  .targets = at::empty({tokens}, at::kLong),
                  .layout = {.batch = bench.config.micro_batch,
                             .seq_len = bench.config.seq_len,
                             .positions = at::empty({tokens}, at::kLong),
                             .cu_seqlens = {}}};
  const auto vocabulary = static_cast<std::uint64_t>(bench.model.vocab_size);
  for (std::int64_t i = 0; i < tokens; ++i) {
    batch.tokens.mutable_data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random() % vocabulary);
    batch.targets.mutable_data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random() % vocabulary);
    batch.layout.positions.mutable_data_ptr<std::int64_t>()[i] = i % bench.config.seq_len;
  }
  return batch;
}

base::Device device_of(comm::World& world) {
  std::vector<int> everyone;
  for (int rank = 0; rank < world.size(); ++rank) everyone.push_back(rank);
  return world.make_group("device", {everyone})->kernels().device();
}

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(std::lround(part * static_cast<double>(values.size() - 1)))];
}

// Made beforehand: a step takes the same samples each time.
std::vector<nn::Batch> random_batches(const StepBench& bench, int microbatches, int data_rank) {
  std::vector<nn::Batch> batches;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch)
    batches.push_back(
        random_batch(bench, static_cast<std::uint64_t>(data_rank) * 1000 + static_cast<std::uint64_t>(microbatch)));
  return batches;
}

// Of this rank's steps, in seconds.
struct Times {
  std::vector<double> steps, exposed, host;
  double loss = 0;  // of the last

  void drop(int count) {
    for (std::vector<double>* times : {&steps, &exposed, &host}) times->erase(times->begin(), times->begin() + count);
  }
};

// As a training loop takes them. A step's time is from the end of the one before, of the first from its beginning.
Times take_steps(train::Trainer& trainer, const train::StepInput& input, int count) {
  Times times;
  auto last = Clock::now();
  const auto finish_down_to = [&](int pending) {
    while (trainer.pending_steps() > pending) {
      const train::StepResult result = trainer.finish_step();
      const auto now = Clock::now();
      times.steps.push_back(std::chrono::duration<double>(now - last).count());
      times.exposed.push_back(result.statistics.exposed_seconds);
      times.host.push_back(result.host_seconds);
      times.loss = result.loss;
      last = now;
    }
  };
  for (int step = 0; step < count; ++step) {
    trainer.enqueue_step(input, 1e-4);
    finish_down_to(trainer.steps_ahead());
  }
  finish_down_to(0);
  return times;
}

}  // namespace

StepReport measure_step(comm::World& world, const StepBench& bench) {
  const train::TrainConfig& config = bench.config;
  at::set_num_threads(static_cast<int>(config.threads));
  ops::set_deterministic(bench.deterministic);
  StepReport report{.ranks = world.size()};
  report.limit = measure_limit(bench, device_of(world));
  train::Trainer trainer(world, train::trainer_options(config, bench.model));
  comm::Communicator& all = *trainer.parallel().world;
  const base::Device device = trainer.parallel().device;
  train::set_initial_values(trainer.runtime(), 1);

  const std::int64_t tokens = config.micro_batch * config.seq_len;
  const auto data_ranks = static_cast<std::int64_t>(trainer.parallel().gtp_size()) * trainer.parallel().dp_size();
  const auto microbatches = static_cast<int>(config.global_batch / (config.micro_batch * data_ranks));
  const std::vector<nn::Batch> batches = random_batches(bench, microbatches, trainer.parallel().data->rank());
  const train::StepInput input{.microbatches = microbatches,
                               .tokens = tokens * microbatches * data_ranks,
                               .batch = [&](int microbatch) { return batches[static_cast<std::size_t>(microbatch)]; }};
  all.barrier().synchronize();
  Times times = take_steps(trainer, input, bench.warmup + bench.steps);
  times.drop(bench.warmup);
  report.loss = times.loss;
  std::array<std::int64_t, 1> most{base::used_memory(device)};
  if (!bench.profile.empty()) {
    const auto two_steps = [&] { take_steps(trainer, input, 2); };
    if (world.rank() == 0)
      profile(bench.profile, two_steps);
    else
      two_steps();
  }
  all.all_reduce(times.steps.data(), bench.steps, base::DType::fp64, comm::ReduceOp::max).synchronize();
  all.all_reduce(times.exposed.data(), bench.steps, base::DType::fp64).synchronize();
  all.all_reduce(most.data(), 1, base::DType::i64, comm::ReduceOp::max).synchronize();
  report.memory_bytes = most[0];
  report.median_ms = quantile(times.steps, 0.5) * 1e3;
  report.p10_ms = quantile(times.steps, 0.1) * 1e3;
  report.p90_ms = quantile(times.steps, 0.9) * 1e3;
  report.host_ms = quantile(times.host, 0.5) * 1e3;
  report.exposed_comm_ms = quantile(times.exposed, 0.5) / world.size() * 1e3;
  report.tokens_per_second_per_rank = static_cast<double>(input.tokens) / world.size() / quantile(times.steps, 0.5);
  report.flops = step_flops(bench);
  return report;
}

nlohmann::ordered_json step_json(const StepBench& bench, const StepReport& report) {
  const double limit_ms = report.limit.seconds() * 1e3;
  return {{"model", bench.config.model},
          {"layers", bench.model.num_layers},
          {"seq_len", bench.config.seq_len},
          {"micro_batch", bench.config.micro_batch},
          {"global_batch", bench.config.global_batch},
          {"dtype", base::name_of(bench.config.dtype)},
          {"tp", bench.config.tp},
          {"gtp", bench.config.gtp},
          {"dp", bench.config.dp},
          {"steps", bench.steps},
          {"median_ms", report.median_ms},
          {"p10_ms", report.p10_ms},
          {"p90_ms", report.p90_ms},
          {"tokens_per_second_per_gpu", report.tokens_per_second_per_rank},
          {"mfu", report.flops / (report.median_ms * 1e-3) / kPeakFlops},
          {"peak_memory_bytes", report.memory_bytes},
          {"exposed_comm_ms", report.exposed_comm_ms},
          {"host_ms", report.host_ms},
          {"cuda_graph", bench.config.cuda_graph},
          {"limit_ms", limit_ms},
          {"limit_products_ms", report.limit.products * 1e3},
          {"limit_attention_ms", report.limit.attention * 1e3},
          {"limit_bytes", report.limit.bytes},
          {"copy_bytes_per_second", report.limit.copy_rate},
          {"limit_ratio", limit_ms / report.median_ms},
          {"loss", report.loss}};
}

std::string step_text(const StepBench& bench, const StepReport& report) {
  const double limit_ms = report.limit.seconds() * 1e3;
  return fmt::format(
      "{} with {} layers, {} x {} tokens a rank and microbatch, {}, tp {} gtp {} dp {}: {} steps\n"
      "  step           {:9.2f} ms (p10 {:.2f}, p90 {:.2f})\n"
      "  tokens/s       {:9.0f} a rank, mfu {:.3f} (of {:.0f} TFLOP/s)\n"
      "  exposed        {}\n"
      "  host           {:9.2f} ms to enqueue a step\n"
      "  memory         {:9.2f} GB\n"
      "  limit          {:9.2f} ms: products {:.2f}, attention {:.2f}, {:.1f} GB at {:.2f} TB/s\n"
      "  limit / step   {:9.3f}\n",
      bench.config.model, bench.model.num_layers, bench.config.micro_batch, bench.config.seq_len,
      base::name_of(bench.config.dtype), bench.config.tp, bench.config.gtp, bench.config.dp, bench.steps,
      report.median_ms, report.p10_ms, report.p90_ms, report.tokens_per_second_per_rank,
      report.flops / (report.median_ms * 1e-3) / kPeakFlops, kPeakFlops / 1e12,
      std::isnan(report.exposed_comm_ms) ? "is not measured under a graph"
                                         : fmt::format("{:9.2f} ms of communication", report.exposed_comm_ms),
      report.host_ms, static_cast<double>(report.memory_bytes) / 1e9, limit_ms, report.limit.products * 1e3,
      report.limit.attention * 1e3, report.limit.bytes / 1e9, report.limit.copy_rate / 1e12,
      limit_ms / report.median_ms);
}

}  // namespace tessera::bench
