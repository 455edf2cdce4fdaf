// One rank's part of a model that only runs forward passes. A frozen model uses the layers and the runtime of training,
// but holds only weights: no gradients, no masters and no moments.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "tessera/checkpoint/reader.h"
#include "tessera/comm/world.h"
#include "tessera/models/step_options.h"
#include "tessera/ops/device/cached_memory.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/loss_sum.h"
#include "tessera/train/step_input.h"

namespace tessera::serve {

class FrozenModel {
 public:
  // Collective over the world: creates the groups. `options.build` builds with ModelOptions::is_frozen. `world` must
  // outlive the model.
  FrozenModel(comm::World& world, const models::StepOptions& options);
  // Waits for compute. If an exception is propagating, cancels pending work first.
  ~FrozenModel();
  FrozenModel(const FrozenModel&) = delete;
  FrozenModel& operator=(const FrozenModel&) = delete;

  // A function that reads the boxes of a request into host memory. If the function throws, load() passes on the error.
  using ReadWeight = std::function<void(const checkpoint::LoadTensor& request)>;
  // Reads this rank's part of every weight. Throws InputError for the bias of a router whose values are not finite.
  void load(const ReadWeight& read);

  // Returns the mean loss over the input's tokens, or NaN if it has none. Collective.
  double evaluate(const train::StepInput& input);

  // Returns an empty cache for `capacity` tokens, for the generation of one sequence at a time.
  nn::KeyValueCache make_cache(std::int64_t capacity);
  // Runs the next tokens of the sequence and returns the logits after the last of them, [vocab_size], in host memory.
  // Every rank passes the same tokens. The logits are equal on all ranks if the device's products are repeatable.
  // Collective.
  at::Tensor next_logits(std::span<const std::int64_t> tokens, nn::KeyValueCache& cache);

  runtime::Runtime& runtime() { return runtime_; }
  shard::ParallelGroups& parallel() { return parallel_; }

 private:
  train::LossSum losses_;                              // declared first, so that it outlives the lanes, which use it
  const int exceptions_ = std::uncaught_exceptions();  // number of exceptions in flight when this object was made
  shard::ParallelGroups parallel_;
  ops::CachedMemoryScope cached_memory_{parallel_.device};  // destroyed after all tensors
  runtime::Runtime runtime_;
  nn::DelayedScales scales_;
  nn::Context context_;
  std::unique_ptr<models::Model> model_;
};

}  // namespace tessera::serve
