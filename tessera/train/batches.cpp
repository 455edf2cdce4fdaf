#include "tessera/train/batches.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/base/ceil_div.h"

namespace tessera::train {
namespace {

at::Tensor tensor_of(const std::vector<std::int64_t>& values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::ranges::copy(values, tensor.data_ptr<std::int64_t>());
  return tensor;
}

models::Batch to_tensors(const data::Batch& batch, std::int64_t sequences, std::int64_t seq_len,
                         std::int64_t first_sequence) {
  return {.tokens = tensor_of(batch.tokens),
          .targets = tensor_of(batch.targets),
          .layout = {.batch = sequences,
                     .seq_len = seq_len,
                     .positions = tensor_of(batch.positions),
                     .cu_seqlens = batch.cu_seqlens},
          .first_token = first_sequence * seq_len};
}

// Returns the taken sample i of `taken`. The samples are at equal distances in file order, and the first is sample 0.
data::SampleId taken_sample(const data::TrainingData& data, std::int64_t taken, std::int64_t i) {
  const std::int64_t all = data.num_samples();
  return data.sample_in_order(i * (all / taken) + i * (all % taken) / taken);  // i * all / taken, without overflow
}

// Returns the taken samples first ... first + micro_batch. Samples at or after `end` are masked.
data::Batch held_out_block(const data::TrainingData& data, const EvaluationShape& shape, std::int64_t first,
                           std::int64_t end) {
  std::vector<data::SampleId> samples;
  const std::int64_t taken = evaluated_samples(data, shape);
  for (std::int64_t i = first; i < first + shape.micro_batch; ++i)
    samples.push_back(taken_sample(data, taken, i < end ? i : 0));
  data::Batch batch = data.assemble(samples);
  const std::int64_t kept = std::clamp<std::int64_t>(end - first, 0, shape.micro_batch);
  std::fill(batch.targets.begin() + kept * shape.seq_len, batch.targets.end(), -1);
  return batch;
}

// Returns the samples of a block. If the block has fewer than micro_batch samples, masked copies of the first sample of
// the step follow.
data::Batch padded_block(const data::TrainingData& data, const data::BatchShape& shape, const data::Block& block,
                         std::int64_t seq_len) {
  std::vector<data::SampleId> samples = data.samples_of(shape, block);
  const auto kept = static_cast<std::int64_t>(samples.size());
  samples.resize(static_cast<std::size_t>(shape.micro_batch), data.sample((block.step - 1) * shape.global_batch));
  data::Batch batch = data.assemble(samples);
  std::fill(batch.targets.begin() + kept * seq_len, batch.targets.end(), -1);
  return batch;
}

}  // namespace

train::StepInput training_input(const data::TrainingData& data, const TrainingShape& shape,
                                const shard::ParallelGroups& parallel, std::int64_t step) {
  const data::BatchShape& samples = shape.batch;
  const data::Block block{.step = step, .replica = parallel.place().replica, .reader = parallel.place().part};
  std::vector<int> by_replica;
  for (std::size_t replica = 0; replica < samples.replicas.size(); ++replica)
    by_replica.push_back(static_cast<int>(microbatches_per_step(samples, static_cast<std::int64_t>(replica))));
  return {.microbatches = by_replica.at(static_cast<std::size_t>(block.replica)),
          .microbatches_by_replica = by_replica,
          .tokens = data.step_loss_tokens(samples, step),
          .batch =
              [&data, shape, block](int microbatch) {
                data::Block own = block;
                own.microbatch = microbatch;
                const std::int64_t first =
                    positions_of(shape.batch, own).first - (own.step - 1) * shape.batch.global_batch;
                return to_tensors(padded_block(data, shape.batch, own, shape.seq_len), shape.batch.micro_batch,
                                  shape.seq_len, first);
              },
          .step = step};
}

std::int64_t evaluated_samples(const data::TrainingData& data, const EvaluationShape& shape) {
  return shape.samples == 0 ? data.num_samples() : std::min(shape.samples, data.num_samples());
}

train::StepInput evaluation_input(const data::TrainingData& data, const EvaluationShape& shape,
                                  const shard::ParallelGroups& parallel) {
  const std::int64_t samples = evaluated_samples(data, shape);
  // The number of blocks of a replica.
  const std::int64_t share = base::ceil_div(base::ceil_div(samples, shape.micro_batch), parallel.cuts().replicas);
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < samples; ++i) tokens += data.loss_tokens(taken_sample(data, samples, i));
  const std::int64_t first_block = share * parallel.place().replica;
  const std::int64_t end = std::min(samples, (first_block + share) * shape.micro_batch);
  const std::int64_t readers = parallel.cuts().parts, reader = parallel.place().part;
  std::vector<int> by_replica;
  for (int replica = 0; replica < parallel.cuts().replicas; ++replica)
    by_replica.push_back(static_cast<int>(base::ceil_div(share, parallel.cuts().parts_of(replica))));
  return {.microbatches = static_cast<int>(base::ceil_div(share, readers)),
          .microbatches_by_replica = by_replica,
          .tokens = tokens,
          .batch = [&data, shape, first_block, end, readers, reader](int microbatch) {
            const std::int64_t block = first_block + microbatch * readers + reader;
            const data::Batch batch = held_out_block(data, shape, block * shape.micro_batch, end);
            return to_tensors(batch, shape.micro_batch, shape.seq_len, block * shape.micro_batch);
          }};
}

}  // namespace tessera::train
