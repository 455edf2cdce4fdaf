#include "tessera/train/loop.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "tessera/base/error.h"
#include "tessera/ops/attention.h"
#include "tessera/train/batches.h"
#include "tessera/train/checkpoint_together.h"
#include "tessera/train/lr_schedule.h"
#include "tessera/train/step_timeline.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tessera/train/trainer_options.h"

namespace tessera::train {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMostSkipped = 10;  // steps in a row

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// One rank's run: what the steps share.
class Loop {
 public:
  Loop(comm::World& world, const RunPlan& plan, RunFiles* files)
      : plan_(plan),
        files_(files),
        trainer_(world, trainer_options(plan.config, plan.model)),
        rates_(lr_schedule_of(plan.config)) {}

  void run() {
    start();
    const TrainConfig& config = plan_.config;
    summary_.last_step = plan_.first_step - 1;
    if (summary_.last_step == config.steps) {
      summary_.valid_loss = evaluate_if_due(config.steps);
      save_if_due(config.steps);
    }
    for (std::int64_t step = plan_.first_step; step <= config.steps; ++step) {
      // The step's first gathers begin in the one before.
      if (step + 1 == config.trace_step || step == config.trace_step) trainer_.runtime().record_timeline(true);
      StepMetrics metrics = train(step);
      if (step == config.trace_step) write_timeline(step);
      metrics.valid_loss = evaluate_if_due(step);
      if (metrics.valid_loss) summary_.valid_loss = metrics.valid_loss;
      if (files_ != nullptr) files_->step(metrics);  // before the checkpoint: none is without its line
      stop_if_skipping(metrics);
      save_if_due(step);
    }
    std::ranges::sort(rates_of_tokens_);
    if (!rates_of_tokens_.empty()) summary_.tokens_per_second = rates_of_tokens_[rates_of_tokens_.size() / 2];
    summary_.schedules = trainer_.runtime().schedule_statistics();
    if (files_ != nullptr) files_->finish(summary_);
  }

 private:
  void start() {
    if (!plan_.checkpoint) return set_initial_values(trainer_.runtime(), plan_.config.seed);
    comm::Communicator& world = *trainer_.parallel().world;
    run_together(world, "loading " + plan_.checkpoint->string(),
                 [&](std::stop_token) { load_trainer(trainer_, CheckpointReader(*plan_.checkpoint)); });
  }

  StepMetrics train(std::int64_t step) {
    const auto start = Clock::now();
    const StepInput input = training_input(plan_, trainer_.parallel(), step);
    const double lr = learning_rate(rates_, step);
    const StepResult result = trainer_.train_step(input, lr);
    StepMetrics metrics{.step = step,
                        .loss = result.loss,
                        .grad_norm = result.grad_norm,
                        .lr = lr,
                        .tokens = input.tokens,
                        .skipped = result.skipped};
    add_traffic(result.statistics, metrics);
    metrics.step_ms = milliseconds_since(start);
    metrics.tokens_per_second = static_cast<double>(input.tokens) / metrics.step_ms * 1e3;
    count(result, metrics);
    return metrics;
  }

  // Sums over all ranks.
  void add_traffic(const shard::StepStatistics& own, StepMetrics& metrics) {
    std::array<double, 3> sums{own.exposed_seconds * 1e3, static_cast<double>(own.gathered_bytes),
                               static_cast<double>(own.reduced_bytes)};
    comm::Communicator& world = *trainer_.parallel().world;
    world.all_reduce(sums.data(), sums.size(), base::DType::fp64).synchronize();
    metrics.exposed_comm_ms = sums[0] / world.size();
    metrics.gathered_bytes = static_cast<std::int64_t>(sums[1]);
    metrics.reduced_bytes = static_cast<std::int64_t>(sums[2]);
  }

  void count(const StepResult& result, const StepMetrics& metrics) {
    summary_.last_step = metrics.step;
    summary_.loss = result.loss;
    ++summary_.trained_steps;
    summary_.unproduced_gradients += result.statistics.unproduced;
    rates_of_tokens_.push_back(metrics.tokens_per_second);
    if (!result.skipped) {
      skipped_in_a_row_ = 0;
      return;
    }
    ++summary_.skipped_steps;
    ++skipped_in_a_row_;
  }

  void stop_if_skipping(const StepMetrics& metrics) const {
    if (skipped_in_a_row_ >= kMostSkipped)
      throw Error("step {}: the gradient was not finite for {} steps in a row (loss {}, norm {})", metrics.step,
                  kMostSkipped, metrics.loss, metrics.grad_norm);
  }

  std::optional<double> evaluate_if_due(std::int64_t step) {
    const TrainConfig& config = plan_.config;
    const bool due = step == config.steps || (config.eval_every > 0 && step % config.eval_every == 0);
    if (!plan_.valid || !due) return std::nullopt;
    return trainer_.evaluate(evaluation_input(plan_, trainer_.parallel()));
  }

  void write_timeline(std::int64_t step) {
    const nlohmann::ordered_json timeline = gather_step_timeline(trainer_.runtime());
    trainer_.runtime().record_timeline(false);
    if (files_ != nullptr) files_->step_trace(step, timeline);
  }

  void save_if_due(std::int64_t step) {
    const TrainConfig& config = plan_.config;
    if (step == config.steps || (config.save_every > 0 && step % config.save_every == 0)) save(step);
  }

  void save(std::int64_t step) {
    const std::filesystem::path checkpoints = RunDirectory(plan_.config.out).checkpoints();
    summary_.checkpoint = checkpoints / step_folder_name(step);
    if (step == plan_.first_step - 1 && plan_.checkpoint && exists(summary_.checkpoint)) return;
    save_trainer(trainer_, summary_.checkpoint, step, stored_state(plan_));
    if (files_ != nullptr && plan_.config.keep > 0) prune_checkpoints(checkpoints, static_cast<int>(plan_.config.keep));
  }

  const RunPlan& plan_;
  RunFiles* files_;
  Trainer trainer_;
  LrSchedule rates_;
  RunSummary summary_;
  std::vector<double> rates_of_tokens_;
  int skipped_in_a_row_ = 0;
};

}  // namespace

void run_training(comm::World& world, const RunPlan& plan, RunFiles* files) {
  at::set_num_threads(static_cast<int>(plan.config.threads));
  ops::set_deterministic(plan.config.deterministic);
  Loop(world, plan, files).run();
}

}  // namespace tessera::train
