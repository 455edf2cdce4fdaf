#include "tessera/train/update/gradient_norm.h"

#include <algorithm>
#include <utility>

#include "tessera/base/cuda_only.h"
#include "tessera/base/error.h"
#include "tessera/ops/optimizer/square_sums.h"

namespace tessera::train {
namespace {

std::int64_t rows_of(const layout::LocalLayout& local) {
  std::int64_t rows = 0;
  for (const layout::Piece& piece : local.pieces) rows += piece.box.rows;
  return rows;
}

// Writes the sums of squares of these rows of main_grad, one piece after another.
void append_row_sums(shard::ShardedParameter& parameter, const layout::LocalLayout& local, int replicas, double* sums,
                     base::CudaStream stream) {
  const quant::DType type = parameter.gradient_type();
  const std::uint8_t* const all_states = parameter.states_of_rows(replicas);
  for (const layout::Piece& piece : local.pieces) {
    const std::byte* data = parameter.state_gradient() + shard::bytes_of(piece.offset, type);
    const layout::Box& box = piece.box;
    const std::uint8_t* states = all_states == nullptr ? nullptr : all_states + piece.offset / box.cols;
    if (stream != nullptr)
      base::cuda_only<ops::cuda::row_square_sums>(data, type, box.rows, box.cols, piece.stride, sums, stream, states);
    else
      ops::row_square_sums(data, type, box.rows, box.cols, piece.stride, sums, states);
    sums += box.rows;
  }
}

}  // namespace

GradientNorm::GradientNorm(runtime::Runtime& runtime, const FiniteCheck* check) : runtime_(runtime), check_(check) {
  const shard::ParallelGroups& parallel = runtime.parallel();
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
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
  message_.fill_zero();
  clip_ = base::Buffer(sizeof(ops::Clip), parallel.device);
  clip_.fill_zero();
  if (parallel.is_asynchronous()) take_squares_from_sums();
}

GradientNorm::~GradientNorm() {
  for (const Part& part : parts_) runtime_.parameter(part.id).write_row_squares(nullptr);
}

// From now on, kernels that read main_grad also write the squares of its rows to row_sums_, in the order of
// row_square_sums.
void GradientNorm::take_squares_from_sums() {
  double* next = row_sums_.as<double>().data();
  for (const Part& part : parts_) {
    shard::ShardedParameter& parameter = runtime_.parameter(part.id);
    const bool can = parameter.types.accumulator == quant::DType::fp32 && part.local == parameter.local_storage &&
                     parameter.columns_of_sum(runtime_.parallel().cuts(parameter.spec.domain).replicas) > 0;
    parameter.write_row_squares(can ? next : nullptr);
    next += part.rows;
  }
}

// Computes the row sums that kernels of gradient sums have not written.
void GradientNorm::write_row_sums() {
  double* next = row_sums_.as<double>().data();
  for (const Part& part : parts_) {
    shard::ShardedParameter& parameter = runtime_.parameter(part.id);
    if (!parameter.row_squares_written())
      append_row_sums(parameter, part.local, runtime_.parallel().cuts(parameter.spec.domain).replicas, next,
                      runtime_.parallel().compute->stream());
    next += part.rows;
  }
}

std::int64_t* GradientNorm::stop_counter(std::string name) {
  TESSERA_CHECK(std::ranges::find(stop_counters_, name) == stop_counters_.end(),
                "stop counter '{}' is registered twice", name);
  TESSERA_CHECK(stop_counters_.size() < ops::kStopCounters, "stop counter '{}': the message has room for {}", name,
                ops::kStopCounters);
  stop_counters_.push_back(std::move(name));
  return message_.as<Message>()[0].stops + stop_counters_.size() - 1;
}

std::optional<Stop> GradientNorm::stop_of(const ops::Clip& clip) const {
  for (std::size_t i = 0; i < stop_counters_.size(); ++i)
    if (clip.stops[i] > 0) return Stop{.counter = stop_counters_[i], .count = clip.stops[i]};
  return std::nullopt;
}

void GradientNorm::clear_suppression() {
  runtime_.parallel().kernels().fill(&result()->suppressed, quant::DType::i64, 0, 1);
}

void GradientNorm::compute(double clip) {
  write_row_sums();
  shard::ParallelGroups& parallel = runtime_.parallel();
  const quant::Kernels& kernels = parallel.kernels();
  Message* const message = message_.as<Message>().data();
  double* const total = total_.as<double>().data();
  kernels.fill(&message->squares, quant::DType::i64, 0, quant::kExactSumWords);
  if (check_ != nullptr) check_->count_after_step(&message->squares.nans);
  kernels.add_exactly(row_sums_.as<double>().data(), rows_, &message->squares);
  parallel.norm->lane().wait(parallel.compute->record());
  parallel.compute->wait(parallel.norm->all_reduce(message, kMessageWords, quant::DType::i64));
  kernels.round_exactly(&message->squares, total);
  if (base::CudaStream stream = parallel.compute->stream())
    base::cuda_only<ops::cuda::decide_update>(total, clip, message->stops, result(), stream);
  else
    ops::decide_update(*total, clip, message->stops, *result());
}

}  // namespace tessera::train
