#include "tessera/train/step_graph.h"

#include <ATen/ops/empty_like.h>

#include <array>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/runtime/replay/captured_lanes.h"

namespace tessera::train {
namespace {

std::array<at::Tensor, 3> tensors_of(const models::Batch& batch) {
  return {batch.tokens, batch.targets, batch.layout.positions};
}

std::vector<models::Batch> room_for(std::vector<models::Batch> batches, at::Device device) {
  for (models::Batch& batch : batches) {
    for (at::Tensor* tensor : {&batch.tokens, &batch.targets, &batch.layout.positions})
      *tensor = at::empty_like(*tensor, at::TensorOptions(device).dtype(tensor->scalar_type()));
    batch.early_tokens = batch.tokens;  // the tokens are copied before the launch, so the early tokens are the tokens
  }
  return batches;
}

}  // namespace

StepGraph::StepGraph(runtime::Runtime& runtime, std::vector<models::Batch> batches, double scale, const Record& record)
    : runtime_(runtime),
      schedules_(runtime.graph().schedules_made()),
      scale_(scale),
      graph_(runtime.parallel().device),
      inputs_(room_for(std::move(batches), ops::to_device(runtime.parallel().device))) {
  for (const models::Batch& batch : inputs_)
    TESSERA_CHECK(batch.layout.cu_seqlens.empty(),
                  "cannot capture a step with document boundaries, since they differ by step");
  shard::ParallelGroups& parallel = runtime.parallel();
  for (base::Lane* lane : parallel.lanes()) lane->synchronize();
  const auto lanes_ahead = parallel.lanes_ahead();
  ahead_.resize(lanes_ahead.size());
  std::vector<base::Fence> ahead;
  for (std::size_t i = 0; i < ahead_.size(); ++i) ahead.push_back(lanes_ahead[i]->record(ahead_[i]));
  graph_.begin(parallel.compute->stream());
  {
    runtime::CapturedLanes lanes(parallel);
    for (std::size_t i = 0; i < ahead.size(); ++i) lanes_ahead[i]->wait(ahead[i]);
    losses_ = record([this](int microbatch) { return inputs_[static_cast<std::size_t>(microbatch)]; });
    lanes.join();
  }
  graph_.end();
  for (base::Lane* lane : parallel.lanes()) lane->synchronize();  // finishes work that cannot be captured into a graph
  parallel.compute->synchronize();
  statistics_ = runtime.statistics();
  forget_waits(statistics_);  // a graph does not measure waits
}

bool StepGraph::fits(std::span<const models::Batch> batches, double scale) const {
  if (batches.size() != inputs_.size() || scale != scale_ || schedules_ != runtime_.graph().schedules_made())
    return false;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const nn::TokenLayout &given = batches[i].layout, &own = inputs_[i].layout;
    if (given.batch != own.batch || given.seq_len != own.seq_len || !given.cu_seqlens.empty()) return false;
    if (batches[i].first_token != inputs_[i].first_token) return false;
  }
  return true;
}

void StepGraph::launch(std::span<const models::Batch> batches, bool repeats, std::chrono::milliseconds expected) {
  if (repeats) runtime_.graph().repeat_step();
  runtime_.graph().gather_rows(batches.front().tokens.const_data_ptr<std::int64_t>());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto from = tensors_of(batches[i]), to = tensors_of(inputs_[i]);
    for (std::size_t k = 0; k < to.size(); ++k) to[k].copy_(from[k], /*non_blocking=*/true);
  }
  shard::ParallelGroups& parallel = runtime_.parallel();
  // The group of the norm has all ranks, so every rank detects a graph that does not finish in time. The lane of
  // `world` is not used, because the comparison of the last step waits for the other ranks on that lane.
  comm::Communicator& group = *parallel.norm;
  group.lane().wait(parallel.compute->record());
  const auto lanes_ahead = parallel.lanes_ahead();
  for (std::size_t i = 0; i < ahead_.size(); ++i) group.lane().follow(lanes_ahead[i]->record(ahead_[i]));
  runtime_.graph().launched(group.launch([this](base::CudaStream stream) { graph_.launch(stream); }, expected),
                            statistics_);
}

}  // namespace tessera::train
