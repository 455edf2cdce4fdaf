#include "tessera/bench/step.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "tessera/base/cuda_only.h"
#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/bench/profile.h"
#include "tessera/launch/process_settings.h"
#include "tessera/predict/model_flops.h"
#include "tessera/settings/resolve/graph_checks.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/settings/transport.h"
#include "tessera/telemetry/graph_hint.h"
#include "tessera/telemetry/metric_summary.h"
#include "tessera/telemetry/peak_flops.h"
#include "tessera/telemetry/traffic_sum.h"
#include "tessera/train/update/optimizer.h"

namespace tessera::bench {
namespace {

constexpr int kMaxRepeats = 10;    // largest number of suppressed steps in one series of steps
constexpr int kMeasuredSteps = 5;  // additional steps on a GPU that measure waits, because measuring waits slows a GPU

models::Batch random_batch(const StepBench& bench, std::uint64_t seed) {
  const std::int64_t tokens = bench.run->micro_batch * bench.run->seq_len;
  std::mt19937_64 random(seed);
  models::Batch batch{.tokens = at::empty({tokens}, at::kLong),
                      .targets = at::empty({tokens}, at::kLong),
                      .layout = {.batch = bench.run->micro_batch,
                                 .seq_len = bench.run->seq_len,
                                 .positions = at::empty({tokens}, at::kLong),
                                 .cu_seqlens = {}}};
  const auto vocabulary = static_cast<std::uint64_t>(bench.run.model()->sizes().vocab_size);
  for (std::int64_t i = 0; i < tokens; ++i) {
    batch.tokens.mutable_data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random() % vocabulary);
    batch.targets.mutable_data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random() % vocabulary);
    batch.layout.positions.mutable_data_ptr<std::int64_t>()[i] = i % bench.run->seq_len;
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

// Returns the batches of a step. All steps use the same samples.
std::vector<models::Batch> random_batches(const StepBench& bench, int microbatches, int data_rank) {
  std::vector<models::Batch> batches;
  for (int microbatch = 0; microbatch < microbatches; ++microbatch)
    batches.push_back(
        random_batch(bench, static_cast<std::uint64_t>(data_rank) * 1000 + static_cast<std::uint64_t>(microbatch)));
  return batches;
}

// The steps of this rank.
struct Steps {
  std::vector<double> seconds, host_seconds, waiting_seconds;
  std::vector<telemetry::StepMetrics> metrics;
  train::StepResult last;

  void drop(int count) {
    for (std::vector<double>* times : {&seconds, &host_seconds, &waiting_seconds})
      times->erase(times->begin(), times->begin() + count);
    metrics.erase(metrics.begin(), metrics.begin() + count);
  }
};

// Throws if the step is not updated or not finite. Every rank has the same result and throws the same error. First
// finishes the pending steps, so that no rank waits for another.
void check_step(const train::StepResult& result, int step, int count, train::Trainer& trainer) {
  const bool is_updated = !result.skipped;
  if (is_updated && std::isfinite(result.loss) && std::isfinite(result.grad_norm)) return;
  while (trainer.pending_steps() > 0) trainer.finish_step();
  throw Error(
      "bench step: step {} of {} {} (loss {}, norm {}), expected finite numbers and an update: no figure is reported",
      step, count, is_updated ? "is not finite" : "was skipped", result.loss, result.grad_norm);
}

// Runs the steps as a training loop does. If a step is suppressed because the memory for rows of experts is too small,
// the step is repeated.
Steps take_steps(train::Trainer& trainer, const train::StepInput& input, int count) {
  Steps steps;
  int missing = count, repeats = 0;  // missing: number of steps that are not enqueued yet
  const auto finish_down_to = [&](int pending) {
    while (trainer.pending_steps() > pending) {
      train::StepResult result = trainer.finish_step();
      if (result.suppressed) {
        if (++repeats > kMaxRepeats)
          throw Error("bench step: {} steps were suppressed (stop counter '{}')", repeats, result.suppressed->counter);
        missing += 1 + result.discarded;
        continue;
      }
      check_step(result, static_cast<int>(steps.seconds.size()) + 1, count, trainer);
      steps.seconds.push_back(result.seconds);
      steps.host_seconds.push_back(result.host_seconds);
      steps.waiting_seconds.push_back(result.statistics.waiting_seconds);
      telemetry::take(result, steps.metrics.emplace_back());
      steps.last = std::move(result);
    }
  };
  while (missing > 0) {
    --missing;
    trainer.enqueue_step(input, 1e-4);
    finish_down_to(missing > 0 ? trainer.steps_ahead() : 0);
  }
  return steps;
}

// Returns the measured steps. On a GPU the metrics come from additional steps, which measure waits.
Steps measured_steps(train::Trainer& trainer, const train::StepInput& input, const StepBench& bench) {
  trainer.runtime().measure_waits(false);
  trainer.runtime().measure_pace(!bench.run->cuda_graph);
  Steps steps = take_steps(trainer, input, bench.warmup + bench.steps);
  steps.drop(bench.warmup);
  trainer.runtime().measure_pace(false);
  if (trainer.steps_ahead() == 0) return steps;
  trainer.runtime().measure_waits(true);
  Steps behind = take_steps(trainer, input, 1 + kMeasuredSteps);
  behind.drop(1);  // the host did not enqueue this step in advance
  steps.metrics = std::move(behind.metrics);
  trainer.runtime().measure_waits(false);
  return steps;
}

// Adds the metrics, and the times of the slowest rank of each step. All ranks must call this function.
void add_steps(Steps steps, comm::Communicator& all, StepReport& report) {
  std::vector<double> least;
  for (const telemetry::StepMetrics& own : steps.metrics) least.push_back(own.exposed_comm_ms);
  const auto over_ranks = [&](std::vector<double>& values, comm::ReduceOp op) {
    all.all_reduce(values.data(), static_cast<std::int64_t>(values.size()), quant::DType::fp64, op).synchronize();
  };
  over_ranks(steps.seconds, comm::ReduceOp::max);
  over_ranks(steps.waiting_seconds, comm::ReduceOp::max);
  over_ranks(least, comm::ReduceOp::min);
  telemetry::combine_over_ranks(steps.metrics, all);
  report.metrics = telemetry::medians_of(steps.metrics);
  report.median_ms = quantile(steps.seconds, 0.5) * 1e3;
  report.p10_ms = quantile(steps.seconds, 0.1) * 1e3;
  report.p90_ms = quantile(steps.seconds, 0.9) * 1e3;
  report.host_ms = quantile(steps.host_seconds, 0.5) * 1e3;
  report.waiting_ms = quantile(steps.waiting_seconds, 0.5) * 1e3;
  report.least_exposed_comm_ms = quantile(least, 0.5);
  report.loss = steps.last.loss;
  report.last = steps.last.statistics;
}

void note_tensors(base::Device device, StepReport& report) {
  if (device.kind != base::DeviceKind::cuda) return;
  const auto statistics = at::accelerator::getDeviceStats(static_cast<c10::DeviceIndex>(device.index));
  report.tensor_bytes = statistics.allocated_bytes[0].peak;  // index 0: the sum over all pools
  report.tensor_cache_bytes = statistics.reserved_bytes[0].current;
}

// Returns the longest limit of all ranks. All ranks must call this function.
StepLimit longest_limit(const StepLimit& own, comm::Communicator& all) {
  constexpr std::size_t each = 5;
  std::vector<double> numbers(each * static_cast<std::size_t>(all.size()));
  std::ranges::copy(std::array{own.products, own.attention, own.bytes, own.copy_rate, static_cast<double>(own.rounds)},
                    numbers.begin() + static_cast<std::ptrdiff_t>(each) * all.rank());
  all.all_reduce(numbers.data(), static_cast<std::int64_t>(numbers.size()), quant::DType::fp64).synchronize();
  StepLimit longest = own;
  for (std::size_t at = 0; at < numbers.size(); at += each) {
    const StepLimit limit{.products = numbers[at],
                          .attention = numbers[at + 1],
                          .bytes = numbers[at + 2],
                          .copy_rate = numbers[at + 3],
                          .rounds = static_cast<int>(numbers[at + 4])};
    if (at == 0 || limit.seconds() > longest.seconds()) longest = limit;
  }
  longest.rules = own.rules;
  return longest;
}

}  // namespace

StepReport measure_step(comm::World& world, const StepBench& bench) {
  const settings::ResolvedRun& run = bench.run;
  launch::set_up_rank_thread();
  StepReport report{.ranks = world.size()};
  const base::Device device = device_of(world);
  report.limit = measure_limit(bench, world.rank(), device);
  if (device.kind == base::DeviceKind::cuda)
    at::accelerator::resetPeakStats(static_cast<c10::DeviceIndex>(device.index));
  train::Trainer trainer(world, settings::trainer_options(run));
  comm::Communicator& all = *trainer.parallel().world;
  train::set_initial_values(trainer.runtime(), 1);
  if (run.has_experts()) set_routing(trainer.runtime(), bench.routing);

  const std::int64_t tokens = run->micro_batch * run->seq_len;
  const auto data_ranks = static_cast<std::int64_t>(trainer.parallel().losses->size());
  const auto microbatches = static_cast<int>(run->global_batch / (run->micro_batch * data_ranks));
  const std::vector<models::Batch> batches = random_batches(bench, microbatches, trainer.parallel().losses->rank());
  const train::StepInput input{.microbatches = microbatches,
                               .tokens = tokens * microbatches * data_ranks,
                               .batch = [&](int microbatch) { return batches[static_cast<std::size_t>(microbatch)]; }};
  all.barrier().synchronize();
  const Steps steps = measured_steps(trainer, input, bench);
  const base::DeviceMemory memory = base::memory_of(device);
  std::array<std::int64_t, 1> most{memory.total - memory.free};
  note_tensors(device, report);
  const runtime::ScheduleStatistics schedules = trainer.runtime().schedule_statistics();
  report.gather_arena_bytes = schedules.gather_arena_bytes;
  report.reduce_arena_bytes = schedules.reduce_arena_bytes;
  report.scratch_bytes = schedules.scratch_bytes;
  report.transport = settings::transport_of(run, schedules);
  report.indirect = schedules.indirect;
  report.tp_transport = settings::tp_transport_of(run, schedules);
  if (!bench.profile.empty()) {
    const auto two_steps = [&] {
      take_steps(trainer, input, 2);
      trainer.runtime().wait_until_idle();  // a profile contains only finished work
    };
    if (world.rank() != 0) {
      two_steps();
    } else {
      if (!base::kHasCuda) throw InputError("--profile: this build has no CUDA");
      base::cuda_only<profile>(bench.profile, two_steps);
    }
  }
  add_steps(steps, all, report);
  if (run.has_experts()) {
    report.expert_load = expert_load(steps.last.router.value().counts, run.model()->sizes().num_experts);
    report.experts = settings::expert_summary(run, trainer.expert_room(), report.last.padded_products);
  }
  report.limit = longest_limit(report.limit, all);
  all.all_reduce(most.data(), 1, quant::DType::i64, comm::ReduceOp::max).synchronize();
  report.memory_bytes = most[0];
  report.tokens_per_second_per_rank = static_cast<double>(input.tokens) / world.size() / (report.median_ms * 1e-3);
  report.flops = settings::model_flops(run) / world.size();
  report.peak_flops = telemetry::peak_flops_of(run->peak_flops, run->dtype, device);
  return report;
}

namespace {

double mfu_in(const StepReport& report) {
  return predict::mfu_of(report.flops, report.median_ms * 1e-3, 1, *report.peak_flops);
}

// The waits for weights, for which all ranks wait if they exchange no activations.
double exposed_weights_ms(const StepReport& report) {
  return report.metrics.exposed_weights_ms.value_or(report.metrics.exposed_comm_ms);
}

// Returns a remark if the limit is not a lower bound of the measured step, or "".
std::string limit_remark(const StepReport& report) {
  if (report.limit.seconds() * 1e3 <= report.median_ms) return "";
  return "the limit is above the step, so it is no lower bound here: the machine was busy while the limit was "
         "measured, "
         "or caches gave the step more bytes per second than the copies";
}

}  // namespace

nlohmann::ordered_json step_json(const StepBench& bench, const StepReport& report) {
  const double limit_ms = report.limit.seconds() * 1e3;
  nlohmann::ordered_json json{
      {"model", bench.run->model},
      {"layers", bench.run.model()->sizes().num_layers},
      {"seq_len", bench.run->seq_len},
      {"micro_batch", bench.run->micro_batch},
      {"global_batch", bench.run->global_batch},
      {"dtype", name_of(bench.run->dtype)},
      {"tp", bench.run->mesh.tp},
      {"gtp", bench.run->mesh.gtp},
      {"dp", bench.run->mesh.dp},
      {"steps", bench.steps},
      {"median_ms", report.median_ms},
      {"p10_ms", report.p10_ms},
      {"p90_ms", report.p90_ms},
      {"tokens_per_second_per_gpu", report.tokens_per_second_per_rank},
      {"mfu", report.peak_flops ? nlohmann::ordered_json(mfu_in(report)) : nlohmann::ordered_json(nullptr)},
      {"peak_memory_bytes", report.memory_bytes},
      {"tensor_bytes", report.tensor_bytes},
      {"tensor_cache_bytes", report.tensor_cache_bytes},
      {"gather_arena_bytes", report.gather_arena_bytes},
      {"reduce_arena_bytes", report.reduce_arena_bytes},
      {"exchange_scratch_bytes", report.scratch_bytes}};
  for (const telemetry::Metric& metric : telemetry::metric_rows())
    if (metric.bench) json[std::string(metric.key)] = json_of(metric, report.metrics, bench.run->dtype);
  json.update(
      {{"least_exposed_comm_ms", report.least_exposed_comm_ms},
       {"exposed_ms", {{"weights", exposed_weights_ms(report)}, {"tp", report.metrics.exposed_tp_ms.value_or(0)}}},
       {"host_ms", report.host_ms},
       {"waiting_ms", report.waiting_ms},
       {"transport", report.transport},
       {"tp_overlap", bench.run.overlaps_tp()},
       {"tp_chunks", bench.run->tp_chunks},
       {"columnwise_copies", report.last.columnwise_copies},
       {"tp_pieces", report.last.tp_pieces},
       {"tp_fallbacks", report.last.tp_fallbacks},
       {"tp_wire_fallbacks", telemetry::by_reason(report.last.tp_wire_fallbacks)},
       {"tp_transport", report.tp_transport},
       {"cuda_graph", bench.run->cuda_graph},
       {"limit_ms", limit_ms},
       {"limit_products_ms", report.limit.products * 1e3},
       {"limit_attention_ms", report.limit.attention * 1e3},
       {"limit_bytes", report.limit.bytes},
       {"update_rules", predict::rules_json(report.limit.rules)},
       {"copy_bytes_per_second", report.limit.copy_rate},
       {"limit_ratio", limit_ms / report.median_ms},
       {"loss", report.loss}});
  if (const std::string remark = limit_remark(report); !remark.empty()) json["limit_remark"] = remark;
  if (report.expert_load) {
    json["routing"] = bench.routing == Routing::even ? "even" : "skewed";
    json["expert_load"] = *report.expert_load;
  }
  if (report.experts) settings::add_expert_summary(*report.experts, json);
  return json;
}

namespace {

double gigabytes(std::int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

std::string transport_line(const StepReport& report) {
  if (report.transport.empty()) return "";
  const std::string why = report.indirect.empty() ? "" : ": " + report.indirect;
  return fmt::format("  transport      {:>9}{}\n", report.transport, why);
}

// Returns no lines for a model without experts.
std::string expert_lines(const StepReport& report) {
  if (!report.experts) return "";
  const settings::ExpertSummary& experts = *report.experts;
  const std::string moves = experts.transport.empty() ? "" : fmt::format(", tokens move by {}", experts.transport);
  const std::string pads =
      experts.padded_products == 0 ? "" : fmt::format(", {} products with padded operands", experts.padded_products);
  return fmt::format("  expert load    {:9.2f} times the mean\n  expert rows    {:>9}{}{}\n",
                     report.expert_load.value_or(0), experts.room_rows, moves, pads);
}

// Returns an empty line on a CPU, where memory is not measured.
std::string memory_line(const StepReport& report) {
  if (report.memory_bytes == 0) return "";
  return fmt::format("  memory         {:9.2f} GB: {:.2f} for tensors, which take {:.2f} at most\n",
                     gigabytes(report.memory_bytes), gigabytes(report.tensor_cache_bytes),
                     gigabytes(report.tensor_bytes));
}

// Returns an empty text if a graph would not help or is not possible.
std::string graph_line(const StepBench& bench, const StepReport& report) {
  const std::string hint = telemetry::graph_hint({.waiting_seconds = report.waiting_ms * 1e-3,
                                                  .step_seconds = report.median_ms * 1e-3,
                                                  .accepts_graph = settings::accepts_graph(bench.run.stored()),
                                                  .has_graph = bench.run->cuda_graph});
  return hint.empty() ? "" : hint + "\n";
}

std::string mfu_text(const StepReport& report) {
  if (!report.peak_flops) return "";
  return fmt::format(", mfu {:.3f} (of {:.4g} TFLOP/s)", mfu_in(report), *report.peak_flops / 1e12);
}

}  // namespace

std::string step_text(const StepBench& bench, const StepReport& report) {
  const double limit_ms = report.limit.seconds() * 1e3;
  const std::string remark = limit_remark(report);
  return fmt::format(
      "{} with {} layers, {} x {} tokens a rank and microbatch, {}, {}: {} steps\n"
      "  step           {:9.2f} ms (p10 {:.2f}, p90 {:.2f})\n"
      "  tokens/s       {:9.0f} a rank{}\n"
      "  exposed        {}\n"
      "  host           {:9.2f} ms to enqueue a step\n"
      "{}"
      "  arenas         {:9.2f} GB: gathers {:.2f}, gradients {:.2f}, scratch {:.2f}\n"
      "{}"
      "  limit          {:9.2f} ms: products {:.2f}, attention {:.2f}, {:.1f} GB at {:.2f} TB/s\n"
      "  limit / step   {:9.3f}{}\n"
      "{}{}"
      "update rules of a rank:\n{}",
      bench.run->model, bench.run.model()->sizes().num_layers, bench.run->micro_batch, bench.run->seq_len,
      name_of(bench.run->dtype), bench.run.mesh().text, bench.steps, report.median_ms, report.p10_ms, report.p90_ms,
      report.tokens_per_second_per_rank, mfu_text(report),
      std::isnan(report.metrics.exposed_comm_ms)
          ? "is not measured under a graph"
          : fmt::format("{:9.2f} ms of communication (weights {:.2f}, tp {:.2f}); {:.2f} where it is least",
                        report.metrics.exposed_comm_ms, exposed_weights_ms(report),
                        report.metrics.exposed_tp_ms.value_or(0), report.least_exposed_comm_ms),
      report.host_ms, memory_line(report),
      gigabytes(report.gather_arena_bytes + report.reduce_arena_bytes + report.scratch_bytes),
      gigabytes(report.gather_arena_bytes), gigabytes(report.reduce_arena_bytes), gigabytes(report.scratch_bytes),
      transport_line(report), limit_ms, report.limit.products * 1e3, report.limit.attention * 1e3,
      report.limit.bytes / 1e9, report.limit.copy_rate / 1e12, limit_ms / report.median_ms,
      remark.empty() ? "" : " (" + remark + ")", expert_lines(report), graph_line(bench, report),
      predict::rules_text(report.limit.rules));
}

}  // namespace tessera::bench
