// The calls that the layers of a model make while a step runs, and nothing else. RunningProgram implements Program for
// steps that run, DryRun for steps that are only recorded.
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
// Steps may differ from each other if they differ in the same way on all ranks: a step that is not as planned is only
// slower. If replicas have unequal numbers of ranks, a training step that is not as planned is an error. If a rank
// makes other calls than the other ranks, the run ends with an error.
//
// The work of a layer must not depend on the values of tensors, since a dry run has none. Layers allocate on device()
// or on the device of their operands, and compute with the operators of ops/, which work on shapes in a dry run.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tessera/quant/formats/quantize.h"
#include "tessera/runtime/collective.h"
#include "tessera/runtime/parameter_table.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/rows/row_kernels.h"

namespace tessera::runtime {

// The part of a weight that this rank reads, valid from consume to the matching release. Null pointers in a dry run.
struct WeightView {
  struct Plane {
    const void* data = nullptr;  // dense, local_compute.size elements of the plane
    quant::DType type = quant::DType::fp32;
  };
  // The planes of the parameter; a single plane if the weight was unpacked.
  std::array<Plane, shard::kMaxPlanes> planes;
  // The stored matrix and its encoding, if the weight's products read the encoding directly.
  std::optional<quant::Quantized> encoded;
  quant::Encoding encoding;
  const Plane& weight() const { return planes.front(); }
};

// Where a product writes the weight gradient: dense, in the compute layout. If `accumulate` is true, an earlier use of
// the weight in this microbatch has written the buffer, and this use adds to it.
struct GradientBuffer {
  void* data = nullptr;
  quant::DType dtype = quant::DType::fp32;
  bool accumulate = false;
};

// Where the gradient of read rows is written: [ids, columns], dense. The token at index t adds to row slots[t], or to
// no row if slots[t] is -1; equal rows share the slot of the first. The slots are device memory, valid until produce.
struct RowGradient {
  void* data = nullptr;
  quant::DType dtype = quant::DType::fp32;
  const std::int64_t* slots = nullptr;
};

class Program {
 public:
  virtual ~Program() = default;

  virtual ParameterTable& parameters() = 0;  // layers register and look up their parameters here
  virtual base::Device device() const = 0;   // device of weights and activations; kNoDevice in a dry run
  // Describes the ranks of the program's collectives over a domain.
  virtual const shard::ComputeGroup& compute_group(int domain) const = 0;
  int group_rank(int domain = 0) const { return compute_group(domain).rank; }  // among the live ranks
  int group_size(int domain = 0) const { return compute_group(domain).size; }  // number of live ranks
  // Number of places, with and without a rank. A collective exists on every rank if this number exceeds 1.
  int nominal_size(int domain = 0) const { return compute_group(domain).nominal_size; }
  virtual bool is_training() const = 0;  // whether the current step trains

  // microbatches: of this step, the same on every rank. begin_step, end_microbatch and end_step throw Error if they are
  // called out of order. If another rank makes other calls, any later call that waits throws Error; on a CPU, end_step
  // at the latest.
  virtual void begin_step(schedule::StepKind kind, int microbatches) = 0;
  virtual void begin_microbatch() = 0;
  virtual void end_microbatch() = 0;  // throws Error if weights are not released
  virtual void end_step() = 0;

  virtual WeightView consume(schedule::ParameterId weight, schedule::Pass pass) = 0;
  virtual void release(schedule::ParameterId weight, schedule::Pass pass) = 0;
  // Called directly before the product that writes the gradient.
  virtual GradientBuffer grad_buffer(schedule::ParameterId weight) = 0;
  virtual void produce(schedule::ParameterId weight) = 0;
  // Writes the rows `ids` of a table to out [ids, columns], in the model's type, before compute continues. Called once
  // per microbatch and pass. ids: device memory; an id outside this rank's rows gives zeros. written: the fence after
  // which the ids can be read. Without `written`, the ids are read after the work that is enqueued on compute. An early
  // fence lets the rows travel while compute is busy.
  virtual void gather_rows(schedule::ParameterId weight, const shard::RowIds& ids, void* out, schedule::Pass pass,
                           const std::optional<base::Fence>& written) = 0;
  // Called once per microbatch, directly before the gradient is written. The caller then calls produce.
  virtual RowGradient grad_rows(schedule::ParameterId weight, const shard::RowIds& ids) = 0;

  // After the step: compute has written new weights. Gathers of these weights for the next step may start.
  virtual void publish(std::span<const schedule::ParameterId> weights) = 0;
  void publish(schedule::ParameterId weight) { publish({&weight, 1}); }
  // Replaces amaxes by their maximum over all ranks. Called after the step, before a publish whose format needs the
  // amaxes.
  virtual void reduce_amaxes(std::span<float> amaxes) = 0;

  // Starts a collective after the work that is enqueued on compute. Call wait directly before compute first uses `out`.
  virtual Issued issue(const ProgramCollective& collective) = 0;
  virtual void wait(const Issued& issued) = 0;
  // Record that autograd keeps these bytes from stash to fetch. way: "shard" (own tokens only) or "keep".
  virtual void stash(std::int64_t bytes, schedule::Pass pass, std::string_view way) = 0;
  virtual void fetch(std::int64_t bytes, schedule::Pass pass, std::string_view way) = 0;
  // Counts the operations of one product with a weight.
  virtual void count_product(quant::Format format, std::int64_t flops) = 0;
};

}  // namespace tessera::runtime
