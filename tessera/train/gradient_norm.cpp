#include "tessera/train/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/ops/row_sums.h"

namespace tessera::train {
namespace {

std::int64_t rows_of(const layout::LocalLayout& local) {
  std::int64_t rows = 0;
  for (const layout::Piece& piece : local.pieces) rows += piece.box.rows;
  return rows;
}

double sum_in_order(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum;
}

template <typename T>
base::Buffer on_device_of(const std::vector<T>& values, base::Device device) {
  base::Buffer buffer(values.size() * sizeof(T), device);
  base::copy_bytes(buffer.data(), values.data(), buffer.size());
  return buffer;
}

}  // namespace

double clip_factor(double norm, double clip) {
  return clip == 0 ? 1.0 : std::min(1.0, clip / (norm + 1e-6));
}

GradientNorm::GradientNorm(shard::Runtime& runtime) : runtime_(runtime) {
  const shard::Parallel& parallel = runtime.parallel();
  const bool splits = runtime.cuts().zero && parallel.dp_size() > 1;
  group_ = splits ? parallel.world.get() : parallel.replica.get();
  counts_.assign(static_cast<std::size_t>(group_->size()), 0);
  for (shard::ParameterId id : runtime.by_name()) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    if (!parameter.spec.trainable) continue;
    order_.push_back(id);
    if (!parameter.spec.sharded) {
      replicated_ += rows_of(parameter.local_state);
      continue;
    }
    for (std::size_t rank = 0; rank < counts_.size(); ++rank) counts_[rank] += rows_of(parameter.state.ranks[rank]);
  }
  clip_ = base::Buffer(sizeof(ops::Clip), parallel.device);
  if (parallel.is_asynchronous()) index_rows();
}

std::int64_t GradientNorm::rows_gathered() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

// Of this rank's part of main_grad, piece by piece.
void GradientNorm::append_row_sums(shard::ShardedParameter& parameter, double* sums) {
  const std::size_t element = base::size_of(parameter.types.accumulator);
  for (const layout::Piece& piece : parameter.local_state.pieces) {
    const std::byte* data = parameter.state_gradient() + static_cast<std::size_t>(piece.offset) * element;
    const layout::Box& box = piece.box;
    if (base::CudaStream stream = runtime_.parallel().compute->stream())
      ops::cuda::row_square_sums(data, parameter.types.accumulator, box.rows, box.cols, piece.stride, sums, stream);
    else
      ops::row_square_sums(data, parameter.types.accumulator, box.rows, box.cols, piece.stride, sums);
    sums += box.rows;
  }
}

void GradientNorm::compute(double clip) {
  if (runtime_.parallel().is_asynchronous()) return compute_on_device(clip);
  std::vector<double> own(static_cast<std::size_t>(counts_[static_cast<std::size_t>(group_->rank())]));
  std::vector<double> replicated(static_cast<std::size_t>(replicated_));
  double *next = own.data(), *next_replicated = replicated.data();
  for (shard::ParameterId id : order_) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    double*& at = parameter.spec.sharded ? next : next_replicated;
    append_row_sums(parameter, at);
    at += rows_of(parameter.local_state);
  }
  std::vector<double> all(static_cast<std::size_t>(rows_gathered()));
  group_->all_gather(own.data(), all.data(), counts_, base::DType::fp64).synchronize();
  const double norm = std::sqrt(combined(all, replicated));
  clip_.as<ops::Clip>()[0] = {.norm = norm, .factor = clip_factor(norm, clip), .finite = std::isfinite(norm) ? 1 : 0};
}

double GradientNorm::combined(const std::vector<double>& all, const std::vector<double>& replicated) const {
  std::vector<std::size_t> next;  // where each rank's row sums go on
  std::size_t before = 0;
  for (std::int64_t count : counts_) {
    next.push_back(before);
    before += static_cast<std::size_t>(count);
  }
  const auto tp_size = static_cast<std::size_t>(runtime_.parallel().tp_size());
  auto next_replicated = replicated.begin();
  double square = 0;
  for (shard::ParameterId id : order_) {
    const shard::ShardedParameter& parameter = runtime_.parameter(id);
    std::vector<double> rows;
    if (parameter.spec.sharded) {
      rows.assign(static_cast<std::size_t>(parameter.storage.shape.rows), 0.0);
      for (std::size_t tp = 0; tp < tp_size; ++tp)
        for (std::size_t rank = tp; rank < counts_.size(); rank += tp_size)
          for (const layout::Piece& piece : parameter.state.ranks[rank].pieces)
            for (std::int64_t row = 0; row < piece.box.rows; ++row)
              rows[static_cast<std::size_t>(piece.box.row + row)] += all[next[rank]++];
    } else {
      rows.assign(next_replicated, next_replicated + rows_of(parameter.local_state));
      next_replicated += rows_of(parameter.local_state);
    }
    square += sum_in_order(rows);
  }
  return square;
}

// For each row of the model, parameters in name order, where its parts lie in values_, in tp-rank order.
void GradientNorm::index_rows() {
  std::vector<std::int64_t> next;
  std::int64_t before = 0;
  for (std::int64_t count : counts_) {
    next.push_back(before);
    before += count;
  }
  const auto tp_size = static_cast<std::size_t>(runtime_.parallel().tp_size());
  std::vector<std::int64_t> begins{0}, positions;
  for (shard::ParameterId id : order_) {
    const shard::ShardedParameter& parameter = runtime_.parameter(id);
    std::vector<std::vector<std::int64_t>> rows(static_cast<std::size_t>(parameter.storage.shape.rows));
    if (parameter.spec.sharded) {
      for (std::size_t tp = 0; tp < tp_size; ++tp)
        for (std::size_t rank = tp; rank < counts_.size(); rank += tp_size)
          for (const layout::Piece& piece : parameter.state.ranks[rank].pieces)
            for (std::int64_t row = 0; row < piece.box.rows; ++row)
              rows[static_cast<std::size_t>(piece.box.row + row)].push_back(next[rank]++);
    } else {
      for (std::vector<std::int64_t>& row : rows) row.push_back(before++);
    }
    for (const std::vector<std::int64_t>& row : rows) {
      positions.insert(positions.end(), row.begin(), row.end());
      begins.push_back(static_cast<std::int64_t>(positions.size()));
    }
  }
  const base::Device device = runtime_.parallel().device;
  rows_ = static_cast<std::int64_t>(begins.size()) - 1;
  const auto doubles = [device](std::int64_t count) {
    return base::Buffer(static_cast<std::size_t>(count) * sizeof(double), device);
  };
  own_ = doubles(counts_[static_cast<std::size_t>(group_->rank())]);
  let_sums_give_squares();
  values_ = doubles(rows_gathered() + replicated_);
  sums_ = doubles((rows_ + ops::cuda::kRowsTogether - 1) / ops::cuda::kRowsTogether);
  begins_ = on_device_of(begins, device);
  positions_ = on_device_of(positions, device);
}

// What reads main_grad anyway leaves its rows' squares where they are gathered from, in the order of row_square_sums.
void GradientNorm::let_sums_give_squares() {
  double* next = own_.as<double>().data();
  for (shard::ParameterId id : order_) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    if (!parameter.spec.sharded) continue;
    const bool can =
        parameter.types.accumulator == base::DType::fp32 && parameter.columns_of_sum(runtime_.parallel().dp_size()) > 0;
    parameter.row_squares = can ? next : nullptr;
    next += rows_of(parameter.local_state);
  }
}

void GradientNorm::compute_on_device(double clip) {
  shard::Parallel& parallel = runtime_.parallel();
  double* next = own_.as<double>().data();
  double* all = values_.as<double>().data();
  double* next_replicated = all + rows_gathered();
  for (shard::ParameterId id : order_) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    double*& at = parameter.spec.sharded ? next : next_replicated;
    if (!parameter.row_squares_written) append_row_sums(parameter, at);
    at += rows_of(parameter.local_state);
  }
  group_->lane().wait(parallel.compute->record());
  parallel.compute->wait(group_->all_gather(own_.data(), all, counts_, base::DType::fp64));
  const base::CudaStream stream = parallel.compute->stream();
  double* sums = sums_.as<double>().data();
  ops::cuda::sum_rows(all, begins_.as<std::int64_t>().data(), positions_.as<std::int64_t>().data(), rows_, sums,
                      stream);
  ops::cuda::clip_factor(sums, static_cast<std::int64_t>(sums_.size() / sizeof(double)), clip,
                         clip_.as<ops::Clip>().data(), stream);
}

}  // namespace tessera::train
