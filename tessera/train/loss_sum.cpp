#include "tessera/train/loss_sum.h"

#include <ATen/ops/stack.h>

#include "tessera/ops/aten_types.h"

namespace tessera::train {

base::Fence LossSum::start(const std::vector<at::Tensor>& losses, shard::Parallel& parallel) {
  gtp_ = static_cast<std::size_t>(parallel.gtp_size());
  replicas_ = static_cast<std::size_t>(parallel.dp_size());
  microbatches_ = losses.size();
  all_.resize(gtp_ * replicas_ * microbatches_);
  if (own_.size() < microbatches_ * sizeof(double))
    own_ = base::Buffer(microbatches_ * sizeof(double), parallel.device);
  const auto count = static_cast<std::int64_t>(microbatches_);
  at::Tensor own = ops::view_of(own_.data(), {count}, quant::DType::fp64, ops::to_device(parallel.device));
  if (!losses.empty()) at::stack_out(own, losses);
  comm::Communicator& data = *parallel.data;
  data.lane().wait(parallel.compute->record());
  return data.all_gather(own_.data(), all_.data(), comm::equal_counts(data.size(), count), quant::DType::fp64);
}

// Block k of a replica was microbatch k / G of gtp rank k mod G.
double LossSum::result() const {
  double sum = 0;
  for (std::size_t replica = 0; replica < replicas_; ++replica)
    for (std::size_t microbatch = 0; microbatch < microbatches_; ++microbatch)
      for (std::size_t rank = 0; rank < gtp_; ++rank) sum += all_[(replica * gtp_ + rank) * microbatches_ + microbatch];
  return sum;
}

}  // namespace tessera::train
