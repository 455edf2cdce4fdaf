// Functions about rows and stacks of experts that the files of their products share. Internal to ops.
#pragma once
#include "tessera/base/error.h"
#include "tessera/ops/gemm/operand_parts.h"
#include "tessera/ops/grouped/grouped_casts.h"
#include "tessera/ops/grouped/grouped_types.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {

// Returns the rows as a dense bf16 matrix. Throws Error for another type or number of rows than the selection's.
inline at::Tensor bf16_rows(const at::Tensor& rows, const Selection& selection, const char* what) {
  const at::Tensor result = dense(rows, 2, what);
  TESSERA_CHECK(result.scalar_type() == at::kBFloat16 && result.size(0) == selection.room,
                "{}: {} rows of type {}, expected {} rows of bf16", what, result.size(0),
                c10::toString(result.scalar_type()), selection.room);
  return result;
}

// Returns the number that quantization reads (OperandSource::whole).
inline const at::Tensor& scales_of(const quant::Encoding& encoding, const WholeScale& whole) {
  return has_one_scale(encoding) ? whole.multiplier : whole.amax;
}

// The rows of a selection, as arguments of kernels.
inline StackedRows stacked(const at::Tensor& rows, const Selection& selection, RowMatrices matrices) {
  const at::Tensor& ends = matrices == RowMatrices::blocks ? selection.block_ends : selection.ends;
  return {.values = static_cast<const quant::bfloat16*>(rows.const_data_ptr()),
          .room = selection.room,
          .cols = rows.size(1),
          .matrices = matrices_of(selection, matrices),
          .ends = ends.const_data_ptr<std::int32_t>()};
}
inline StackedRows stacked(const at::Tensor& stack, std::int64_t matrices) {
  return {.values = static_cast<const quant::bfloat16*>(stack.const_data_ptr()),
          .room = stack.size(0),
          .cols = stack.size(1),
          .matrices = matrices,
          .height = matrices == 0 ? 0 : stack.size(0) / matrices};
}

inline MatrixNumbers device_numbers(const at::Tensor& numbers) {
  if (!numbers.defined()) return {};
  return {.values = numbers.const_data_ptr<float>(), .is_one = numbers.numel() == 1};
}

// The places of the strips of a source, and the memory that holds them.
struct DevicePlaces {
  at::Tensor memory;  // [2, matrices]: ends of strips, ends of results
  StripPlaces places;

  at::Tensor result_ends() const { return memory.select(0, 1); }
};
inline DevicePlaces find_places(const StackedRows& source, std::int64_t strip, at::Device device,
                                base::CudaStream stream, int least = 0) {
  DevicePlaces result{.memory = make({2, source.matrices}, at::kInt, device), .places = {}};
  auto* memory = result.memory.mutable_data_ptr<std::int32_t>();
  result.places = {.strip_ends = memory, .result_ends = memory + source.matrices};
  cuda_only<cuda::find_places>(source, strip, result.places, stream, least);
  return result;
}

// The other factor of a product, whose numbers are part of alpha.
struct Partner {
  at::Tensor numbers;  // one for each expert
  quant::Encoding encoding;
};

}  // namespace tessera::ops
