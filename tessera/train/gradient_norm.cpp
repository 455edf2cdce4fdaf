#include "tessera/train/gradient_norm.h"

#include <algorithm>
#include <cmath>

namespace tessera::train {
namespace {

std::int64_t rows_of(const layout::LocalLayout& local) {
  std::int64_t rows = 0;
  for (const layout::Piece& piece : local.pieces) rows += piece.box.rows;
  return rows;
}

// The squares' sums of these rows of main_grad, piece by piece.
void append_row_sums(shard::ShardedParameter& parameter, const layout::LocalLayout& local, double* sums,
                     base::CudaStream stream) {
  const quant::DType type = parameter.types.accumulator;
  for (const layout::Piece& piece : local.pieces) {
    const std::byte* data = parameter.state_gradient() + parameter.types.accumulator_bytes(piece.offset);
    const layout::Box& box = piece.box;
    if (stream != nullptr)
      ops::cuda::row_square_sums(data, type, box.rows, box.cols, piece.stride, sums, stream);
    else
      ops::row_square_sums(data, type, box.rows, box.cols, piece.stride, sums);
    sums += box.rows;
  }
}

}  // namespace

double clip_factor(double norm, double clip) {
  return clip == 0 ? 1.0 : std::min(1.0, clip / (norm + 1e-6));
}

GradientNorm::GradientNorm(runtime::Runtime& runtime) : runtime_(runtime) {
  const shard::Parallel& parallel = runtime.parallel();
  for (schedule::ParameterId id = 0; id < runtime.weights(); ++id) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    if (!parameter.spec.trainable) continue;
    Part part{.id = id, .local = shard::counted_part(parameter)};
    part.rows = rows_of(part.local);
    rows_ += part.rows;
    if (part.rows > 0) parts_.push_back(std::move(part));
  }
  row_sums_ = base::Buffer(static_cast<std::size_t>(rows_) * sizeof(double), parallel.device);
  message_ = base::Buffer(sizeof(Message), parallel.device);
  total_ = base::Buffer(sizeof(double), parallel.device);
  clip_ = base::Buffer(sizeof(ops::Clip), parallel.device);
  if (parallel.is_asynchronous()) let_sums_give_squares();
}

GradientNorm::~GradientNorm() {
  for (const Part& part : parts_) runtime_.parameter(part.id).row_squares = nullptr;
}

// What reads main_grad anyway leaves its rows' squares where this rank needs them, in the order of row_square_sums.
void GradientNorm::let_sums_give_squares() {
  double* next = row_sums_.as<double>().data();
  for (const Part& part : parts_) {
    shard::ShardedParameter& parameter = runtime_.parameter(part.id);
    const bool can = parameter.types.accumulator == quant::DType::fp32 && part.local == parameter.local_storage &&
                     parameter.columns_of_sum(runtime_.parallel().cuts(parameter.spec.domain).replicas) > 0;
    parameter.row_squares = can ? next : nullptr;
    next += part.rows;
  }
}

// Those that no sum has left behind.
void GradientNorm::write_row_sums() {
  double* next = row_sums_.as<double>().data();
  for (const Part& part : parts_) {
    shard::ShardedParameter& parameter = runtime_.parameter(part.id);
    if (!parameter.row_squares_written)
      append_row_sums(parameter, part.local, next, runtime_.parallel().compute->stream());
    next += part.rows;
  }
}

void GradientNorm::compute(double clip) {
  write_row_sums();
  shard::Parallel& parallel = runtime_.parallel();
  const quant::Kernels& kernels = parallel.kernels();
  Message* const sum = message_.as<Message>().data();
  double* const total = total_.as<double>().data();
  kernels.fill(sum, quant::DType::i64, 0, quant::kExactSumWords);
  kernels.add_exactly(row_sums_.as<double>().data(), rows_, sum);
  parallel.norm->lane().wait(parallel.compute->record());
  parallel.compute->wait(parallel.norm->all_reduce(sum, quant::kExactSumWords, quant::DType::i64));
  kernels.round_exactly(sum, total);
  if (base::CudaStream stream = parallel.compute->stream()) {
    ops::cuda::clip_factor(total, clip, result(), stream);
    return;
  }
  const double norm = std::sqrt(*total);
  *result() = {.norm = norm, .factor = clip_factor(norm, clip), .finite = std::isfinite(norm) ? 1 : 0};
}

}  // namespace tessera::train
