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

double RowIndex::sum(std::span<const double> values) const {
  double total = 0;
  std::size_t row = 0;
  for (const std::int64_t end : ends) {
    double of_parameter = 0;
    for (; row < static_cast<std::size_t>(end); ++row) {
      double of_row = 0;
      for (std::int64_t i = begins[row]; i < begins[row + 1]; ++i)
        of_row += values[static_cast<std::size_t>(positions[static_cast<std::size_t>(i)])];
      of_parameter += of_row;
    }
    total += of_parameter;
  }
  return total;
}

GradientNorm::GradientNorm(runtime::Runtime& runtime) : runtime_(runtime) {
  const shard::Parallel& parallel = runtime.parallel();
  group_ = runtime.cuts().splits_state() ? parallel.world.get() : parallel.replica.get();
  counts_.assign(static_cast<std::size_t>(group_->size()), 0);
  for (schedule::ParameterId id : runtime.by_name()) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    if (!parameter.spec.trainable) continue;
    order_.push_back(id);
    if (!parameter.spec.sharded) {
      replicated_ += rows_of(parameter.local_state);
      continue;
    }
    for (std::size_t rank = 0; rank < counts_.size(); ++rank) counts_[rank] += rows_of(parameter.state.ranks[rank]);
  }
  index_ = index_rows();
  const base::Device device = parallel.device;
  const auto doubles = [device](std::int64_t count) {
    return base::Buffer(static_cast<std::size_t>(count) * sizeof(double), device);
  };
  own_ = doubles(counts_[static_cast<std::size_t>(group_->rank())]);
  values_ = doubles(rows_gathered() + replicated_);
  clip_ = base::Buffer(sizeof(ops::Clip), device);
  if (!parallel.is_asynchronous()) return;
  begins_ = on_device_of(index_.begins, device);
  positions_ = on_device_of(index_.positions, device);
  sums_ = doubles((index_.rows() + ops::cuda::kRowsTogether - 1) / ops::cuda::kRowsTogether);
  let_sums_give_squares();
}

GradientNorm::~GradientNorm() {
  for (const schedule::ParameterId id : order_) runtime_.parameter(id).row_squares = nullptr;
}

std::int64_t GradientNorm::rows_gathered() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

RowIndex GradientNorm::index_rows() const {
  std::vector<std::int64_t> next;  // where each rank's row sums go on
  std::int64_t before = 0;
  for (std::int64_t count : counts_) {
    next.push_back(before);
    before += count;
  }
  const auto tp_size = static_cast<std::size_t>(runtime_.parallel().tp_size());
  RowIndex index;
  for (schedule::ParameterId id : order_) {
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
      index.positions.insert(index.positions.end(), row.begin(), row.end());
      index.begins.push_back(static_cast<std::int64_t>(index.positions.size()));
    }
    index.ends.push_back(index.rows());
  }
  return index;
}

// Of this rank's part of main_grad, piece by piece.
void GradientNorm::append_row_sums(shard::ShardedParameter& parameter, double* sums) {
  const std::size_t element = quant::size_of(parameter.types.accumulator);
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

// What reads main_grad anyway leaves its rows' squares where they are gathered from, in the order of row_square_sums.
void GradientNorm::let_sums_give_squares() {
  double* next = own_.as<double>().data();
  for (schedule::ParameterId id : order_) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    if (!parameter.spec.sharded) continue;
    const bool can = parameter.types.accumulator == quant::DType::fp32 &&
                     parameter.columns_of_sum(runtime_.parallel().dp_size()) > 0;
    parameter.row_squares = can ? next : nullptr;
    next += rows_of(parameter.local_state);
  }
}

// Those that no sum has left behind.
void GradientNorm::write_row_sums() {
  double* next = own_.as<double>().data();
  double* next_replicated = values_.as<double>().data() + rows_gathered();
  for (schedule::ParameterId id : order_) {
    shard::ShardedParameter& parameter = runtime_.parameter(id);
    double*& at = parameter.spec.sharded ? next : next_replicated;
    if (!parameter.row_squares_written) append_row_sums(parameter, at);
    at += rows_of(parameter.local_state);
  }
}

void GradientNorm::compute(double clip) {
  write_row_sums();
  shard::Parallel& parallel = runtime_.parallel();
  double* values = values_.as<double>().data();
  group_->lane().wait(parallel.compute->record());
  const base::Fence gathered = group_->all_gather(own_.data(), values, counts_, quant::DType::fp64);
  if (!parallel.is_asynchronous()) {
    gathered.synchronize();
    const double norm = std::sqrt(index_.sum(values_.as<double>()));
    clip_.as<ops::Clip>()[0] = {.norm = norm, .factor = clip_factor(norm, clip), .finite = std::isfinite(norm) ? 1 : 0};
    return;
  }
  parallel.compute->wait(gathered);
  const base::CudaStream stream = parallel.compute->stream();
  double* sums = sums_.as<double>().data();
  ops::cuda::sum_rows(values, begins_.as<std::int64_t>().data(), positions_.as<std::int64_t>().data(), index_.rows(),
                      sums, stream);
  ops::cuda::clip_factor(sums, static_cast<std::int64_t>(sums_.size() / sizeof(double)), clip,
                         clip_.as<ops::Clip>().data(), stream);
}

}  // namespace tessera::train
