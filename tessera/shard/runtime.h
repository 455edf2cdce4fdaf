// What a layer and the training loop call while a step runs. It brings weights together before their use, takes their
// gradients away after it, and records what happens as events.
//
//   begin_step
//     begin_microbatch
//       consume / release of each weight in each pass, grad_buffer / produce of each gradient
//     end_microbatch        every rank's gradients of this microbatch are reduced
//   end_step                gradients of the step are complete in main_grad
//   publish                 the optimizer has written new weights
//
// The schedule carried out here is the trivial one: a weight is gathered at its first consume and freed at its last
// release; gradients are reduced at the end of the microbatch. One object a model and rank; not thread-safe; nothing is
// global.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "tessera/shard/buffer_pool.h"
#include "tessera/shard/events.h"
#include "tessera/shard/materialize.h"
#include "tessera/shard/parallel.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/reduction.h"

namespace tessera::shard {

// The tp-local weight in its compute layout, valid from consume to the matching release.
struct WeightView {
  const void* rowwise = nullptr;  // dense, local_compute.size elements
  base::DType format = base::DType::fp32;
};

// Where the weight-gradient GEMM writes: dense, compute layout. When `accumulate`, an earlier use in this microbatch
// has written there and this one adds to it.
struct GradientBuffer {
  void* data = nullptr;
  base::DType dtype = base::DType::fp32;
  bool accumulate = false;
};

// Since the last begin_step, on this rank.
struct StepStatistics {
  std::int64_t gathered_bytes = 0, reduced_bytes = 0;  // received from other ranks
  double exposed_seconds = 0;                          // the host waited for communication
  int unproduced = 0;                                  // trainable parameters without a gradient in some microbatch
};

class Runtime {
 public:
  // `parallel` outlives the runtime.
  Runtime(Parallel& parallel, ParameterTypes types);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Before the first step, the same on every rank in the same order. Errors: a name twice.
  ParameterId add(ParameterSpec spec);
  int size() const { return static_cast<int>(entries_.size()); }
  ShardedParameter& parameter(ParameterId id);
  // Ids in name order: the order of norms and of checkpoints.
  std::vector<ParameterId> by_name() const;

  // microbatches: how many this step has, the same on every rank. Errors: calls out of order.
  void begin_step(StepKind kind, int microbatches);
  void begin_microbatch();
  void end_microbatch();
  // main_grad is complete (dp included) when it returns. Errors: microbatches missing, weights not released.
  void end_step();

  WeightView consume(ParameterId id, Pass pass);
  void release(ParameterId id, Pass pass);
  GradientBuffer grad_buffer(ParameterId id);
  void produce(ParameterId id);
  void publish(ParameterId id);
  // Another collective of the program is issued now.
  void comm(const std::string& group, const std::string& op, std::int64_t bytes, Pass pass);
  // The host has waited this long for a collective of the program.
  void add_exposed(double seconds) { statistics_.exposed_seconds += seconds; }

  bool is_training() const { return kind_ == StepKind::train; }
  Parallel& parallel() { return parallel_; }
  const ParameterTypes& types() const { return types_; }
  const StepStatistics& statistics() const { return statistics_; }
  const Trace& trace() const { return trace_; }  // of the last step begun
  std::size_t peak_buffer_bytes() const { return pool_.peak_bytes(); }

 private:
  struct Entry;
  Entry& entry(ParameterId id, const char* call);
  void record(EventKind kind, Pass pass, ParameterId id);
  void reduce_microbatch();
  void reduce_replicas();

  Parallel& parallel_;
  ParameterTypes types_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::unordered_map<std::string, ParameterId> ids_;
  BufferPool pool_;

  StepKind kind_ = StepKind::train;
  int microbatches_ = 0, microbatch_ = -1;  // microbatch_: begun so far - 1
  bool in_step_ = false, in_microbatch_ = false;
  Trace trace_;
  std::unordered_map<std::string, int> comm_ordinals_;
  StepStatistics statistics_;
};

}  // namespace tessera::shard
