// What a layer and the training loop call while a step runs. It brings weights together before their use, takes their
// gradients away after it, and records what happens as events.
//
//   begin_step
//     begin_microbatch
//       consume / release of each weight in each pass, grad_buffer / produce of each gradient
//     end_microbatch
//   end_step                gradients of the step are complete in main_grad
//   reduce_amaxes, publish  the optimizer has written new weights, bucket by bucket
//
// The first step of a kind runs on demand and is recorded; then it is planned, the plan is checked, and later steps
// follow it (docs/schedule.md). A step that leaves its schedule in the same way on every rank goes on on demand and is
// counted; after some such steps in a row a new schedule is made. A rank that leaves it alone ends the run, and so does
// a training step of one class of ranks (shard/domain.h) where there are several.
//
// One object a model and rank; not thread-safe; nothing is global.
#pragma once
#include <array>
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
#include "tessera/runtime/entry.h"
#include "tessera/runtime/measure.h"
#include "tessera/runtime/on_demand.h"
#include "tessera/runtime/pending_step.h"
#include "tessera/runtime/replay.h"
#include "tessera/runtime/statistics.h"
#include "tessera/runtime/timeline.h"
#include "tessera/runtime/waits.h"
#include "tessera/schedule/plan/auto.h"
#include "tessera/shard/format_policy.h"
#include "tessera/shard/parallel.h"

namespace tessera::runtime {

// A compute part of a weight, valid from consume to the matching release.
struct WeightView {
  struct Plane {
    const void* data = nullptr;  // dense, the plane's local_compute.size elements
    quant::DType type = quant::DType::fp32;
  };
  std::array<Plane, shard::kMostPlanes> planes;  // as many as the parameter has; one for an encoded weight, unpacked
  // The stored matrix of an encoded weight that its products read as it is, without unpacking, and its encoding. Else
  // none.
  std::optional<quant::Quantized> encoded;
  quant::Encoding encoding;
  const Plane& weight() const { return planes.front(); }
};

// Where the weight-gradient GEMM writes: dense, compute layout. When `accumulate`, an earlier use in this microbatch
// has written there and this one adds to it. Ask for it directly before the GEMM and its produce.
struct GradientBuffer {
  void* data = nullptr;
  quant::DType dtype = quant::DType::fp32;
  bool accumulate = false;
};

// Where the gradient of read rows is written: [ids, columns], dense. The token at t adds to row slots[t], nowhere where
// that is -1; equal rows share the slot of the first. Slots, memory of the device too, are valid until produce.
struct RowGradient {
  void* data = nullptr;
  quant::DType dtype = quant::DType::fp32;
  const std::int64_t* slots = nullptr;
};

struct RuntimeOptions {
  bool scheduled = true;  // false: every step runs on demand
  bool zero = false;      // the optimizer's state is cut over replicas (ZeRO-1): each replica updates a part
  int node = 1;           // consecutive ranks whose gradients are added first (reduction_tree.h); 1: sequential
  // Bytes, kMinimum, kUnlimited; absent: the smallest with which a step is predicted to take at most 0.25 % longer than
  // with unlimited ones.
  std::optional<std::int64_t> gather_budget, reduce_budget;
  std::int64_t coalesce_bytes = 0;  // neighbours travel together up to this
  ReplayOptions replay;
  int patience = 3;              // steps in a row that leave their schedule before a new one is made
  shard::FormatPolicy wire;      // number formats of matrices as they are stored and sent ...
  shard::FormatPolicy products;  // ... and as they are multiplied
  std::optional<shard::FormatPolicy> wire_backward;  // as `wire`, of what backward passes read; absent: `wire`
  // What a parameter is cut over, by number in Parallel::domains; null: as its spec says.
  std::function<int(const shard::ParameterSpec& spec)> domain_of;
  bool pushes = true;  // GPUs of a host write to each other's arenas
};

// What schedules take, all kinds of step together.
struct ScheduleStatistics {
  int planned = 0;                                                                 // schedules made
  std::int64_t departed_steps = 0, demand_gathers = 0;                             // since the first schedule
  std::int64_t gather_arena_bytes = 0, reduce_arena_bytes = 0, scratch_bytes = 0;  // allocated
  std::int64_t gather_peak_bytes = 0, reduce_peak_bytes = 0;                       // of these used
  std::int64_t on_demand_peak_bytes = 0;
  std::string indirect;  // why some GPUs do not write to each other's arenas; empty where they do, and without GPUs
};

class Runtime {
 public:
  // `parallel` outlives the runtime.
  Runtime(shard::Parallel& parallel, shard::ParameterTypes types, const RuntimeOptions& options = {});
  // Waits until nothing is under way; collective, unless a rank has failed.
  ~Runtime();
  // All that is under way and comes later fails at once: for who owns the runtime and gives up.
  void give_up();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Before the first step, the same on every rank in the same order. Errors: a name twice.
  schedule::ParameterId add(shard::ParameterSpec spec);
  // After the last add: registers the copies of weights that backward passes read in another number format. They are
  // parameters with residencies of their own, behind all weights. consume and release in the backward pass mean the
  // copy, and a weight's publish publishes it too, so that who uses a weight never sees its copy.
  void add_backward_copies();
  int size() const { return static_cast<int>(entries_.size()); }  // copies included
  // Ids below are weights; from here to size() they are copies.
  int weights() const { return weights_ < 0 ? size() : weights_; }
  // A weight's copy for backward passes; kNoParameter where these read the weight itself.
  schedule::ParameterId backward_copy(schedule::ParameterId id) const;
  shard::ShardedParameter& parameter(schedule::ParameterId id);
  // Ids of weights in name order: the order of checkpoints.
  std::vector<schedule::ParameterId> by_name() const;
  // Ids of weights in the order in which the last training step first consumed them (or read rows of them), the rest
  // behind: the order in which an optimizer should publish, so that the next step's first gathers start first.
  std::vector<schedule::ParameterId> by_first_use() const;

  // Of steps that begin from now on: whether compute's waits are measured where compute is a GPU's. Each costs it some
  // microseconds. They are until this says otherwise; a step with a timeline always is.
  void measure_waits(bool on) { measures_waits_ = on; }
  // microbatches: how many this step has, the same on every rank. Errors: calls out of order.
  void begin_step(schedule::StepKind kind, int microbatches);
  void begin_microbatch();
  void end_microbatch();
  // main_grad is complete (the sum over replicas included) when it returns, for compute. Errors: microbatches missing,
  // weights not released; a rank that did other things than this one (the first differing event of both), which is seen
  // here where compute is the host, else by finish, or kKeptSteps steps later.
  void end_step();

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
  // which is in a graph made of such a step. Compute goes on behind what that graph does not wait for itself. Errors: a
  // weight would be used in another version than the stored one.
  void repeat_step();
  // After repeat_step, or after the step from which the graph was made, whose statistics these are: a launch of it is
  // done with `end`. Collective.
  void launched(const base::Fence& end, const StepStatistics& statistics);

  WeightView consume(schedule::ParameterId weight, schedule::Pass pass);
  void release(schedule::ParameterId weight, schedule::Pass pass);
  GradientBuffer grad_buffer(schedule::ParameterId id);
  void produce(schedule::ParameterId id);
  // Of a table whose rows travel by index (ShardedParameter::by_rows), instead of consume and of grad_buffer. ids: rows
  // of the compute part or none; at most reads.per_microbatch; in memory that the device reads, written when `written`
  // is done, by compute where there is none: known earlier, rows travel while compute still has something else to do.
  // Compute then has out [ids, columns] (the model's type), zeros for none. Collective over the ranks that
  // store it.
  void gather_rows(schedule::ParameterId id, const shard::RowIds& ids, void* out, schedule::Pass pass,
                   const std::optional<base::Fence>& written = {});
  // Ask for it directly before writing and produce, once a microbatch.
  RowGradient grad_rows(schedule::ParameterId id, const shard::RowIds& ids);
  // Outside a step: waits until nothing is under way. Gathers for the next step read the stored weights, so whoever
  // writes weights that are no update of the step before waits first.
  void settle();
  // New weights, written by compute: where the state is split (ZeRO-1) of this rank's state parts, which replicas now
  // give each other. Collective over them.
  void publish(std::span<const schedule::ParameterId> weights);
  void publish(schedule::ParameterId id) { publish({&id, 1}); }
  // Outside a step, before the publish of a bucket whose cast needs them: the greatest of all ranks' numbers, written
  // by compute, replaces them before compute goes on. An event of the optimizer's part. Collective over
  // Parallel::casts.
  void reduce_amaxes(std::span<float> amaxes);
  // Another collective of the program is issued now.
  void comm(const std::string& group, const std::string& op, std::int64_t bytes, schedule::Pass pass);
  // Bytes of activations are kept from here (stash) until backward takes them back (fetch). way: "keep" or "shard".
  void stash(std::int64_t bytes, schedule::Pass pass, std::string_view way);
  void fetch(std::int64_t bytes, schedule::Pass pass, std::string_view way);
  // A collective of the program brings this rank so many bytes of activations, or of their gradients.
  void count_activations(quant::Format format, std::int64_t bytes) {
    statistics_.activations_by_format[static_cast<std::size_t>(format)] += bytes;
  }
  // A product with a weight has been enqueued.
  void count_product(quant::Format format, std::int64_t flops) {
    statistics_.flops_by_format[static_cast<std::size_t>(format)] += flops;
  }
  // Waits for a collective of the program; the time counts as exposed.
  void wait(const base::Fence& fence);

  bool is_training() const { return kind_ == schedule::StepKind::train; }
  shard::Parallel& parallel() { return parallel_; }
  const shard::ParameterTypes& types() const { return types_; }
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
  shard::Cuts cuts(int domain = 0) const {
    shard::Cuts cuts = parallel_.cuts(domain);
    cuts.zero = options_.zero;
    cuts.node = options_.node;
    return cuts;
  }

 private:
  // The first rows of a graph's step: they travel before the graph is launched.
  struct EarlyRows {
    Entry* table = nullptr;
    shard::RowIds ids;  // in the recorded step
    base::Signal beginning;
    base::Fence may_begin;  // in the graph: the table is published, and what arrived for its own step has been read
    base::Fence after;      // what those of the step to come wait for
  };
  using Key = std::pair<schedule::StepKind, int>;  // kind, microbatches
  struct Plan {
    std::unique_ptr<Replay> replay;
    int departures = 0;  // in a row
  };
  schedule::ParameterId register_parameter(shard::ParameterSpec spec);
  schedule::ParameterId read_in(schedule::Pass pass, schedule::ParameterId id) const;
  std::vector<schedule::ParameterId> with_copies(std::span<const schedule::ParameterId> ids) const;
  void check_copies() const;
  Entry& entry(schedule::ParameterId id, const char* call);
  std::byte* staging_of(Entry& entry, schedule::ParameterId id);
  void rows_published(const Entry& entry);
  schedule::Event event_of(schedule::EventKind kind, schedule::Pass pass, schedule::ParameterId id) const;
  schedule::Event comm_event(schedule::EventKind kind, const std::string& group, const std::string& op,
                             std::int64_t bytes, schedule::Pass pass);
  void record_comm(schedule::EventKind kind, const std::string& group, const std::string& op, std::int64_t bytes,
                   schedule::Pass pass);
  bool happens_behind(const schedule::Event& event);
  void happens(const schedule::Event& event);
  void passed();
  void depart();
  void end_trace();
  bool is_worth_planning();
  std::int64_t room() const;
  void make_schedule();
  std::vector<std::string> prove(const std::vector<schedule::ParameterSize>& sizes, const schedule::Schedule& schedule);
  bool waits_are_known() const;
  void fill_unproduced();

  shard::Parallel& parallel_;
  shard::ParameterTypes types_;
  RuntimeOptions options_;
  int exceptions_;  // under way when this was made
  Entries entries_;
  int weights_ = -1;  // the entries before the copies, once these are added
  std::unordered_map<std::string, schedule::ParameterId> ids_;
  Agreement agreement_;
  StepStatistics statistics_;
  Measure measure_;
  Timeline timeline_;
  Waits waits_;
  OnDemand on_demand_;
  Arenas arenas_;
  std::map<Key, Plan> plans_;
  Replay* replay_ = nullptr;    // of the step under way, while it follows its schedule
  Replay* prepared_ = nullptr;  // whose gathers for its next step may be under way
  ScheduleStatistics totals_;
  EarlyRows early_rows_;

  schedule::StepKind kind_ = schedule::StepKind::train;
  int microbatches_ = 0, microbatch_ = -1;  // microbatch_: begun so far - 1
  bool in_step_ = false, in_microbatch_ = false, trace_open_ = false, starts_prepared_ = false;
  bool measures_waits_ = true, is_warm_ = false;
  std::unordered_map<std::string, int> comm_ordinals_;
};

}  // namespace tessera::runtime
