#include "tests/predict/recorded_steps.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tessera/models/decoder/decoder.h"
#include "tessera/predict/planned_parameters.h"
#include "tessera/runtime/runtime.h"

namespace tessera::predict {
namespace {

models::Batch make_batch() {
  models::Batch batch;
  batch.tokens = at::zeros({kSequences * kLength}, at::kLong);
  batch.targets = at::zeros({kSequences * kLength}, at::kLong);
  batch.layout = {.batch = kSequences,
                  .seq_len = kLength,
                  .positions = at::arange(kLength, at::kLong).repeat({kSequences}),
                  .cu_seqlens = {0, 3, kLength, 2 * kLength}};
  return batch;
}

shard::RankLayout layout_of(const Case& it) {
  shard::RankLayout layout = nn::rank_layout({.tp = it.tp, .gtp = it.gtp, .dp = it.dp, .experts = it.experts});
  const std::vector<mesh::Grid>& grids = layout.mesh.grids();
  layout.mesh = mesh::Mesh(grids, mesh::live_places(grids.front(), it.dead));
  return layout;
}

void expect_same(const schedule::Trace& recorded, const schedule::Trace& written) {
  for (std::size_t i = 0; i < std::min(recorded.size(), written.size()); ++i)
    ASSERT_EQ(recorded[i], written[i]) << "event " << i << ": recorded " << to_string(recorded[i]) << ", written "
                                       << to_string(written[i]);
  ASSERT_EQ(recorded.size(), written.size());
}

// A gradient that is produced once is staged from its product to its reduction, which follows at once. The gradients of
// other parameters are staged until the microbatch ends.
void expect_staged(const Recorded& real, const DryStep& dry, const shard::ParameterTypes& types) {
  const std::vector<PlannedParameter> planned = planned_parameters(dry, types);
  std::int64_t staged = 0, peak = 0;
  std::vector<bool> is_staged(planned.size());
  for (const schedule::Event& event : real.trace) {
    if (event.microbatch > 0) break;
    if (event.kind != schedule::EventKind::produce) continue;
    const auto id = static_cast<std::size_t>(event.parameter);
    if (is_staged[id]) continue;
    peak = std::max(peak, staged + planned[id].size.staging);
    is_staged[id] = !dry.parameters[id].produced_once;
    if (is_staged[id]) staged += planned[id].size.staging;
  }
  EXPECT_LE(real.staged_peak, peak);  // the sizes are those of the rank with the most elements
  const auto is_whole = [](const shard::ParameterSpec& spec) {
    return spec.compute.size() == 1 && spec.compute_by_slots.empty();
  };
  if (std::ranges::all_of(dry.parameters, is_whole)) {
    EXPECT_EQ(real.staged_peak, peak);
  }
}

}  // namespace

models::DecoderConfig odd_model(bool tied) {
  models::DecoderConfig config;
  config.vocab_size = 19;
  config.hidden_size = 11;
  config.intermediate_size = 7;
  config.num_layers = 2;
  config.num_heads = 10;
  config.num_kv_heads = 5;
  config.head_dim = 4;
  config.max_position_embeddings = 16;
  config.tie_word_embeddings = tied;
  return config;
}

DryOptions options_of(const Case& it, int rank) {
  runtime::RuntimeOptions options;
  if (it.product != quant::Format::bf16) options.products.rules = {{"layers.*", it.product}};
  options.wire_backward = it.backward;
  const models::ModelOptions model{.max_positions = kLength,
                                   .embedding = {.per_microbatch = kSequences * kLength, .lookup = it.lookup},
                                   .parts = it.parts};
  return {.step = {.build = [&it, model](const nn::Context& context) -> std::unique_ptr<models::Model> {
                     return std::make_unique<models::Decoder>(it.config, context, model);
                   },
                   .layout = layout_of(it),
                   .types = {.model = it.dtype, .accumulator = quant::accumulator_of(it.dtype), .wire = it.dtype},
                   .sequence_parallel = it.sequence_parallel,
                   .split = it.split,
                   .recompute = it.recompute,
                   .runtime = options,
                   .products = {.scaling = it.scaling,
                                .tp_wire = it.tp_wire,
                                .tp_chunks = it.chunks,
                                .tp_overlap = it.overlap}},
          .rank = rank,
          .kind = it.kind,
          .sequences = kSequences,
          .seq_len = kLength};
}

Recorded recorded(comm::World& world, const Case& it) {
  const models::StepOptions options = options_of(it, world.rank()).step;
  shard::ParallelGroups parallel = shard::make_parallel_groups(world, options.layout);
  runtime::Runtime runtime(parallel, options.types, options.runtime);
  nn::DelayedScales scales(options.products, runtime.program().device());
  const nn::Context context = models::make_context(runtime.program(), options, scales, nullptr);
  const std::unique_ptr<models::Model> model = options.build(context);
  const bool train = it.kind == schedule::StepKind::train;
  const at::AutoGradMode gradients(train);
  runtime.program().begin_step(it.kind, it.microbatches);
  for (int microbatch = 0; microbatch < it.microbatches; ++microbatch) {
    runtime.program().begin_microbatch(microbatch);
    const nn::Loss loss = model->forward(make_batch(), {.context = context, .id = {microbatch}}, train ? 1.0 : 0.0);
    if (train) loss.objective.backward();
    runtime.program().end_microbatch(microbatch);
  }
  runtime.program().end_step();
  return {runtime.trace(), runtime.statistics(), runtime.schedule_statistics().on_demand_staged_peak_bytes};
}

void compare(const Case& it) {
  comm::run_local(layout_of(it).mesh.world_size(), {}, [&it](comm::World& world) {
    const Recorded real = recorded(world, it);
    DryStep dry = dry_step(options_of(it, world.rank()));
    dry.optimizer.clear();
    expect_same(real.trace, dry.trace(it.microbatches));
    expect_staged(real, dry, options_of(it, world.rank()).step.types);
    for (std::size_t format = 0; format < quant::kFormats; ++format) {
      EXPECT_EQ(real.statistics.flops_by_format[format], it.microbatches * dry.flops[format]);
      EXPECT_EQ(real.statistics.activations_by_format[format], it.microbatches * dry.activations[format]);
    }
  });
}

}  // namespace tessera::predict
