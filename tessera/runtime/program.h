// What a model's layers call while a step runs, and no more. Runtime implements it for steps that run; DryRun for steps
// that only say what they would do.
//
//   begin_step
//     begin_microbatch
//       consume / release of each weight in each pass, grad_buffer / produce of each gradient,
//       issue / wait of the program's own collectives, stash / fetch of activations
//     end_microbatch
//   end_step
//
// A weight may be read from its consume to the release that matches it; its memory is somebody else's before and after.
// A gradient is written between grad_buffer and produce; then the layer must not touch it any more: it travels while
// later layers compute, and is complete, for what compute is given from then on, when end_step returns. One thread.
//
// Steps may differ from each other as long as all ranks differ alike: one that is not as planned is only slower. Where
// replicas have unequal numbers of ranks, a training step that is not as planned is an error. A rank that does other
// things than the rest ends the run with an error. What a layer does must not depend on the values of
// tensors: dry ones have none. It takes memory on the device of its operands or of the program, and computes by
// operators of ops/, which a dry run understands.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tessera/quant/formats/quantize.h"
#include "tessera/runtime/collective.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/rows/row_kernels.h"

namespace tessera::runtime {

// A compute part of a weight, valid from consume to the matching release. Null pointers in a dry run.
struct WeightView {
  struct Plane {
    const void* data = nullptr;  // dense, the plane's local_compute.size elements
    quant::DType type = quant::DType::fp32;
  };
  std::array<Plane, shard::kMostPlanes> planes;  // as many as the parameter has; one for an encoded weight, unpacked
  // The stored matrix of an encoded weight that its products read as it is, and its encoding. Else none.
  std::optional<quant::Quantized> encoded;
  quant::Encoding encoding;
  const Plane& weight() const { return planes.front(); }
};

// Where the weight-gradient product writes: dense, compute layout. When `accumulate`, an earlier use in this microbatch
// has written there and this one adds to it. Ask for it directly before the product and its produce.
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

class Program {
 public:
  virtual ~Program() = default;

  // Before the first step, the same on every rank in the same order. Errors: a name twice.
  virtual schedule::ParameterId add(shard::ParameterSpec spec) = 0;
  // After the last add: registers the weights that backward passes read in another number format. Who uses a
  // weight never sees its backward weight: consume and release in the backward pass mean the backward weight.
  virtual void add_backward_weights() = 0;
  virtual const shard::ParameterSpec& spec(schedule::ParameterId weight) const = 0;  // formats and domain filled in
  virtual const layout::LocalLayout& local_compute(schedule::ParameterId weight) const = 0;  // what this rank reads
  // Whether its rows travel by index: gather_rows and grad_rows instead of consume and grad_buffer.
  virtual bool by_rows(schedule::ParameterId weight) const = 0;
  virtual const shard::ParameterTypes& types() const = 0;
  virtual base::Device device() const = 0;  // where weights and activations lie; kNoDevice in a dry run
  // Describes the ranks of the program's collectives over a domain.
  virtual shard::ComputeGroup compute_group(int domain) const = 0;
  int group_rank(int domain = 0) const { return compute_group(domain).rank; }  // among the live ranks
  int group_size(int domain = 0) const { return compute_group(domain).size; }  // number of live ranks
  // Number of places, dead ones included. A collective exists if this exceeds 1, on every rank alike.
  int nominal_size(int domain = 0) const { return compute_group(domain).nominal_size; }
  virtual bool is_training() const = 0;  // the step under way

  // microbatches: how many this step has, the same on every rank. Errors: calls out of order, weights not released.
  // That another rank did other things is an error of any later call that waits, of end_step at the latest on a CPU.
  virtual void begin_step(schedule::StepKind kind, int microbatches) = 0;
  virtual void begin_microbatch() = 0;
  virtual void end_microbatch() = 0;
  virtual void end_step() = 0;
  // Outside a step. publish: new weights are in storage. reduce_amaxes, before it where a format needs them: the
  // greatest of all ranks' amaxes replace these.
  virtual void publish(std::span<const schedule::ParameterId> weights) = 0;
  virtual void reduce_amaxes(std::span<float> amaxes) = 0;

  virtual WeightView consume(schedule::ParameterId weight, schedule::Pass pass) = 0;
  virtual void release(schedule::ParameterId weight, schedule::Pass pass) = 0;
  virtual GradientBuffer grad_buffer(schedule::ParameterId weight) = 0;
  virtual void produce(schedule::ParameterId weight) = 0;
  // ids: in memory that the device reads; one outside the compute part's rows gives zeros. written: when they can be
  // read; absent: behind what compute has. Compute then has out [ids, columns] (the model's type). Once a microbatch
  // and pass.
  virtual void gather_rows(schedule::ParameterId weight, const shard::RowIds& ids, void* out, schedule::Pass pass,
                           const std::optional<base::Fence>& written) = 0;
  virtual RowGradient grad_rows(schedule::ParameterId weight, const shard::RowIds& ids) = 0;

  // Begins behind what compute has been given. Wait directly before compute first uses `out`: what it waits is exposed.
  virtual Issued issue(const ProgramCollective& collective) = 0;
  virtual void wait(const Issued& issued) = 0;
  // Only recorded: autograd keeps so many bytes from stash to fetch. way: "shard" (own tokens only) or "keep".
  virtual void stash(std::int64_t bytes, schedule::Pass pass, std::string_view way) = 0;
  virtual void fetch(std::int64_t bytes, schedule::Pass pass, std::string_view way) = 0;
  virtual void count_product(quant::Format format, std::int64_t flops) = 0;  // of one product with a weight
};

}  // namespace tessera::runtime
