#include "tessera/run/loop.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/lanes/host_waits.h"
#include "tessera/base/memory/out_of_memory.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/hub/initial_weights.h"
#include "tessera/launch/process_settings.h"
#include "tessera/predict/model_flops.h"
#include "tessera/rendezvous/states/rank_state.h"
#include "tessera/run/deadlines.h"
#include "tessera/run/pauses.h"
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

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

PausePlan pause_plan(const RunSetup& setup) {
  PausePlan plan{.last_step = setup.run->steps,
                 .eval_every = setup.run->eval_every,
                 .save_every = setup.run->save_every,
                 .eval_samples = setup.run->eval_samples};
  for (const HeldOut& set : setup.valid) plan.sets.push_back(set.data->num_samples());
  return plan;
}

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
        suppressions_(setup.run->debug_suppress.value),
        pauses_(pause_plan(setup)),
        deadlines_(setup.run->save_minutes, setup.run->stop_minutes, process_seconds()),
        evaluation_due_(setup.evaluation_due && !setup.valid.empty()) {
    if (suppressions_.has_injections()) injected_stop_ = trainer_.stop_counter(kDebugStop);
  }

  // Gives the trainer its initial state. Called once, before run().
  void start() {
    note(setup_.first_step - 1, "start");
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
    const std::int64_t checkpoint_bytes = train::checkpoint_bytes(trainer_);
    on_first_rank("", [&] {
      files_->open();
      files_->check_room(checkpoint_bytes);
    });
    summary_.checkpoint = setup_.checkpoint.value_or(std::filesystem::path());
    const settings::ResolvedRun& run = setup_.run;
    summary_.last_step = setup_.first_step - 1;
    evaluate_before_first_step();
    if (summary_.last_step == run->steps)
      save_if_due(run->steps);
    else
      vote_to_stop();
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
      // An evaluation or a checkpoint takes time. The vote finds stop requests that arrived during this time, before
      // another step begins.
      const bool is_paused = is_finished && is_waited_for(step);
      if (is_finished) save_if_due(step);
      if (is_paused && step < run->steps) vote_to_stop();
      step = suppressed.value_or(step + 1);
    }
    if (stopping_) stop_early();
    summary_.schedules = trainer_.runtime().schedule_statistics();
    summary_.graph_steps = trainer_.graph_steps();
    summary_.matrix_bytes = trainer_.optimizer().matrix_bytes();
    summary_.expert_room = trainer_.expert_room();
    summary_.suppressed_by = suppressions_.by_counter();
    note(summary_.last_step, "end");
    on_first_rank("", [&] { files_->finish(summary_); });
    if (!failed_save_.empty()) throw checkpoint::AgreedError("the last checkpoint was not saved: {}", failed_save_);
  }

 private:
  // Tells a user who asks, or who reads which rank hangs, what this rank does.
  void note(std::int64_t step, std::string_view phase) {
    rendezvous::note_phase(trainer_.parallel().rank, step, phase);
  }

  // The requests of this rank. Only rank 0 looks at the clock.
  telemetry::Requests requests() const {
    const double now = process_seconds();
    const bool leads = files_ != nullptr;
    return {.stop = stop_requested_() || (leads && deadlines_.is_stop_due(now)),
            .save = leads && deadlines_.is_save_due(now)};
  }

  void vote_to_stop() { stopping_ = stopping_ || stop_vote_.any(requests().stop, *trainer_.parallel().world); }

  // All ranks receive a request at the same point of their loops, so they stop after the same step.
  void stop_early() {
    finish_down_to(0);
    write_line();
    stop_if_skipping();
    const std::int64_t step = summary_.last_step;
    summary_.interrupted = step < setup_.run->steps || evaluation_due_;
    if (saved_step_ != step) save(step);
  }

  // Returns whether an evaluation, checkpoint or timeline reads the results of the step before the next step may begin.
  bool is_waited_for(std::int64_t step) const {
    return is_evaluated_after(step) || is_saved_after(step) || step == setup_.run->trace_step;
  }

  void enqueue(std::int64_t step) {
    note(step, "training");
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
      pauses_.add_training(result.seconds);
      deadlines_.add_step(result.seconds);
      const std::string hint =
          graph_hint_.add(metrics.step - setup_.first_step, result.statistics.waiting_seconds, result.seconds);
      if (!hint.empty() && files_ != nullptr) files_->note(hint);
      write_line();
      traffic_.start(metrics, requests(), gpu_reading(metrics.step), *trainer_.parallel().world);
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
    show_line();
    store_line(*std::exchange(unwritten_, std::nullopt));
  }
  void show_line() {
    traffic_.finish(*unwritten_);
    stopping_ = stopping_ || traffic_.requests().stop;
    save_requested_ = save_requested_ || traffic_.requests().save;
    const std::int64_t step = unwritten_->step;
    if (files_ != nullptr) files_->show(*unwritten_, pauses_.left(step), is_evaluated_after(step));
  }
  void store_line(const telemetry::StepMetrics& line) {
    summary_.metrics.add(line);
    if (files_ != nullptr) files_->store(line);
  }

  // Called when no step is pending. `step` is the last finished step.
  void complete_step(std::int64_t step) {
    if (step == setup_.run->trace_step) write_timeline(step);
    show_line();
    if (is_evaluated_after(step)) unwritten_->valid_losses = evaluate(step);
    // Stores the line before the checkpoint, so that the line of each checkpoint exists.
    store_line(*std::exchange(unwritten_, std::nullopt));
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
    return !setup_.valid.empty() && (step == run->steps || (run->eval_every > 0 && step % run->eval_every == 0));
  }

  bool is_saved_after(std::int64_t step) const {
    const settings::ResolvedRun& run = setup_.run;
    return step == run->steps || save_requested_ || (run->save_every > 0 && step % run->save_every == 0);
  }

  // Evaluates if this process trains no step, for --eval-first, and if a stop request dropped the evaluation after the
  // step of the checkpoint.
  void evaluate_before_first_step() {
    const std::int64_t step = summary_.last_step;
    const bool is_first = step == 0 && setup_.run->eval_first;
    if (setup_.valid.empty() || (step < setup_.run->steps && !is_first && !evaluation_due_)) return;
    const telemetry::StepMetrics line{.step = step, .trained = false, .valid_losses = evaluate(step)};
    if (!evaluation_due_) store_line(line);
  }

  // Returns the losses of the held-out sets. If a stop is requested before the end, sets evaluation_due_, and returns
  // no losses.
  telemetry::LossBySet evaluate(std::int64_t step) {
    const settings::ResolvedRun& run = setup_.run;
    const Stopwatch watch;
    const train::EvaluationShape shape{
        .micro_batch = run->micro_batch, .seq_len = run->seq_len, .samples = step < run->steps ? run->eval_samples : 0};
    telemetry::LossBySet losses;
    double evaluated = 0;
    note(step, "evaluation");
    vote_to_stop();
    for (const HeldOut& set : setup_.valid) {
      const auto samples = static_cast<double>(train::evaluated_samples(*set.data, shape));
      const auto between = [&](double share) {
        const double all = (evaluated + share * samples) / static_cast<double>(pauses_.samples_after(step));
        if (files_ != nullptr) files_->evaluating(step, all, watch.seconds());
        vote_to_stop();
        return !stopping_;
      };
      if (stopping_) break;
      const train::StepInput input = train::evaluation_input(*set.data, shape, trainer_.parallel());
      if (const auto loss = trainer_.evaluate(input, between)) losses[set.name] = *loss;
      evaluated += samples;
    }
    evaluation_due_ = losses.size() < setup_.valid.size();
    if (evaluation_due_) return {};
    const std::string advice = pauses_.add_evaluation(step, watch.seconds());
    if (files_ != nullptr) files_->evaluated(step, losses, watch.seconds());
    if (files_ != nullptr && !advice.empty()) files_->note(advice);
    return losses;
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
    save_requested_ = false;
    saved_step_ = step;
    note(step, "save");
    const std::filesystem::path checkpoints = hub::RunDirectory(setup_.run->out).checkpoints();
    const std::filesystem::path folder = checkpoints / checkpoint::step_folder_name(step);
    if (step == setup_.first_step - 1 && setup_.checkpoint &&
        checkpoint::exists_on_first_rank(*trainer_.parallel().world, folder)) {
      summary_.checkpoint = folder;
      return;
    }
    const Stopwatch watch;
    nlohmann::json state = stored_state(setup_);
    if (evaluation_due_) state[kEvaluationDue] = true;
    failed_save_ = failure_of([&] { save_trainer(trainer_, folder, step, std::move(state)); });
    pauses_.add_save(watch.seconds());
    deadlines_.add_save(process_seconds(), watch.seconds());
    if (!failed_save_.empty()) return count_failed_save();
    failed_in_a_row_ = 0;
    summary_.checkpoint = folder;
    remove_old_checkpoints(checkpoints);
  }

  // Runs a collective operation on files. Returns the message of an error that all ranks have in common, such as a full
  // disk. Returns an empty text if the operation succeeded.
  static std::string failure_of(const std::function<void()>& work) {
    try {
      work();
      return {};
    } catch (const checkpoint::AgreedError& error) {
      return error.what();
    }
  }

  void count_failed_save() {
    ++summary_.failed_saves;
    if (++failed_in_a_row_ >= setup_.run->save_failures)
      throw checkpoint::AgreedError("{}; {} saves in a row failed (--save-failures)", failed_save_, failed_in_a_row_);
    if (files_ != nullptr && saved_step_ < setup_.run->steps && !stopping_)
      files_->note(fmt::format("warning: {}; the run tries again when it saves next", failed_save_));
  }

  void remove_old_checkpoints(const std::filesystem::path& checkpoints) {
    const bool ends_resumption = setup_.checkpoint && !has_saved_;
    has_saved_ = true;
    if (!ends_resumption && setup_.run->keep == 0) return;
    const std::string failure = failure_of([&] {
      on_first_rank("removing old checkpoints", [&] {
        if (ends_resumption) files_->remove_set_aside();
        if (setup_.run->keep > 0)
          checkpoint::prune_checkpoints(checkpoints, static_cast<int>(setup_.run->keep), setup_.run->keep_every);
      });
    });
    if (!failure.empty() && files_ != nullptr) files_->note("warning: " + failure);
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
  Pauses pauses_;
  Deadlines deadlines_;
  bool save_requested_ = false;             // whether rank 0 requests a save; has the same value on every rank
  std::optional<std::int64_t> saved_step_;  // the step after which save() was called last
  std::string failed_save_;                 // why the last save failed; empty: it succeeded. Equal on every rank
  std::int64_t failed_in_a_row_ = 0;
  bool evaluation_due_;                    // whether a stop request dropped the evaluation after the last step
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
