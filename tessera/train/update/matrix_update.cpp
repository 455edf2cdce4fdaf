#include "tessera/train/update/matrix_update.h"

#include <algorithm>
#include <utility>

#include "tessera/shard/matrices/matrix_blocks.h"
#include "tessera/train/update/dense_pieces.h"

namespace tessera::train {
namespace {

std::byte* at(void* data, std::int64_t offset, quant::DType type) {
  return static_cast<std::byte*>(data) + shard::bytes_of(offset, type);
}

const MatrixShard& shard_in(std::span<const MatrixShard> bucket, schedule::ParameterId id) {
  return *std::ranges::find(bucket, id, &MatrixShard::id);
}

void grow(base::Buffer& buffer, std::int64_t bytes, base::Device device) {
  if (buffer.size() < static_cast<std::size_t>(bytes)) buffer = base::Buffer(static_cast<std::size_t>(bytes), device);
}

}  // namespace

MatrixUpdate::MatrixUpdate(runtime::Runtime& runtime, const ops::MatrixRule& rule)
    : runtime_(runtime),
      rule_(rule),
      plan_({.mesh = runtime.parallel().mesh, .domains = runtime.parallel().domains}, runtime.parallel().rank,
            runtime.parameters().cuts(0).zero,
            [&rule](std::int64_t rows, std::int64_t cols) { return rule.flops(rows, cols); }) {
  runtime.parallel().provide_matrices(plan_.transfer());
}

std::vector<MatrixUpdate::Exchange>& MatrixUpdate::exchanges_of(std::span<const MatrixShard> bucket) {
  std::vector<schedule::ParameterId> ids;
  for (const MatrixShard& shard : bucket) ids.push_back(shard.id);
  const auto [found, is_new] = buckets_.try_emplace(std::move(ids));
  if (!is_new) return found->second;
  std::vector<shard::MatrixParameter> parameters;
  for (const schedule::ParameterId id : found->first)
    parameters.push_back({id, &runtime_.parameters().spec(id), runtime_.parameters().types(id).model});
  const int rank = plan_.group_rank();
  for (shard::JoinedMatrices& joined : plan_.add(parameters)) {
    grow(states_, shard::bytes_of(joined.state_elements(), joined.type), runtime_.parallel().device);
    grow(matrices_, shard::bytes_of(joined.matrix_elements(), joined.type), runtime_.parallel().device);
    if (runtime_.parallel().is_asynchronous())
      for (int other = 0; other < static_cast<int>(plan_.group().size()); ++other)
        for (const shard::LocalMatrices& batch : joined.matrices_of(other))
          grow(scratch_, rule_.scratch_bytes(batch_of(joined, batch)), runtime_.parallel().device);
    comm::Redistribution gather(joined.states, joined.wholes, rank), scatter(joined.wholes, joined.states, rank);
    found->second.push_back({std::move(joined), std::move(gather), std::move(scatter)});
  }
  return found->second;
}

ops::MatrixBatch MatrixUpdate::batch_of(const shard::JoinedMatrices& joined, const shard::LocalMatrices& matrices) {
  std::byte* const first = matrices_.data() + shard::bytes_of(matrices.offset, joined.type);
  return {.u = first,
          .x = first,
          .count = matrices.count,
          .rows = matrices.rows,
          .cols = matrices.cols,
          .stride = matrices.stride,
          .type = joined.type,
          .scratch = scratch_.data()};
}

std::byte* MatrixUpdate::state_at(const shard::JoinedMatrices& joined, std::int64_t element) {
  return states_.data() + shard::bytes_of(element, joined.type);
}

std::vector<ops::DirectionShard> MatrixUpdate::directions_of(const shard::JoinedMatrices& joined,
                                                             std::span<const MatrixShard> bucket) {
  std::vector<ops::DirectionShard> directions;
  for (std::size_t i = 0; i < joined.ids.size(); ++i) {
    const ops::UpdateShard& whole = shard_in(bucket, joined.ids[i]).shard;
    const shard::ShardedParameter& parameter = runtime_.parameter(joined.ids[i]);
    const std::int64_t logical_cols = layout::matrix_shape(parameter.spec.dims).cols;
    const quant::DType plane = rule_.planes(whole.master_type).front().type;
    for (const layout::Piece& piece : dense_pieces(parameter.local_state)) {
      directions.push_back({.gradient = at(const_cast<void*>(whole.gradient), piece.offset, whole.gradient_type),
                            .gradient_type = whole.gradient_type,
                            .master_type = whole.master_type,
                            .plane = at(whole.planes[0], piece.offset, plane),
                            .direction = state_at(joined, joined.state_offsets[i] + piece.offset),
                            .direction_type = joined.type,
                            .count = piece.box.elements(),
                            .group = whole.group,
                            .indices = logical_indices(piece, logical_cols),
                            .rounding_key = whole.rounding_key});
    }
  }
  return directions;
}

std::vector<ops::UpdateShard> MatrixUpdate::updates_of(const shard::JoinedMatrices& joined,
                                                       std::span<const MatrixShard> bucket) {
  std::vector<ops::UpdateShard> updates;
  for (std::size_t i = 0; i < joined.ids.size(); ++i) {
    const ops::UpdateShard& whole = shard_in(bucket, joined.ids[i]).shard;
    const shard::ShardedParameter& parameter = runtime_.parameter(joined.ids[i]);
    const std::vector<shard::MatrixBlock> matrices = shard::matrix_blocks(parameter.spec);
    for (const layout::Piece& piece : dense_pieces(parameter.local_state)) {
      const std::int64_t end = piece.box.row + piece.box.rows;
      auto matrix = std::ranges::upper_bound(
          matrices, piece.box.row, {}, [](const shard::MatrixBlock& block) { return block.box.row + block.box.rows; });
      for (std::int64_t row = piece.box.row; row < end; ++matrix) {
        const std::int64_t rows = std::min(end, matrix->box.row + matrix->box.rows) - row;
        const std::int64_t offset = piece.offset + (row - piece.box.row) * piece.box.cols;
        ops::UpdateShard part = part_of(whole, offset, rows * piece.box.cols, {});
        part.planes = {};
        part.gradient = state_at(joined, joined.state_offsets[i] + offset);
        part.gradient_type = joined.type;
        part.factor = rule_.factor(matrix->box.rows, matrix->box.cols);
        updates.push_back(part);
        row += rows;
      }
    }
  }
  return updates;
}

void MatrixUpdate::move(const Exchange& exchange, bool is_scatter) {
  runtime::Program& program = runtime_.program();
  const shard::JoinedMatrices& joined = exchange.joined;
  program.wait(program.exchange_matrices({.transfer = plan_.transfer(),
                                          .op = is_scatter ? schedule::kScatterMatricesOp : schedule::kGatherMatricesOp,
                                          .ranks = static_cast<int>(plan_.group().size()),
                                          .bytes = is_scatter ? joined.scattered_bytes : joined.gathered_bytes,
                                          .redistribution = is_scatter ? &exchange.scatter : &exchange.gather,
                                          .source = is_scatter ? matrices_.data() : states_.data(),
                                          .target = is_scatter ? states_.data() : matrices_.data(),
                                          .type = joined.type}));
}

void MatrixUpdate::update_joined(const Exchange& exchange, std::span<const MatrixShard> bucket,
                                 const std::byte* scalars, const ops::Clip* clip) {
  const base::CudaStream stream = runtime_.parallel().compute->stream();
  const shard::JoinedMatrices& joined = exchange.joined;
  rule_.directions(directions_of(joined, bucket), scalars, clip, stream);
  move(exchange, /*is_scatter=*/false);
  for (const shard::LocalMatrices& batch : joined.own) rule_.iterate(batch_of(joined, batch), stream);
  move(exchange, /*is_scatter=*/true);
  rule_.update(updates_of(joined, bucket), scalars, clip, stream);
}

void MatrixUpdate::update(std::span<const MatrixShard> bucket, const std::byte* scalars, const ops::Clip* clip) {
  if (bucket.empty()) return;
  for (const Exchange& exchange : exchanges_of(bucket)) update_joined(exchange, bucket, scalars, clip);
}

}  // namespace tessera::train
