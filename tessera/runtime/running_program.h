// The Program of steps that run. It records each call as an event and lets an executor do the work: Replay if the step
// follows a schedule, OnDemand if the step has no schedule or departed from its schedule.
//
// A gradient passes through these stages. grad_buffer returns its staging: a part of the reduce arena, or a buffer of
// OnDemand. The layer writes the gradient to this staging and calls produce. With a schedule, the reduction is issued
// at the planned event. Without a schedule, the reduction is issued at the produce event if spec.produced_once is set,
// else at end_microbatch. It adds the ranks' gradients to main_grad. The sum over replicas follows: with a schedule
// after the last reduction, else in end_step. end_step makes compute wait for all reductions and sums. If layers write
// main_grad (ShardedParameter::written_by_layers), grad_buffer returns main_grad, and there is no reduction.
#pragma once
#include <random>

#include "tessera/runtime/on_demand.h"
#include "tessera/runtime/program.h"
#include "tessera/runtime/replay/plans.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread.
class RunningProgram final : public Program {
 public:
  RunningProgram(StepContext& step, Plans& plans)
      : step_(step),
        plans_(plans),
        on_demand_(step),
        random_(step.options.replay.delay_seed + static_cast<std::uint64_t>(step.parallel.rank)) {}

  const schedule::Trace& trace() const { return step_.recorder.trace(); }  // trace of the last step begun
  const Stashes& stashes() const { return step_.recorder.stashes(); }      // stashes of the last step begun
  std::int64_t staged_on_demand() const { return on_demand_.staged_peak(); }
  // Sets whether waits of compute are measured, from the next step on (Runtime::measure_waits).
  void measure_waits(bool on) { measures_waits_ = on; }
  // Sets whether waits of compute for the host are measured, from the next step on (Runtime::measure_pace).
  void measure_pace(bool on) { measures_pace_ = on; }

  ParameterTable& parameters() override { return step_.parameters; }
  base::Device device() const override { return step_.parallel.device; }
  const shard::ComputeGroup& compute_group(int domain) const override { return step_.parameters.compute_group(domain); }
  bool is_training() const override { return step_.recorder.is_training(); }

  void begin_step(schedule::StepKind kind, int microbatches) override;
  // Throws Error while another microbatch is open.
  void begin_microbatch(int microbatch) override;
  void end_microbatch(int microbatch) override;
  // A gradient that no microbatch produced becomes zero. Throws Error for missing microbatches and for weights that are
  // not released. If another rank made other calls, an Error names the first different event. On a CPU, end_step throws
  // this error. On a GPU, Runtime::finish throws it, or end_step throws it kKeptSteps steps later.
  void end_step() override;

  WeightView consume(schedule::ParameterId weight, schedule::PassId pass) override;
  void release(schedule::ParameterId weight, schedule::PassId pass) override;
  GradientBuffer grad_buffer(schedule::ParameterId id, int microbatch) override;
  void produce(schedule::ParameterId id, int microbatch) override;
  // `ids` has at most reads.per_microbatch entries. Collective over the ranks that store the table.
  void gather_rows(schedule::ParameterId id, const shard::RowIds& ids, void* out, schedule::PassId pass,
                   const std::optional<base::Fence>& written) override;
  RowGradient grad_rows(schedule::ParameterId id, const shard::RowIds& ids, int microbatch) override;
  using Program::publish;
  // Under ZeRO-1, replicas exchange the updated parts of the weights. Collective over the replicas.
  void publish(std::span<const schedule::ParameterId> weights) override;
  // Recorded as an event of the optimizer. Collective over the world.
  void reduce_amaxes(std::span<float> amaxes) override;
  void reduce_counts(std::span<std::int64_t> counts) override;

  // Collective over ParallelGroups::matrices.
  Issued exchange_matrices(const MatrixExchange& exchange) override;

  Issued issue(const ProgramCollective& collective) override;
  void wait(const Issued& issued) override;
  TransferMemory take_transfer(std::int64_t bytes) override;
  void record_sum(const ScatterSum& sum) override;
  void add_in_order(void* out, std::span<const void* const> parts, quant::DType type, std::int64_t count) override;
  StashId stash(std::span<const StashItem> items, schedule::PassId pass, StashWay way) override;
  void fetch(StashId stash, schedule::PassId pass) override;
  void count_product(quant::Format format, quant::ProductKernel kernel, std::int64_t flops) override {
    const auto number = static_cast<std::size_t>(format);
    step_.statistics.flops_by_format[number] += flops;
    if (kernel == quant::ProductKernel::decoded) step_.statistics.decoded_flops[number] += flops;
  }
  void count_tp_wire_fallback(TpWireFallback reason) override {
    ++step_.statistics.tp_wire_fallbacks[static_cast<std::size_t>(reason)];
  }
  void count_padded_product() override { ++step_.statistics.padded_products; }

 private:
  void begin_event(const schedule::Event& event);
  void end_event();
  void record(const schedule::Event& event);
  bool record_update(const schedule::Event& event);
  void publish_one(schedule::ParameterId id, const base::Fence& written);
  void reduce_update(void* data, std::int64_t count, quant::DType type, comm::ReduceOp op,
                     const schedule::Event& event);
  quant::Quantized consume_columnwise(ParameterEntry& entry, schedule::ParameterId id);
  std::byte* staging_of(ParameterEntry& entry, schedule::ParameterId id, int microbatch);
  bool is_of_weights(const Issued& issued) const;
  comm::Communicator& rows_group(const ParameterEntry& entry);
  base::LaneMark mark_of_piece(int event);
  base::Fence start(comm::Communicator& group, const ProgramCollective& collective);
  void check_produced();
  void fill_unproduced();

  StepContext& step_;
  Plans& plans_;
  OnDemand on_demand_;
  std::mt19937_64 random_;  // random numbers for test delays
  bool measures_waits_ = true, measures_pace_ = false;
};

}  // namespace tessera::runtime
