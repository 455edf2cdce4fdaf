#include "tessera/train/gradient_norm.h"

#include <cmath>

#include "tessera/ops/adamw.h"

namespace tessera::train {
namespace {

std::int64_t rows_of(const layout::LocalLayout& local) {
  std::int64_t rows = 0;
  for (const layout::Piece& piece : local.pieces) rows += piece.box.rows;
  return rows;
}

// Appends the row sums of this rank's part of main_grad, piece by piece.
void append_row_sums(shard::ShardedParameter& parameter, std::vector<double>& sums) {
  const std::size_t element = base::size_of(parameter.types.accumulator);
  for (const layout::Piece& piece : parameter.local_state.pieces) {
    sums.resize(sums.size() + static_cast<std::size_t>(piece.box.rows));
    ops::row_square_sums(parameter.state_gradient() + static_cast<std::size_t>(piece.offset) * element,
                         parameter.types.accumulator, piece.box.rows, piece.box.cols, piece.stride,
                         sums.data() + sums.size() - piece.box.rows);
  }
}

double sum_in_order(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum;
}

}  // namespace

GradientNorm::GradientNorm(shard::Runtime& runtime) : runtime_(runtime) {
  const shard::Parallel& parallel = runtime.parallel();
  const bool splits = runtime.cuts().zero && parallel.dp_size() > 1;
  group_ = splits ? parallel.world.get() : parallel.replica.get();
  counts_.assign(static_cast<std::size_t>(group_->size()), 0);
  for (shard::ParameterId id : runtime.by_name()) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    if (!parameter.spec.trainable) continue;
    order_.push_back(id);
    if (!parameter.spec.sharded) continue;
    for (std::size_t rank = 0; rank < counts_.size(); ++rank) counts_[rank] += rows_of(parameter.state.ranks[rank]);
  }
}

double GradientNorm::compute() {
  std::vector<double> own;
  for (shard::ParameterId id : order_)
    if (auto& parameter = runtime_.parameter(id); parameter.spec.sharded) append_row_sums(parameter, own);

  std::vector<std::size_t> next;  // where each rank's row sums go on
  std::size_t total = 0;
  for (std::int64_t count : counts_) {
    next.push_back(total);
    total += static_cast<std::size_t>(count);
  }
  std::vector<double> all(total);
  group_->all_gather(own.data(), all.data(), counts_, base::DType::fp64).synchronize();

  const int tp_size = runtime_.parallel().tp_size();
  double square = 0;
  for (shard::ParameterId id : order_) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    std::vector<double> rows;
    if (!parameter.spec.sharded) {
      append_row_sums(parameter, rows);
      square += sum_in_order(rows);
      continue;
    }
    rows.assign(static_cast<std::size_t>(parameter.storage.shape.rows), 0.0);
    for (int tp = 0; tp < tp_size; ++tp) {
      for (auto rank = static_cast<std::size_t>(tp); rank < counts_.size(); rank += static_cast<std::size_t>(tp_size)) {
        for (const layout::Piece& piece : parameter.state.ranks[rank].pieces)
          for (std::int64_t row = 0; row < piece.box.rows; ++row)
            rows[static_cast<std::size_t>(piece.box.row + row)] += all[next[rank]++];
      }
    }
    square += sum_in_order(rows);
  }
  return std::sqrt(square);
}

}  // namespace tessera::train
