#include "training.h"

#include <ATen/ops/empty.h>

#include <mutex>

#include "tessera/comm/kernels.h"
#include "tessera/comm/local.h"
#include "tessera/ops/convert.h"

namespace tessera::train::testing {
namespace {

at::Tensor int_tensor(const std::vector<std::int64_t>& values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.data_ptr<std::int64_t>());
  return tensor;
}

// Sample number `sample` of a fixed pseudo-random text.
nn::Batch make_batch(const RunOptions& options, std::int64_t sample) {
  const std::int64_t length = options.seq_len;
  std::vector<std::int64_t> text, positions, starts;
  for (std::int64_t i = 0; i <= length; ++i) {
    const auto mixed = static_cast<std::uint64_t>(sample * 1000 + i + 1) * 0x9E3779B97F4A7C15ull;
    text.push_back(static_cast<std::int64_t>((mixed >> 33) % static_cast<std::uint64_t>(options.model.vocab_size)));
  }
  const std::int64_t boundary = options.documents ? 1 + sample % (length - 1) : length;
  for (std::int64_t i = 0; i < length; ++i) positions.push_back(i < boundary ? i : i - boundary);
  if (options.documents) starts = {0, boundary, length};
  nn::Batch batch;
  batch.tokens = int_tensor({text.begin(), text.end() - 1});
  batch.targets = int_tensor({text.begin() + 1, text.end()});
  if (options.masked) batch.targets.fill_(-1);
  batch.layout = {.batch = 1, .seq_len = length, .positions = int_tensor(positions), .cu_seqlens = starts};
  return batch;
}

class Collector {
 public:
  void add(const std::string& name, const shard::ShardedParameter& parameter, const void* data, base::DType type) {
    std::vector<double> local(static_cast<std::size_t>(parameter.shard_elements()));
    comm::cast(data, type, local.data(), base::DType::fp64, parameter.shard_elements());
    std::lock_guard lock(mutex_);
    std::vector<double>& logical = tensors[name];
    logical.resize(static_cast<std::size_t>(parameter.storage.shape.elements()));
    for (const layout::Piece& piece : parameter.local_storage.pieces)
      for (std::int64_t r = 0; r < piece.box.rows; ++r)
        for (std::int64_t c = 0; c < piece.box.cols; ++c)
          logical[static_cast<std::size_t>((piece.box.row + r) * parameter.storage.shape.cols + piece.box.col + c)] =
              local[static_cast<std::size_t>(piece.offset + r * piece.stride + c)];
  }
  std::map<std::string, std::vector<double>> tensors;

 private:
  std::mutex mutex_;
};

void run_rank(comm::World& world, const RunOptions& options, Collector& collector, RunResult& result) {
  const base::DType accumulator = base::accumulator_of(options.dtype);
  Trainer trainer(world, {.model = options.model,
                          .tp = options.tp,
                          .gtp = options.gtp,
                          .dp = options.dp,
                          .types = {.model = options.dtype, .accumulator = accumulator, .wire = options.dtype},
                          .sequence_parallel = options.sequence_parallel,
                          .recompute = options.recompute,
                          .seq_len = options.seq_len,
                          .embedding = {.per_microbatch = options.seq_len, .lookup = options.embedding},
                          .adamw = {.weight_decay = 0.1}});
  set_initial_values(trainer.runtime(), 7);
  const shard::Parallel& parallel = trainer.parallel();
  const int share = options.blocks / options.dp;
  for (int step = 0; step < options.steps; ++step) {
    if (options.before_step) options.before_step(trainer, step);
    const std::int64_t first = static_cast<std::int64_t>(step) * options.blocks + parallel.dp_rank() * share;
    const StepResult done = trainer.train_step(
        {.microbatches = share / options.gtp,
         .tokens = options.masked ? 0 : options.blocks * options.seq_len,
         .batch = [&](int mb) { return make_batch(options, first + mb * options.gtp + parallel.gtp_rank()); }},
        1e-2);
    if (options.after_step) options.after_step(trainer, step);
    if (world.rank() != 0) continue;
    result.losses.push_back(done.loss);
    result.norms.push_back(done.grad_norm);
  }
  for (shard::ParameterId id = 0; id < trainer.runtime().size(); ++id) {
    shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
    Optimizer::Moments& moments = trainer.optimizer().moments(id);
    const std::string& name = parameter.spec.name;
    collector.add("weight/" + name, parameter, parameter.weight.data(), options.dtype);
    collector.add("main_grad/" + name, parameter, parameter.main_grad.data(), accumulator);
    collector.add("exp_avg/" + name, parameter, moments.exp_avg.data(), accumulator);
    collector.add("exp_avg_sq/" + name, parameter, moments.exp_avg_sq.data(), accumulator);
  }
}

}  // namespace

nn::LlamaConfig odd_model() {
  nn::LlamaConfig config;
  config.vocab_size = 67;
  config.hidden_size = 26;
  config.intermediate_size = 37;
  config.num_layers = 2;
  config.num_heads = 25;
  config.num_kv_heads = 5;
  config.head_dim = 2;
  config.initializer_range = 0.2;
  config.max_position_embeddings = 64;
  return config;
}

RunResult run(const RunOptions& options) {
  RunResult result;
  Collector collector;
  comm::LocalOptions local;
  local.inject = options.inject;
  comm::run_local(options.tp * options.gtp * options.dp, local,
                  [&](comm::World& world) { run_rank(world, options, collector, result); });
  result.tensors = std::move(collector.tensors);
  return result;
}

}  // namespace tessera::train::testing
