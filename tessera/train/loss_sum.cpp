#include "tessera/train/loss_sum.h"

#include <ATen/ops/stack.h>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"

namespace tessera::train {

base::Fence LossSum::start(const std::vector<at::Tensor>& losses, shard::ParallelGroups& parallel,
                           const std::vector<int>& by_replica) {
  const shard::Cuts& cuts = parallel.cuts();
  const std::size_t microbatches = losses.size();
  elements_ = losses.empty() ? 1 : static_cast<std::size_t>(losses.front().numel());
  replicas_.clear();
  std::vector<std::int64_t> counts;
  std::size_t blocks = 0;  // number of blocks of all replicas
  for (int replica = 0; replica < cuts.replicas; ++replica) {
    const auto readers = static_cast<std::size_t>(cuts.parts_of(replica));
    const std::size_t own_blocks = microbatches * static_cast<std::size_t>(cuts.parts);
    TESSERA_CHECK(!by_replica.empty() || own_blocks % readers == 0,
                  "a replica has {} blocks for {} ranks, expected a multiple of the ranks", own_blocks, readers);
    const std::size_t each = by_replica.empty()
                                 ? own_blocks / readers
                                 : static_cast<std::size_t>(by_replica.at(static_cast<std::size_t>(replica)));
    TESSERA_CHECK(replica != parallel.place().replica || each == microbatches,
                  "replica {} has {} microbatches, expected {}", replica, microbatches, each);
    replicas_.push_back({.readers = readers, .microbatches = each});
    counts.insert(counts.end(), readers, static_cast<std::int64_t>(each * elements_));
    blocks += readers * each;
  }
  all_.resize(blocks * elements_);
  const std::size_t bytes = microbatches * elements_ * sizeof(double);
  if (own_.size() < bytes) own_ = base::Buffer(bytes, parallel.device);
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(microbatches)};
  if (!losses.empty()) shape.insert(shape.end(), losses.front().sizes().begin(), losses.front().sizes().end());
  at::Tensor own = ops::view_of(own_.data(), shape, quant::DType::fp64, ops::to_device(parallel.device));
  if (!losses.empty()) at::stack_out(own, losses);
  comm::Communicator& group = *parallel.losses;
  // The other ranks receive the losses without contributing any (shard::groups_of).
  counts.resize(static_cast<std::size_t>(group.size()), 0);
  group.lane().wait(parallel.compute->record());
  return group.all_gather(own_.data(), all_.data(), counts, quant::DType::fp64);
}

// In a replica of G ranks, block k is microbatch k / G of rank k mod G.
double LossSum::result(std::size_t element) const {
  double sum = 0;
  std::size_t first = 0;  // first block of the replica
  for (const auto& [readers, microbatches] : replicas_) {
    for (std::size_t block = 0; block < readers * microbatches; ++block)
      sum += all_[(first + block % readers * microbatches + block / readers) * elements_ + element];
    first += readers * microbatches;
  }
  return sum;
}

}  // namespace tessera::train
