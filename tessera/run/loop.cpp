#include "tessera/run/loop.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/lanes/host_waits.h"
#include "tessera/base/memory/out_of_memory.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/hub/initial_weights.h"
#include "tessera/launch/process_settings.h"
#include "tessera/predict/model_flops.h"
#include "tessera/run/suppressions.h"
#include "tessera/settings/resolve/graph_checks.h"
#include "tessera/settings/shares.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/telemetry/gpu/gpu_monitor.h"
#include "tessera/telemetry/graph_hint.h"
#include "tessera/telemetry/peak_flops.h"
#include "tessera/telemetry/step_timeline.h"
#include "tessera/telemetry/traffic_sum.h"
#include "tessera/train/batches.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tessera/train/update/lr_schedule.h"

namespace tessera::run {
namespace {

constexpr int kMaxSkipped = 10;     // largest number of successive skipped steps
constexpr int kMeasuredEvery = 16;  // on GPUs: steps from one measurement of waits, clock and power to the next

// The training loop of one rank, with the state that its steps share.
class Loop {
 public:
  Loop(comm::World& world, const RunSetup& setup, RunFiles* files, const StopRequested& stop_requested)
      : setup_(setup),
        files_(files),
        stop_requested_(stop_requested),
        trainer_(world, settings::trainer_options(setup.run)),
        gpu_(telemetry::pci_bus_id(trainer_.parallel().device)),
        flops_(files ? settings::model_flops(setup.run) : 0),
        peak_(telemetry::peak_flops_of(setup.run->peak_flops, setup.run->dtype, trainer_.parallel().device)),
        shape_{.batch = setup.run.batch(), .seq_len = setup.run->seq_len},
        rates_(setup.run->rates),
        graph_hint_(settings::accepts_graph(setup.run.stored()), setup.run->cuda_graph),
        suppressions_(setup.run->debug_suppress.value) {
    if (suppressions_.has_injections()) injected_stop_ = trainer_.stop_counter(kDebugStop);
  }

  // Gives the trainer its initial state. Called once, before run().
  void start() {
    if (!setup_.checkpoint && setup_.run->init.empty())
      return train::set_initial_values(trainer_.runtime(), setup_.run->seed);
    if (!setup_.checkpoint) {
      for (const std::string& line : hub::load_initial_weights(trainer_, setup_.run->init))
        if (files_ != nullptr) files_->note("warning: " + line);
      return;
    }
    comm::Communicator& world = *trainer_.parallel().world;
    checkpoint::run_together(world, "loading " + setup_.checkpoint->string(), [&](const std::stop_token&) {
      load_trainer(trainer_, checkpoint::CheckpointReader(*setup_.checkpoint));
    });
  }

  void run() {
    on_first_rank("", [&] { files_->open(); });
    const settings::ResolvedRun& run = setup_.run;
    summary_.last_step = setup_.first_step - 1;
    if (summary_.last_step == run->steps) {
      summary_.metrics.set_valid_loss(evaluate_if_due(run->steps));
      save_if_due(run->steps);
    } else {
      vote_to_stop();
    }
    for (std::int64_t step = setup_.first_step; step <= run->steps && !stopping_;) {
      // The first gathers of the traced step begin in the step before it.
      if (step + 1 == run->trace_step || step == run->trace_step) trainer_.runtime().record_timeline(true);
      const std::int64_t waits_before = base::host_waits();
      enqueue(step);
      const auto suppressed = finish_down_to(is_waited_for(step) ? 0 : trainer_.steps_ahead());
      summary_.host_waits += base::host_waits() - waits_before;
      const bool is_finished = !suppressed && trainer_.pending_steps() == 0;
      if (is_finished) complete_step(step);
      stop_if_skipping();
      if (is_finished) save_if_due(step);
      // An evaluation or a checkpoint takes time. This vote finds stop requests that arrived during this time, before
      // another step begins.
      if (is_finished && step < run->steps && is_waited_for(step)) vote_to_stop();
      step = suppressed.value_or(step + 1);
    }
    if (stopping_) stop_early();
    summary_.schedules = trainer_.runtime().schedule_statistics();
    summary_.graph_steps = trainer_.graph_steps();
    summary_.matrix_bytes = trainer_.optimizer().matrix_bytes();
    summary_.expert_room = trainer_.expert_room();
    summary_.suppressed_by = suppressions_.by_counter();
    if (files_ != nullptr) files_->finish(summary_);
  }

 private:
  void vote_to_stop() { stopping_ = stopping_ || stop_vote_.any(stop_requested_(), *trainer_.parallel().world); }

  // All ranks receive a request at the same point of their loops, so they stop after the same step.
  void stop_early() {
    finish_down_to(0);
    write_line();
    stop_if_skipping();
    const std::int64_t step = summary_.last_step;
    summary_.interrupted = step < setup_.run->steps;
    if (step < setup_.first_step || !is_saved_after(step)) save(step);
  }

  // Returns whether an evaluation, checkpoint or timeline reads the results of the step before the next step may begin.
  bool is_waited_for(std::int64_t step) const {
    return is_evaluated_after(step) || is_saved_after(step) || step == setup_.run->trace_step;
  }

  void enqueue(std::int64_t step) {
    trainer_.runtime().measure_waits(is_measured(step));
    trainer_.runtime().measure_pace(graph_hint_.is_measured(step - setup_.first_step));
    const train::StepInput input = train::training_input(*setup_.data, shape_, trainer_.parallel(), step);
    const double lr = learning_rate(rates_, step);
    inject_stop(step);
    trainer_.enqueue_step(input, lr);
    enqueued_.push_back({.step = step, .lr = lr, .tokens = input.tokens});
  }

  // Raises the stop counter by an operation on the compute lane before the step. The step itself does not change. Only
  // the last rank raises its counter, because in a run with experts a single rank may raise one. The other ranks
  // receive the sum of the counters with the norm.
  void inject_stop(std::int64_t step) {
    const shard::ParallelGroups& parallel = trainer_.parallel();
    if (suppressions_.is_injected(step) && parallel.rank + 1 == parallel.world->size())
      parallel.kernels().fill(injected_stop_, quant::DType::i64, 1, 1);
  }

  // Finishes the oldest steps until `pending` steps are pending. If compute runs ahead, lines are written one step
  // later: the sum of the ranks' traffic is read when the next step is finished. Returns the suppressed step, if a step
  // was suppressed. In this case no step is pending, and the suppressed step is the next to enqueue.
  std::optional<std::int64_t> finish_down_to(int pending) {
    while (trainer_.pending_steps() > pending) {
      const train::StepResult result = trainer_.finish_step();
      telemetry::StepMetrics metrics = enqueued_.front();
      if (result.suppressed) {
        enqueued_.clear();
        discard(metrics.step, result);
        return metrics.step;
      }
      enqueued_.pop_front();
      metrics.suppressed = suppressions_.record_counted();
      telemetry::take(result, metrics);
      if (result.router) add_router(*result.router, metrics);
      metrics.tokens_per_second = static_cast<double>(metrics.tokens) / metrics.step_ms * 1e3;
      if (peak_ && files_ != nullptr)
        metrics.mfu = predict::mfu_of(flops_, result.seconds, setup_.run->mesh.ranks, *peak_);
      count(result, metrics);
      const std::string hint =
          graph_hint_.add(metrics.step - setup_.first_step, result.statistics.waiting_seconds, result.seconds);
      if (!hint.empty() && files_ != nullptr) files_->note(hint);
      write_line();
      traffic_.start(metrics, stop_requested_(), gpu_reading(metrics.step), *trainer_.parallel().world);
      unwritten_ = metrics;
    }
    return std::nullopt;
  }

  // Reading the state of a GPU takes time on the host. Therefore it is read only in the steps that measure waits.
  std::optional<telemetry::GpuReading> gpu_reading(std::int64_t step) const {
    return is_measured(step) ? gpu_.read() : std::nullopt;
  }
  bool is_measured(std::int64_t step) const {
    return (step - setup_.first_step) % kMeasuredEvery == kMeasuredEvery / 4;
  }

  void add_router(const train::RouterResult& router, telemetry::StepMetrics& metrics) const {
    metrics.aux_loss = router.aux_loss;
    metrics.z_loss = router.z_loss;
    if (setup_.run->expert_capacity > 0) metrics.expert_dropped = router.dropped;
    const auto experts = static_cast<std::ptrdiff_t>(setup_.run.model()->sizes().num_experts);
    std::optional<double> load;  // a layer without a choice has no mean load
    std::vector<std::vector<std::int64_t>> layers;
    for (auto first = router.counts.begin(); first != router.counts.end(); first += experts) {
      layers.emplace_back(first, first + experts);
      const auto total = static_cast<double>(std::accumulate(first, first + experts, std::int64_t{0}));
      const auto most = static_cast<double>(*std::max_element(first, first + experts));
      if (total > 0) load = std::max(load.value_or(0), most * static_cast<double>(experts) / total);
    }
    metrics.expert_load = load;
    const std::int64_t every = setup_.run->expert_counts;
    if (every > 0 && metrics.step % every == 0) metrics.expert_counts = std::move(layers);
  }

  // The line of a step and the sums describe only the attempt that counts, so that lines of different runs can be
  // compared. The time of suppressed attempts is part of the step's time, because the run has spent it.
  void discard(std::int64_t step, const train::StepResult& result) {
    summary_.discarded_steps += result.discarded;
    write_line();  // writes the line of the previous step, since the next call may end the run
    suppressions_.record_suppressed(step, *result.suppressed);
  }

  void write_line() {
    if (!unwritten_) return;
    traffic_.finish(*unwritten_);
    stopping_ = stopping_ || traffic_.is_any_stop_requested();
    summary_.metrics.add(*unwritten_);
    if (files_ != nullptr) files_->step(*unwritten_);
    unwritten_.reset();
  }

  // Called when no step is pending. `step` is the last finished step.
  void complete_step(std::int64_t step) {
    if (step == setup_.run->trace_step) write_timeline(step);
    unwritten_->valid_loss = evaluate_if_due(step);
    write_line();  // writes the line before the checkpoint, so that the line of each checkpoint exists
  }

  void count(const train::StepResult& result, const telemetry::StepMetrics& metrics) {
    summary_.last_step = metrics.step;
    ++summary_.trained_steps;
    summary_.unproduced_gradients += result.statistics.unproduced;
    summary_.tp_pieces += result.statistics.tp_pieces;
    summary_.tp_fallbacks += result.statistics.tp_fallbacks;
    summary_.columnwise_copies += result.statistics.columnwise_copies;
    for (std::size_t reason = 0; reason < runtime::kTpWireFallbacks.size(); ++reason)
      summary_.tp_wire_fallbacks[reason] += result.statistics.tp_wire_fallbacks[reason];
    summary_.padded_products = result.statistics.padded_products;
    if (!result.skipped) {
      skipped_in_a_row_ = 0;
      return;
    }
    ++summary_.skipped_steps;
    if (++skipped_in_a_row_ == kMaxSkipped) last_skipped_ = metrics;
  }

  // If compute runs ahead, one more step has begun when the last skipped step is finished. This next step is finished
  // too.
  void stop_if_skipping() {
    if (!last_skipped_) return;
    finish_down_to(0);
    write_line();
    throw Error(
        "step {}: the gradient was not finite for {} steps in a row (loss {}, norm {}): try a lower --lr, more "
        "--warmup-steps, or other data; weights that are imported must be finite",
        last_skipped_->step, kMaxSkipped, last_skipped_->loss, last_skipped_->grad_norm);
  }

  bool is_evaluated_after(std::int64_t step) const {
    const settings::ResolvedRun& run = setup_.run;
    return setup_.valid && (step == run->steps || (run->eval_every > 0 && step % run->eval_every == 0));
  }

  bool is_saved_after(std::int64_t step) const {
    const settings::ResolvedRun& run = setup_.run;
    return step == run->steps || (run->save_every > 0 && step % run->save_every == 0);
  }

  std::optional<double> evaluate_if_due(std::int64_t step) {
    if (!is_evaluated_after(step)) return std::nullopt;
    const settings::ResolvedRun& run = setup_.run;
    return trainer_.evaluate(train::evaluation_input(
        *setup_.valid, {.micro_batch = run->micro_batch, .seq_len = run->seq_len}, trainer_.parallel()));
  }

  void write_timeline(std::int64_t step) {
    const nlohmann::ordered_json timeline = telemetry::gather_step_timeline(trainer_.runtime());
    trainer_.runtime().record_timeline(false);
    on_first_rank("writing a timeline", [&] { files_->step_trace(step, timeline); });
  }

  void save_if_due(std::int64_t step) {
    if (is_saved_after(step)) save(step);
  }

  void save(std::int64_t step) {
    const std::filesystem::path checkpoints = hub::RunDirectory(setup_.run->out).checkpoints();
    summary_.checkpoint = checkpoints / checkpoint::step_folder_name(step);
    if (step == setup_.first_step - 1 && setup_.checkpoint &&
        checkpoint::exists_on_first_rank(*trainer_.parallel().world, summary_.checkpoint))
      return;
    save_trainer(trainer_, summary_.checkpoint, step, stored_state(setup_));
    const bool ends_resumption = setup_.checkpoint && !has_saved_;
    has_saved_ = true;
    if (!ends_resumption && setup_.run->keep == 0) return;
    on_first_rank("removing old checkpoints", [&] {
      if (ends_resumption) files_->remove_set_aside();
      if (setup_.run->keep > 0) checkpoint::prune_checkpoints(checkpoints, static_cast<int>(setup_.run->keep));
    });
  }

  // Runs `work` on rank 0 while the other ranks wait. The other ranks may wait longer than the time limit of an
  // operation, for example for a slow file system.
  void on_first_rank(const std::string& what, const std::function<void()>& work) {
    checkpoint::run_together(*trainer_.parallel().world, what, [&](const std::stop_token&) {
      if (files_ != nullptr) work();
    });
  }

  const RunSetup& setup_;
  RunFiles* files_;
  const StopRequested& stop_requested_;
  // The trainer's lanes write into the next two members, so these are declared before trainer_ and outlive it.
  telemetry::TrafficSum traffic_;  // traffic of the line in unwritten_
  StopVote stop_vote_;
  bool stopping_ = false;  // whether the run stops; has the same value on every rank
  train::Trainer trainer_;
  telemetry::GpuMonitor gpu_;
  double flops_;                // model flops of a step of all ranks (model_flops.h); set on the rank that writes files
  std::optional<double> peak_;  // peak flops per second of this rank's processor
  train::TrainingShape shape_;
  train::LrSchedule rates_;
  telemetry::GraphHint graph_hint_;
  Suppressions suppressions_;
  bool has_saved_ = false;                 // whether this run has saved a checkpoint
  std::int64_t* injected_stop_ = nullptr;  // in device memory; null without injections
  RunSummary summary_;
  std::deque<telemetry::StepMetrics> enqueued_;  // lines of the pending steps, with the values that are already known
  std::optional<telemetry::StepMetrics> unwritten_;  // the last finished step, with the values of this rank
  int skipped_in_a_row_ = 0;
  std::optional<telemetry::StepMetrics> last_skipped_;  // the step that reached kMaxSkipped
};

}  // namespace

void run_training(comm::World& world, const RunSetup& setup, RunFiles* files, const StopRequested& stop_requested) {
  launch::set_up_rank_thread();
  Loop loop(world, setup, files, stop_requested);
  loop.start();
  base::while_running([&] { loop.run(); });
}

}  // namespace tessera::run
