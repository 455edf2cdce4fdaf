// The interface through which the layers of a model use weights, gradients and collectives while a step runs.
// RunningProgram implements Program for steps that run, DryRun for steps that are only recorded.
//
//   begin_step
//     begin_microbatch
//       consume / release of each weight in each pass, grad_buffer / produce of each gradient,
//       issue / wait of the program's collectives, stash / fetch of activations
//     end_microbatch
//   end_step, then publish of the updated weights
//
// A weight may be read from consume to the matching release; afterwards its memory is reused. A gradient is written
// between grad_buffer and produce. After produce the gradient is reduced while later layers compute. When end_step
// returns, main_grad is complete for work that is then enqueued on compute. All calls come from one thread.
//
// Microbatches begin in order. The calls of a microbatch name the microbatch. A RunningProgram has one open microbatch
// at a time. A DryRun may have several, and each has the events that it has alone.
//
// The calls of a step may differ from those of earlier steps if they differ in the same way on all ranks. Such a step
// departs from its schedule and is slower. If replicas have unequal numbers of ranks, a training step that departs from
// its schedule is an error. If a rank makes other calls than the other ranks, the run ends with an error.
//
// The work of a layer must not depend on the values of tensors, since a dry run has none. Layers allocate on device()
// or on the device of their operands, and compute with the operators of ops/, which work on shapes in a dry run.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "tessera/quant/formats/product_kernel.h"
#include "tessera/runtime/collective.h"
#include "tessera/runtime/parameter_table.h"
#include "tessera/runtime/record/stashes.h"
#include "tessera/runtime/transfers/transfer_arena.h"
#include "tessera/runtime/weight_access.h"
#include "tessera/shard/rows/row_kernels.h"

namespace tessera::runtime {

class Program {
 public:
  virtual ~Program() = default;

  virtual ParameterTable& parameters() = 0;  // layers register and look up their parameters here
  virtual base::Device device() const = 0;   // device of weights and activations; kNoDevice in a dry run
  // Describes the ranks of the program's collectives over a domain.
  virtual const shard::ComputeGroup& compute_group(int domain) const = 0;
  // Returns the index of this rank among the group's live ranks.
  int group_rank(int domain = 0) const { return compute_group(domain).rank; }
  int group_size(int domain = 0) const { return compute_group(domain).size; }  // number of live ranks
  // Number of places in the group, with and without a rank. If this number exceeds 1, every rank issues the collectives
  // of the program.
  int nominal_size(int domain = 0) const { return compute_group(domain).nominal_size; }
  virtual bool is_training() const = 0;  // whether the current step trains

  // `microbatches` is the number of microbatches of this step, equal on every rank. begin_step, end_microbatch and
  // end_step throw Error if they are called out of order. If another rank makes other calls, any later call that waits
  // may throw Error. On a CPU, end_step throws it at the latest.
  virtual void begin_step(schedule::StepKind kind, int microbatches) = 0;
  virtual void begin_microbatch(int microbatch) = 0;  // from 0; throws Error if the program cannot open it
  virtual void end_microbatch(int microbatch) = 0;    // throws Error if a consumed weight is not released
  virtual void end_step() = 0;

  virtual WeightView consume(schedule::ParameterId weight, schedule::PassId pass) = 0;
  virtual void release(schedule::ParameterId weight, schedule::PassId pass) = 0;
  // Called directly before the product that writes the gradient. The program's next event must be the produce event.
  virtual GradientBuffer grad_buffer(schedule::ParameterId weight, int microbatch) = 0;
  virtual void produce(schedule::ParameterId weight, int microbatch) = 0;
  // Writes the rows `ids` of a table to out [ids, columns], in the model's type, before compute continues. Called once
  // per microbatch and pass. `ids` is device memory. An id outside this rank's rows gives zeros. The ids are read after
  // the fence `written`, or, if it is absent, after all work that is enqueued on compute. With an early fence, the rows
  // travel while compute is busy.
  virtual void gather_rows(schedule::ParameterId weight, const shard::RowIds& ids, void* out, schedule::PassId pass,
                           const std::optional<base::Fence>& written) = 0;
  // Called once per microbatch, directly before the gradient is written. The caller then calls produce.
  virtual RowGradient grad_rows(schedule::ParameterId weight, const shard::RowIds& ids, int microbatch) = 0;

  // Called after the step, when the update of these weights is enqueued on compute. Gathers of these weights for the
  // next step may then start.
  virtual void publish(std::span<const schedule::ParameterId> weights) = 0;
  void publish(schedule::ParameterId weight) { publish({&weight, 1}); }
  // Replaces each amax by its maximum over all ranks. Called after the step, before the publish event of weights whose
  // format needs the amaxes.
  virtual void reduce_amaxes(std::span<float> amaxes) = 0;
  // Replaces each count by its sum over all ranks. `counts` is device memory. Called after the step, before the publish
  // event of weights that depend on the counts.
  virtual void reduce_counts(std::span<std::int64_t> counts) = 0;

  // Starts an exchange of the optimizer after the work that is enqueued on compute. Called after the step, before the
  // publish event of weights that depend on the exchange. Call wait directly before compute first uses `target`. The
  // redistribution and the memory stay valid until then. Without other ranks, the exchange is not recorded.
  virtual Issued exchange_matrices(const MatrixExchange& exchange) = 0;

  // issue starts a collective after the work that is enqueued on compute. Call wait directly before compute first uses
  // `out`.
  virtual Issued issue(const ProgramCollective& collective) = 0;
  virtual void wait(const Issued& issued) = 0;
  // Returns device memory into which peers write pieces (ProgramCollective::out). The memory stays in use until `hold`
  // is released. Work that is enqueued on compute after the release may still read the memory. All ranks make these
  // calls in the same order.
  virtual TransferMemory take_transfer(std::int64_t bytes) = 0;
  // Records that the next work on compute adds the parts of a scatter. The caller has waited for the pieces.
  virtual void record_sum(const ScatterSum& sum) = 0;
  // Enqueues a sum on compute: out = the sum of `parts` in their order. The sum is computed in the accumulator type and
  // rounded once to `type`. The parts have `count` elements each.
  virtual void add_in_order(void* out, std::span<const void* const> parts, quant::DType type, std::int64_t count) = 0;
  // Records that autograd keeps the items from stash to fetch. Until then their memory stays allocated and unchanged.
  virtual StashId stash(std::span<const StashItem> items, schedule::PassId pass, StashWay way) = 0;
  // Called once for each stash, in the same step and microbatch, directly before backward reads the items. Throws Error
  // if the stash is unknown or was fetched before.
  virtual void fetch(StashId stash, schedule::PassId pass) = 0;
  // Counts the operations of one product with a weight, and how the device computes the product.
  virtual void count_product(quant::Format format, quant::ProductKernel kernel, std::int64_t flops) = 0;
  // Counts a gather that sends bf16 numbers instead of codes. By default, does nothing.
  virtual void count_tp_wire_fallback(TpWireFallback /*reason*/) {}
  // Counts a product of experts whose operands are padded. By default, does nothing.
  virtual void count_padded_product() {}
};

}  // namespace tessera::runtime
