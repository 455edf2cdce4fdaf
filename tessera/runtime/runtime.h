// A program's steps as they run: brings weights together before their use, takes their gradients away after it, and
// records what happens as events. Layers see program.h; the training loop and the optimizer see this.
//
// The first step of a kind runs on demand and is recorded; then it is planned, the plan is checked, and later steps
// follow it (docs/schedule.md). A step that leaves its schedule in the same way on every rank continues on demand and
// is counted; after some such steps in a row a new schedule is made. Where only some ranks leave it the run ends with
// an error, and so it does where a class of ranks leaves that of a training step and there are several classes
// (shard/domain.h), or where a gradient is produced after its sum over replicas has been issued. Optimizers' events
// that the schedule has not cost what was gathered ahead, and nothing else.
//
// One object a model and rank; not thread-safe; nothing is global.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/runtime/agreement.h"
#include "tessera/runtime/event_numbers.h"
#include "tessera/runtime/measure.h"
#include "tessera/runtime/on_demand.h"
#include "tessera/runtime/parameter_entry.h"
#include "tessera/runtime/pending_step.h"
#include "tessera/runtime/program.h"
#include "tessera/runtime/replay.h"
#include "tessera/runtime/runtime_options.h"
#include "tessera/runtime/statistics.h"
#include "tessera/runtime/timeline.h"
#include "tessera/runtime/waits.h"
#include "tessera/schedule/plan/auto.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// What schedules take, all kinds of step together.
struct ScheduleStatistics {
  int planned = 0;                                                                 // schedules made
  std::int64_t departed_steps = 0, demand_gathers = 0;                             // since the first schedule
  std::int64_t gather_arena_bytes = 0, reduce_arena_bytes = 0, scratch_bytes = 0;  // allocated
  std::int64_t gather_peak_bytes = 0, reduce_peak_bytes = 0;                       // of these used
  std::int64_t on_demand_peak_bytes = 0;
  std::string indirect;  // why some GPUs do not write to each other's arenas; empty where they do, and without GPUs
};

class Runtime final : public Program {
 public:
  // `parallel` outlives the runtime.
  Runtime(shard::ParallelGroups& parallel, shard::ParameterTypes types, const RuntimeOptions& options = {});
  // Waits until nothing is under way; collective, unless a rank has failed.
  ~Runtime() override;
  // All that is under way and comes later fails at once: for who owns the runtime and gives up.
  void give_up();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  schedule::ParameterId add(shard::ParameterSpec spec) override;
  // The backward weights are parameters with residencies of their own, behind all weights. A weight's publish publishes
  // its backward weight.
  void add_backward_weights() override;
  const shard::ParameterSpec& spec(schedule::ParameterId id) const override;
  const layout::LocalLayout& local_compute(schedule::ParameterId id) const override;
  bool by_rows(schedule::ParameterId id) const override;
  const shard::ParameterTypes& types() const override { return types_; }
  base::Device device() const override { return parallel_.device; }
  shard::ComputeGroup compute_group(int domain) const override { return parallel_.compute_group(domain); }
  bool is_training() const override { return numbers_.kind() == schedule::StepKind::train; }
  int size() const { return static_cast<int>(entries_.size()); }  // backward weights included
  // Ids below are weights; from here to size() they are backward weights.
  int weights() const { return weights_ < 0 ? size() : weights_; }
  // A weight's backward weight; kNoParameter where these read the weight itself.
  schedule::ParameterId backward_weight(schedule::ParameterId id) const;
  shard::ShardedParameter& parameter(schedule::ParameterId id);
  // Ids of weights in name order: the order of checkpoints.
  std::vector<schedule::ParameterId> by_name() const;
  // Ids of weights in the order in which the last training step first consumed them (or read rows of them), the rest
  // behind: the order in which an optimizer should publish, so that the next step's first gathers start first.
  std::vector<schedule::ParameterId> by_first_use() const;

  // Of steps that begin from now on: whether compute's waits are measured where compute is a GPU's. Each costs it some
  // microseconds. They are until this says otherwise; a step with a timeline always is.
  void measure_waits(bool on) { measures_waits_ = on; }
  void begin_step(schedule::StepKind kind, int microbatches) override;
  void begin_microbatch() override;
  void end_microbatch() override;
  // main_grad is complete (the sum over replicas included) for what compute is given from then on; so are weights that
  // were published before the step and not used in it. A gradient that nobody produced is zero. Errors: microbatches
  // missing, weights not released; a rank that did other things than this one (the first differing event of both),
  // which is seen here where compute is the host, else by finish, or kKeptSteps steps later.
  void end_step() override;

  // Of the last step begun, after its last publish.
  PendingStep pending() const;
  // Blocks until compute has come to the step's end and all ranks are known to have done the same, in it and in those
  // before. In the order of the steps. Errors: what went wrong on the way there.
  StepStatistics finish(const PendingStep& step);

  // Steps by a graph. After begin_step: whether nothing but what the schedule says is to be done in this step, so that
  // a graph can hold it: it follows a schedule, of which all that goes before is under way, and leaves no timeline.
  bool can_be_graph() const;
  // A number that changes with the schedules: graphs made with another are of no use.
  int schedules_made() const { return totals_.planned; }
  // Directly before a graph is launched: the rows that its step read first travel, if their ids were known before it
  // (gather_rows). ids: as many as in the recorded step, in memory that the device reads, until the step is over.
  // Collective over the ranks that store the table.
  void bring_rows(const std::int64_t* ids);
  // After begin_step of a step that can be a graph, instead of all that happens in it up to its last publish, all of
  // which is in a graph made of such a step. Compute first waits for what that graph does not wait for itself. Errors:
  // a weight would be used in another version than the stored one.
  void repeat_step();
  // After repeat_step, or after the step from which the graph was made, whose statistics these are: a launch of it is
  // done with `end`. Collective.
  void launched(const base::Fence& end, const StepStatistics& statistics);

  WeightView consume(schedule::ParameterId weight, schedule::Pass pass) override;
  void release(schedule::ParameterId weight, schedule::Pass pass) override;
  GradientBuffer grad_buffer(schedule::ParameterId id) override;
  void produce(schedule::ParameterId id) override;
  // At most reads.per_microbatch ids. Where `written` says that they are known earlier, rows travel while compute still
  // has something else to do. Collective over the ranks that store the table.
  void gather_rows(schedule::ParameterId id, const shard::RowIds& ids, void* out, schedule::Pass pass,
                   const std::optional<base::Fence>& written = {}) override;
  // Ask for it directly before writing and produce, once a microbatch.
  RowGradient grad_rows(schedule::ParameterId id, const shard::RowIds& ids) override;
  // Outside a step: waits until nothing is under way. Gathers for the next step read the stored weights, so whoever
  // writes weights that are no update of the step before waits first.
  void settle();
  // New weights, written by compute: where the state is split (ZeRO-1) of this rank's state parts, which replicas now
  // give each other. Collective over them.
  void publish(std::span<const schedule::ParameterId> weights) override;
  void publish(schedule::ParameterId id) { publish({&id, 1}); }
  // Outside a step, before the publish of a bucket whose cast needs them: the greatest of all ranks' numbers, written
  // by compute, replaces them before compute goes on. An event of the optimizer's part. Collective over
  // ParallelGroups::casts.
  void reduce_amaxes(std::span<float> amaxes) override;
  Issued issue(const ProgramCollective& collective) override;
  void wait(const Issued& issued) override;
  // The event of a collective that somebody else carries out. Returns its place.
  int comm(const std::string& group, const std::string& op, std::int64_t bytes, schedule::Pass pass);
  void stash(std::int64_t bytes, schedule::Pass pass, std::string_view way) override;
  void fetch(std::int64_t bytes, schedule::Pass pass, std::string_view way) override;
  void count_product(quant::Format format, std::int64_t flops) override {
    statistics_.flops_by_format[static_cast<std::size_t>(format)] += flops;
  }

  shard::ParallelGroups& parallel() { return parallel_; }
  // Where compute is a queue of a GPU it must have come to the step's end.
  StepStatistics statistics() const;
  const schedule::Trace& trace() const { return agreement_.trace(); }  // of the last step begun
  // Of the kind of step; null while there is none.
  const schedule::Schedule* schedule(schedule::StepKind kind, int microbatches) const;
  ScheduleStatistics schedule_statistics() const;
  // Whether steps leave a timeline, from the next begin_step on.
  void record_timeline(bool on) { timeline_.record(on); }
  // Of the last step begun and its publishes; empty unless recorded. Waits until replicas have each other's weights.
  std::vector<TimelineSpan> timeline() const;
  std::vector<schedule::ParameterSize> sizes() const;  // by id
  shard::Cuts cuts(int domain = 0) const { return with_options(parallel_.cuts(domain), options_); }

 private:
  // The first rows of a graph's step: they travel before the graph is launched.
  struct EarlyRows {
    ParameterEntry* table = nullptr;
    shard::RowIds ids;  // in the recorded step
    base::Signal beginning;
    base::Fence may_begin;  // in the graph: the table is published, and what arrived for its own step has been read
    base::Fence after;      // what those of the step to come wait for
  };
  using Key = std::pair<schedule::StepKind, int>;  // kind, microbatches
  struct StepReplay {
    std::unique_ptr<Replay> replay;
    int departures = 0;  // in a row
  };
  schedule::ParameterId register_parameter(shard::ParameterSpec spec);
  schedule::ParameterId read_in(schedule::Pass pass, schedule::ParameterId id) const;
  std::vector<schedule::ParameterId> with_backward_weights(std::span<const schedule::ParameterId> ids) const;
  void check_backward_weights() const;
  ParameterEntry& entry(schedule::ParameterId id, const char* call);
  const ParameterEntry& entry(schedule::ParameterId id, const char* call) const;
  std::byte* staging_of(ParameterEntry& entry, schedule::ParameterId id);
  void rows_published(const ParameterEntry& entry);
  void record_comm(schedule::EventKind kind, const std::string& group, const std::string& op, std::int64_t bytes,
                   schedule::Pass pass);
  bool happens_behind(const schedule::Event& event);
  void happens(const schedule::Event& event);
  void passed();
  void depart(const schedule::Event* happens);
  void end_trace();
  bool is_worth_planning();
  std::int64_t room() const;
  void make_schedule();
  std::vector<std::string> prove(const std::vector<schedule::ParameterSize>& sizes, const schedule::Schedule& schedule);
  bool waits_are_known() const;
  void check_produced();
  void fill_unproduced();

  shard::ParallelGroups& parallel_;
  shard::ParameterTypes types_;
  RuntimeOptions options_;
  int exceptions_;  // under way when this was made
  ParameterEntries entries_;
  int weights_ = -1;  // the entries before the backward weights, once these are added
  std::unordered_map<std::string, schedule::ParameterId> ids_;
  Agreement agreement_;
  StepStatistics statistics_;
  Measure measure_;
  Timeline timeline_;
  Waits waits_;
  OnDemand on_demand_;
  Arenas arenas_;
  std::map<Key, StepReplay> step_replays_;
  Replay* replay_ = nullptr;    // of the step under way, while it follows its schedule
  Replay* prepared_ = nullptr;  // whose gathers for its next step may be under way
  ScheduleStatistics totals_;
  EarlyRows early_rows_;

  EventNumbers numbers_;
  int microbatches_ = 0;
  bool in_step_ = false, trace_open_ = false, starts_prepared_ = false;
  bool measures_waits_ = true, is_warm_ = false;
};

}  // namespace tessera::runtime
