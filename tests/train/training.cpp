#include "tests/train/training.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <limits>
#include <mutex>

#include "tessera/comm/local/world.h"
#include "tessera/comm/nccl/world.h"
#include "tessera/models/decoder/decoder.h"
#include "tessera/ops/aten_types.h"
#include "tessera/quant/elementwise.h"
#include "tessera/train/update/master_values.h"
#include "tests/models/divided_model.h"

namespace tessera::train::testing {
namespace {

at::Tensor int_tensor(const std::vector<std::int64_t>& values) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), tensor.data_ptr<std::int64_t>());
  return tensor;
}

// Sample number `sample` of a fixed pseudo-random text.
models::Batch make_batch(const RunOptions& options, std::int64_t sample) {
  const std::int64_t length = options.seq_len;
  std::vector<std::int64_t> text, positions, starts;
  for (std::int64_t i = 0; i <= length; ++i) {
    const auto mixed = static_cast<std::uint64_t>(sample * 1000 + i + 1) * 0x9E3779B97F4A7C15ull;
    text.push_back(static_cast<std::int64_t>((mixed >> 33) % static_cast<std::uint64_t>(options.model.vocab_size)));
  }
  const std::int64_t boundary = options.documents ? 1 + sample % (length - 1) : length;
  for (std::int64_t i = 0; i < length; ++i) positions.push_back(i < boundary ? i : i - boundary);
  if (options.documents) starts = {0, boundary, length};
  models::Batch batch;
  batch.tokens = int_tensor({text.begin(), text.end() - 1});
  batch.targets = int_tensor({text.begin() + 1, text.end()});
  if (options.masked) batch.targets.fill_(-1);
  batch.layout = {.batch = 1, .seq_len = length, .positions = int_tensor(positions), .cu_seqlens = starts};
  return batch;
}

class Collector {
 public:
  // data: this rank's part `own` of a parameter, or of a tensor with the parameter's shape.
  void add(const std::string& name, const shard::ShardedParameter& parameter, const layout::LocalLayout& own,
           const void* data, quant::DType type) {
    std::int64_t elements = 0;
    for (const layout::Piece& piece : own.pieces)
      elements = std::max(elements, piece.offset + (piece.box.rows - 1) * piece.stride + piece.box.cols);
    std::vector<double> local(static_cast<std::size_t>(elements));
    base::Buffer host(local.size() * quant::size_of(type));
    base::copy_bytes(host.data(), data, host.size());
    quant::cast(host.data(), type, local.data(), quant::DType::fp64, elements);
    std::lock_guard lock(mutex_);
    std::vector<double>& logical = tensors[name];
    logical.resize(static_cast<std::size_t>(parameter.storage.shape.elements()));
    for (const layout::Piece& piece : own.pieces)
      for (std::int64_t r = 0; r < piece.box.rows; ++r)
        for (std::int64_t c = 0; c < piece.box.cols; ++c)
          logical[static_cast<std::size_t>((piece.box.row + r) * parameter.storage.shape.cols + piece.box.col + c)] =
              local[static_cast<std::size_t>(piece.offset + r * piece.stride + c)];
  }
  std::map<std::string, std::vector<double>> tensors;

 private:
  std::mutex mutex_;
};

StepInput input_of(const RunOptions& options, const shard::ParallelGroups& parallel, int step) {
  const shard::Cuts& cuts = parallel.cuts();
  const std::int64_t share = options.blocks / cuts.replicas, gtp = cuts.parts;
  const std::int64_t first = static_cast<std::int64_t>(step) * options.blocks + parallel.place().replica * share;
  return {.microbatches = static_cast<int>(share / gtp),
          .tokens = options.masked ? 0 : options.blocks * options.seq_len,
          .batch =
              [&options, &parallel, first, gtp, step](int microbatch) {
                const std::int64_t sample = first + microbatch * gtp + parallel.place().part;
                models::Batch batch = make_batch(options, sample);
                batch.first_token = (sample - static_cast<std::int64_t>(step) * options.blocks) * options.seq_len;
                return batch;
              },
          .step = step + 1};
}

// During its lifetime, compute reads an infinite weight of the last norm, which every rank has.
class Spoiled {
 public:
  explicit Spoiled(Trainer& trainer)
      : kernels_(trainer.parallel().kernels()),
        weight_(last_norm(trainer.runtime())),
        saved_(kernels_.scratch(weight_.weight().size())) {
    kernels_.copy(weight_.weight().data(), saved_.data(), saved_.size());
    kernels_.fill(weight_.weight().data(), weight_.types.model, std::numeric_limits<double>::infinity(),
                  weight_.shard_elements());
  }
  ~Spoiled() { kernels_.copy(saved_.data(), weight_.weight().data(), saved_.size()); }
  Spoiled(const Spoiled&) = delete;
  Spoiled& operator=(const Spoiled&) = delete;

 private:
  static shard::ShardedParameter& last_norm(runtime::Runtime& runtime) {
    schedule::ParameterId id = 0;
    while (runtime.parameter(id).spec.name != "norm.weight") ++id;
    return runtime.parameter(id);
  }

  const quant::Kernels& kernels_;
  shard::ShardedParameter& weight_;
  base::Scratch saved_;
};

shard::RankLayout layout_of(const RunOptions& options) {
  return options.ranks.value_or(
      nn::rank_layout({.tp = options.tp, .gtp = options.gtp, .dp = options.dp, .experts = options.experts}));
}

// A model that calls RunOptions::before_forward.
class HookedModel final : public models::Model {
 public:
  HookedModel(std::unique_ptr<models::Model> model, const nn::Context& context, const RunOptions& options)
      : model_(std::move(model)), context_(context), options_(options) {}
  nn::Loss forward(const models::Batch& batch, const nn::PassState& pass, double scale) override {
    if (options_.before_forward) options_.before_forward(*context_.expert_room);
    return model_->forward(batch, pass, scale);
  }
  models::RouterBiases router_biases() const override { return model_->router_biases(); }

 private:
  std::unique_ptr<models::Model> model_;
  const nn::Context& context_;
  const RunOptions& options_;
};

TrainerOptions trainer_options(const RunOptions& options) {
  const models::ModelOptions model{.max_positions = options.seq_len,
                                   .embedding = {.per_microbatch = options.seq_len, .lookup = options.embedding},
                                   .parts = options.parts,
                                   .expert_capacity = options.expert_capacity};
  std::optional<shard::FormatPolicy> backward;
  if (options.wire_backward) backward = shard::FormatPolicy{.format = *options.wire_backward, .rules = {}};
  std::optional<std::int64_t> budget;
  if (options.least_memory) budget = schedule::kMinimum;
  models::StepOptions step{
      .build =
          [&options, model](const nn::Context& context) {
            std::unique_ptr<models::Model> built = std::make_unique<models::Decoder>(options.model, context, model);
            if (!options.block_ends.empty())
              built = std::make_unique<models::testing::DividedModel>(std::move(built), options.block_ends);
            return std::make_unique<HookedModel>(std::move(built), context, options);
          },
      .layout = layout_of(options),
      .types = {.model = options.dtype, .accumulator = quant::accumulator_of(options.dtype), .wire = options.dtype},
      .sequence_parallel = options.sequence_parallel,
      .split = options.split,
      .recompute = options.recompute,
      .runtime = {.zero = options.zero,
                  .one_microbatch = options.one_microbatch,
                  .split_masters = options.split_masters,
                  .nodes = options.nodes,
                  .gather_budget = options.gather_budget ? options.gather_budget : budget,
                  .reduce_budget = budget,
                  .coalesce_bytes = options.coalesce_bytes,
                  .replay = options.replay,
                  .wire = {.format = options.wire},
                  .products = {.format = options.products,
                               .rules = options.product_rules,
                               .stacks = {.recipe = options.product_options.recipe, .only_native = options.only_codes}},
                  .wire_backward = backward,
                  .domain_of = options.domain_of},
      .products = options.product_options,
      .dropout = options.dropout,
      .seed = options.seed,
      .expert_bias_rate = options.expert_bias_rate,
      .expert_room = options.expert_room};
  return {.step = std::move(step),
          .update = options.update ? options.update : ops::one_rule(options.rule),
          .clip = options.clip,
          .graph = options.graph};
}

// The steps of one rank; each is repeated until it counts.
class Steps {
 public:
  Steps(comm::World& world, Trainer& trainer, const RunOptions& options, RunResult& result)
      : world_(world), trainer_(trainer), options_(options), result_(result), suppressed_(options.suppressed) {}

  void run() {
    while (next_ < options_.steps || trainer_.pending_steps() > 0) {
      if (next_ < options_.steps) take(next_++);
      const int left = next_ < options_.steps && !waits_for_scales() ? options_.ahead.value_or(0) : 0;
      while (trainer_.pending_steps() > left) finish(trainer_.finish_step());
    }
  }

 private:
  bool waits_for_scales() const { return trainer_.scales().size() > 0 && !trainer_.scales().are_known(); }

  void take(int step) {
    if (options_.left_out.contains(step)) return;
    if (options_.before_step) options_.before_step(trainer_, step);
    if (options_.evaluated.contains(step)) trainer_.evaluate(input_of(options_, trainer_.parallel(), step));
    std::optional<Spoiled> spoiled;
    if (options_.spoiled.contains(step)) spoiled.emplace(trainer_);
    const double lr = 1e-2 + step * options_.lr_growth;
    if (suppressed_[step] > 0 && world_.rank() + 1 == world_.size())
      trainer_.parallel().kernels().fill(stop_, quant::DType::i64, 1, 1);
    enqueued_.push_back(step);
    if (options_.ahead)
      trainer_.enqueue_step(input_of(options_, trainer_.parallel(), step), lr);
    else
      finish(trainer_.train_step(input_of(options_, trainer_.parallel(), step), lr));
    spoiled.reset();
    if (options_.after_step) options_.after_step(trainer_, step);
  }

  void finish(const StepResult& done) {
    const int step = enqueued_.front();
    enqueued_.pop_front();
    if (options_.on_result && world_.rank() == 0) options_.on_result(done);
    if (done.suppressed) return repeat(step, done);
    if (world_.rank() != 0) return;
    result_.losses.push_back(done.loss);
    result_.norms.push_back(done.grad_norm);
    result_.skipped.push_back(done.skipped);
  }

  void repeat(int step, const StepResult& done) {
    if (options_.before_forward) {
      EXPECT_EQ(done.suppressed->counter, kExpertRoomStop);
    } else {
      EXPECT_EQ(*done.suppressed, (Stop{.counter = "test", .count = 1}));
    }
    EXPECT_EQ(done.discarded, static_cast<int>(enqueued_.size()));
    EXPECT_EQ(trainer_.pending_steps(), 0);
    EXPECT_FALSE(done.skipped);
    --suppressed_[step];
    if (world_.rank() == 0) result_.suppressed.emplace_back(step, done.discarded);
    enqueued_.clear();
    next_ = step;
  }

  comm::World& world_;
  Trainer& trainer_;
  const RunOptions& options_;
  RunResult& result_;
  std::map<int, int> suppressed_;  // key: step; number of suppressions that remain
  std::int64_t* const stop_ = trainer_.stop_counter("test");
  std::deque<int> enqueued_;  // numbers of the pending steps
  int next_ = 0;
};

void run_rank(comm::World& world, const RunOptions& options, Collector& collector, RunResult& result) {
  const quant::DType accumulator = quant::accumulator_of(options.dtype);
  Trainer trainer(world, trainer_options(options));
  set_initial_values(trainer.runtime(), 7);
  Steps(world, trainer, options, result).run();
  if (options.at_end) options.at_end(trainer);
  if (world.rank() == 0) result.updates = trainer.optimizer().updates();
  if (world.rank() == 0) result.graph_steps = trainer.graph_steps();
  if (world.rank() == 0 && trainer.scales().size() > 0)
    result.scales = trainer.scales().state(*trainer.parallel().compute);
  trainer.runtime().wait_until_idle();  // wait until the replicas have exchanged their weights
  for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id) {
    shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
    const std::string& name = parameter.spec.name;
    const layout::LocalLayout &state = parameter.local_state, &storage = parameter.local_storage;
    if (parameter.spec.encoding)
      collector.add("weight/" + name, parameter, state, parameter.master.data(), accumulator);
    else
      collector.add("weight/" + name, parameter, storage, parameter.weight().data(), parameter.types.model);
    if (parameter.has_master() && !parameter.spec.encoding) {
      MasterValues masters(parameter, trainer.parallel());
      trainer.parallel().compute->synchronize();
      collector.add("master/" + name, parameter, state, masters.data(), masters.type());
    }
    if (!parameter.spec.trainable) continue;
    collector.add("main_grad/" + name, parameter, state, parameter.state_gradient(), parameter.gradient_type());
    trainer.optimizer().for_each_plane(id, [&](const ops::StatePlane& plane, base::Buffer& buffer) {
      collector.add(fmt::format("{}/{}", plane.name, name), parameter, state, buffer.data(), plane.type);
    });
  }
}

}  // namespace

models::Batch sample(const RunOptions& options, std::int64_t number) {
  return make_batch(options, number);
}

models::DecoderConfig odd_model() {
  models::DecoderConfig config;
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

models::DecoderConfig biased_model() {
  models::DecoderConfig config = odd_model();
  config.has_qkv_bias = true;
  return config;
}

models::DecoderConfig normed_model() {
  models::DecoderConfig config = odd_model();
  config.has_head_norms = true;
  config.head_dim = 6;
  return config;
}

models::DecoderConfig sparse_model() {
  models::DecoderConfig config = odd_model();
  config.experts =
      models::ExpertsConfig{.count = 7, .per_token = 2, .width = 9, .aux_coefficient = 0.02, .sparse = {true, true}};
  return config;
}

models::DecoderConfig balanced_model() {
  models::DecoderConfig config = normed_model();
  config.experts = models::ExpertsConfig{.count = 9,
                                         .per_token = 3,
                                         .width = 9,
                                         .sparse = {false, true},
                                         .score = ops::RouterScore::sigmoid,
                                         .groups = 3,
                                         .chosen_groups = 2,
                                         .weight_scale = 1.5,
                                         .has_router_bias = true,
                                         .shared_width = 11};
  return config;
}

RunResult run(const RunOptions& options) {
  RunResult result;
  Collector collector;
  if (options.on_gpu) {
    comm::NcclOptions nccl;
    nccl.store = rendezvous::make_memory_store();
    base::set_device(nccl.device);
    run_rank(*comm::make_nccl_world(nccl), options, collector, result);
  } else {
    comm::LocalOptions local;
    local.inject = options.inject;
    comm::run_local(options.ranks ? options.ranks->mesh.world_size() : options.tp * options.gtp * options.dp, local,
                    [&](comm::World& world) { run_rank(world, options, collector, result); });
  }
  result.tensors = std::move(collector.tensors);
  return result;
}

void set_elements(Trainer& trainer, const std::string& name,
                  const std::function<float(std::int64_t row, std::int64_t col, float old)>& value) {
  runtime::Runtime& runtime = trainer.runtime();
  schedule::ParameterId id = 0;
  while (runtime.parameter(id).spec.name != name) ++id;
  shard::ShardedParameter& parameter = runtime.parameter(id);
  ASSERT_EQ(parameter.types.accumulator, quant::DType::fp32);
  base::Buffer host(static_cast<std::size_t>(parameter.state_elements()) * sizeof(float));
  trainer.parallel().compute->synchronize();
  MasterValues masters(parameter, trainer.parallel());
  base::copy_bytes(host.data(), masters.data(), host.size());
  for (const layout::Piece& piece : parameter.local_state.pieces)
    for (std::int64_t r = 0; r < piece.box.rows; ++r)
      for (std::int64_t c = 0; c < piece.box.cols; ++c) {
        float& element = host.as<float>()[static_cast<std::size_t>(piece.offset + r * piece.stride + c)];
        element = value(piece.box.row + r, piece.box.col + c, element);
      }
  base::copy_bytes(masters.data(), host.data(), host.size());
  masters.store();
  WeightCast(runtime).cast({&id, 1});
  runtime.program().publish(id);
}

}  // namespace tessera::train::testing
