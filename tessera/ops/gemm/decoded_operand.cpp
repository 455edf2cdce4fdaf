#include "tessera/ops/gemm/decoded_operand.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/gemm_device.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/gemm/operand_parts.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/cuda_table.h"
#include "tessera/quant/formats/decoded.h"
#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/hadamard.h"

namespace tessera::ops {
namespace {

using quant::Encoding, quant::Extent;

constexpr std::uintptr_t kValuesAlignment = 256;  // in bytes, on a GPU

// Returns the operand of a matrix of decoded values. By columns, the operand is the transposed matrix. On a CPU the
// values of an operand are fp32 and row-major, because the order of the library's sums depends on the layout.
Operand operand_of_values(const at::Tensor& values, const Encoding& encoding, Sides side, const at::Tensor& amax) {
  Operand result{.extent = extent_of(values), .encoding = encoding, .values = values, .amax = amax};
  if (values.is_cpu()) result.values = values.to(at::kFloat);
  if (side == Sides::rows) return result;
  result.extent = transposed(result.extent);
  if (values.is_cpu())
    result.values = result.values.t().contiguous();
  else
    result.is_transposed = true;
  return result;
}

// The encoding of operand.h describes an operand by its rows, so operands by columns have the tiles of their rows.
Encoding encoding_of_side(const Encoding& by_rows, Sides side) {
  return side == Sides::rows ? by_rows : quant::by_columns(by_rows);
}

// Returns the extent of the matrix from which the operand of one side is quantized.
Extent extent_of_side(const at::Tensor& matrix, const Quantization& as, Sides side) {
  const Extent extent = extent_of(matrix);
  return as.transform && side == Sides::columns ? quant::transformed_extent(extent) : extent;
}
const at::Tensor& amax_of_side(const Quantization& as, Sides side) {
  return side == Sides::rows ? as.whole.rows.amax : as.whole.columns.amax;
}

Operand decoded_on_host(const at::Tensor& matrix, const Quantization& as, Sides side) {
  const at::Tensor source = as.transform && side == Sides::columns ? transformed_on_host(matrix) : matrix;
  const at::Tensor values = make(source.sizes(), at::kBFloat16);
  decode_operand({.values = data_of<quant::bfloat16>(source),
                  .matrix = extent_of(source),
                  .encoding = encoding_of_side(as.encoding, side),
                  .whole = number(amax_of_side(as, side)),
                  .rounding = as.rounding},
                 data_of<quant::bfloat16>(values));
  return operand_of_values(values, as.encoding, side, amax_of_side(as, side));
}

// GPU: returns the address of the amax of the operand's matrix; null if the operand has no amax.
const float* whole_number(const Operand& operand) {
  return operand.amax.defined() ? operand.amax.const_data_ptr<float>() : nullptr;
}

// Returns the operand by columns of a matrix as codes and scales, without contents.
Operand kept_codes(const at::Tensor& matrix, const Quantization& as) {
  const Encoding encoding = quant::by_columns(as.encoding);
  const Extent extent = extent_of_side(matrix, as, Sides::columns), stored = stored_extent(encoding, extent);
  return {.extent = transposed(extent),
          .encoding = as.encoding,
          .codes = make({data_bytes(encoding.element, stored.elements())}, at::kByte, matrix.device()),
          .scales = make({scale_extent(encoding, stored).elements()}, at::kByte, matrix.device()),
          .amax = as.whole.columns.amax};
}

// Square tiles serve both sides, so both operands have the same values.
bool is_square(const Encoding& encoding) {
  return encoding.tile.rows == encoding.tile.cols;
}

// GPU and dry run: returns the operands of a matrix without contents.
Operands without_contents(const at::Tensor& matrix, const Quantization& as) {
  const auto values = [&](Sides side) {
    const Extent extent = extent_of_side(matrix, as, side);
    return make({extent.rows, extent.cols}, at::kBFloat16, matrix.device());
  };
  Operands result;
  if (has(as.sides, Sides::rows))
    result.rows = operand_of_values(values(Sides::rows), as.encoding, Sides::rows, as.whole.rows.amax);
  if (!has(as.sides, Sides::columns)) return result;
  if (as.sides == Sides::kept) {
    result.columns = kept_codes(matrix, as);
  } else {
    const bool shares = is_square(as.encoding) && result.rows.defined();
    result.columns = operand_of_values(shares ? result.rows.values : values(Sides::columns), as.encoding,
                                       Sides::columns, as.whole.columns.amax);
  }
  return result;
}

quant::OperandSide side_of_cast(const Operand& operand) {
  if (!operand.defined()) return {};
  quant::OperandSide side{.whole = whole_number(operand)};
  if (operand.values.defined())
    side.decoded = data_of<quant::bfloat16>(operand.values);
  else
    side.stored = {.data = data_of<std::uint8_t>(operand.codes), .scales = operand.scales.mutable_data_ptr()};
  return side;
}

void cast_on_device(const at::Tensor& matrix, const Quantization& as, const Operands& operands) {
  quant::OperandCast cast{.source = data_of<quant::bfloat16>(matrix),
                          .matrix = extent_of(matrix),
                          .encoding = as.encoding,
                          .rows = side_of_cast(operands.rows),
                          .columns = side_of_cast(operands.columns),
                          .transform = as.transform,
                          .rounding = as.rounding};
  if (is_square(as.encoding)) {
    if (!cast.rows.is_wanted()) cast.rows = cast.columns;
    cast.columns = {};
  }
  quant::require_cuda("operands of products").cast_operand(cast, stream_of(matrix));
}

std::int64_t bytes_of_operand(const Operand& operand) {
  return bytes_of({operand.values, operand.codes, operand.scales});
}
// Returns the bytes that a cast of a matrix reads and writes.
std::int64_t bytes_of_cast(const at::Tensor& matrix, const Operands& operands) {
  const bool shares = operands.rows.defined() && operands.rows.values.is_same(operands.columns.values);
  return bytes_of({matrix}) + bytes_of_operand(operands.rows) + (shares ? 0 : bytes_of_operand(operands.columns));
}

// Calls dequantize for the codes of a kept operand. `values` has the extent of the stored codes.
void decode_on_device(const Operand& kept, Extent stored, const at::Tensor& values) {
  const quant::Dequantization work{
      .source = {.data = kept.codes.mutable_data_ptr<std::uint8_t>(), .scales = kept.scales.mutable_data_ptr()},
      .matrix = stored,
      .encoding = quant::by_columns(kept.encoding),
      .target = data_of<quant::bfloat16>(values),
      .decoded = true};
  quant::require_cuda("operands of products").dequantize({&work, 1}, stream_of(values));
}

// Returns alpha of a GPU product and the number 0 (Product::alpha); undefined if alpha is 1.
at::Tensor device_alpha(const Operand& left, const Operand& right) {
  if (!left.amax.defined() && !right.amax.defined()) return {};
  const at::Tensor alpha = make({2}, at::kFloat, left.values.device());
  cuda_only<cuda::write_alpha>({.left = left.encoding,
                                .right = right.encoding,
                                .left_whole = whole_number(left),
                                .right_whole = whole_number(right),
                                .alpha = data_of<float>(alpha)},
                               stream_of(alpha));
  return alpha;
}

bool has_aligned_values(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kValuesAlignment == 0;
}
at::Tensor aligned_values(const at::Tensor& tensor) {
  return has_aligned_values(tensor) ? tensor : tensor.clone();
}

at::Tensor device_decoded_product(const Operand& left, const Operand& right, at::ScalarType type,
                                  const at::Tensor& result) {
  const std::int64_t rows = left.extent.rows, cols = right.extent.rows, inner = left.extent.cols;
  const bool fits = result.defined() && result.scalar_type() == type && has_aligned_values(result);
  at::Tensor whole = fits ? result : make({rows, cols}, type, left.values.device());
  if (rows == 0 || cols == 0 || inner == 0) return whole.zero_();
  const at::Tensor left_values = aligned_values(left.values), right_values = aligned_values(right.values);
  const at::Tensor alpha = device_alpha(left, right), scratch = make({kProductScratch}, at::kByte, whole.device());
  cuda_only<cuda::multiply>({.rows = rows,
                             .cols = cols,
                             .inner = inner,
                             .type = quant::DType::bf16,
                             .result_type = to_dtype(type),
                             .left = left_values.const_data_ptr(),
                             .left_transposed = left.is_transposed,
                             .right = right_values.const_data_ptr(),
                             .right_transposed = !right.is_transposed,
                             .result = whole.mutable_data_ptr(),
                             .alpha = alpha.defined() ? alpha.const_data_ptr<float>() : nullptr},
                            scratch.mutable_data_ptr(), stream_of(whole), /*candidate=*/-1);
  return whole;
}

// The sums are bf16 products, so a dry run reports them as such.
at::Tensor dry_decoded_product(const Operand& left, const Operand& right, at::ScalarType type) {
  const ProductSizes sizes{.rows = left.extent.rows,
                           .cols = right.extent.rows,
                           .inner = left.extent.cols,
                           .call = left.is_transposed    ? ProductCall::wgrad
                                   : right.is_transposed ? ProductCall::dgrad
                                                         : ProductCall::fprop};
  report(product_work("product", sizes, quant::DType::bf16, to_dtype(type)));
  return make({sizes.rows, sizes.cols}, type, left.values.device());
}

at::Tensor host_decoded_product(const Operand& left, const Operand& right, at::ScalarType type) {
  at::Tensor sums = at::mm(left.values, right.values.t());
  const float alpha = quant::product_alpha(left.encoding, number(left.amax), right.encoding, number(right.amax));
  return rounded_to(alpha == 1 ? sums : sums.mul_(alpha), type);
}

}  // namespace

at::Tensor transformed_on_host(const at::Tensor& matrix) {
  const Extent extent = extent_of(matrix), transformed = quant::transformed_extent(extent);
  at::Tensor result = make({transformed.rows, transformed.cols}, at::kBFloat16);
  quant::transform_columns(data_of<quant::bfloat16>(matrix), extent, data_of<quant::bfloat16>(result));
  return result;
}

at::Tensor amaxes_of(const at::Tensor& matrix, Sides sides, bool transform) {
  if (!transform || sides == Sides::rows) return amax_of(matrix);
  const at::Tensor source = bf16_matrix(matrix, "amaxes_of matrix");
  const bool has_rows = has(sides, Sides::rows);
  at::Tensor amaxes = at::zeros({has_rows ? 2 : 1}, source.options().dtype(at::kFloat));
  if (is_dry(source)) {
    report(memory_work("amax", bytes_of({source})));
  } else if (on_cuda(source)) {
    auto* first = data_of<float>(amaxes);
    quant::require_cuda("operands of products")
        .take_operand_amaxes({.source = data_of<quant::bfloat16>(source),
                              .matrix = extent_of(source),
                              .rows = has_rows ? first : nullptr,
                              .columns = first + (has_rows ? 1 : 0)},
                             stream_of(source));
  } else {
    if (has_rows) amaxes.narrow(0, 0, 1).copy_(amax_of(source));
    amaxes.narrow(0, has_rows ? 1 : 0, 1).copy_(amax_of(transformed_on_host(source)));
  }
  return amaxes;
}

Operands quantize_decoded(const at::Tensor& matrix, const Quantization& as) {
  TESSERA_CHECK(as.sides != Sides::kept || !is_square(as.encoding), "quantize: operands in square tiles are not kept");
  TESSERA_CHECK((!as.transform && as.rounding.step == nullptr) || as.encoding == input_encoding(quant::Format::nvfp4),
                "quantize: the transform and stochastic rounding belong to the inputs and gradients of nvfp4");
  if (matrix.is_cpu()) {
    Operands result;
    if (has(as.sides, Sides::rows)) result.rows = decoded_on_host(matrix, as, Sides::rows);
    if (has(as.sides, Sides::columns)) result.columns = decoded_on_host(matrix, as, Sides::columns);
    return result;
  }
  Operands result = without_contents(matrix, as);
  if (is_dry(matrix))
    report(memory_work("quantize", bytes_of_cast(matrix, result)));
  else if (matrix.numel() > 0)
    cast_on_device(matrix, as, result);
  return result;
}

Operand decode(const Operand& kept) {
  if (!is_decoded(kept.encoding) || kept.values.defined()) return kept;
  const Extent matrix = transposed(kept.extent), stored = stored_extent(kept.encoding, matrix);
  at::Tensor values = make({stored.rows, stored.cols}, at::kBFloat16, kept.codes.device());
  if (is_dry(kept.codes))
    report(memory_work("decode", bytes_of_operand(kept) + bytes_of({values})));
  else if (values.numel() > 0)
    decode_on_device(kept, stored, values);
  values = values.narrow(1, 0, matrix.cols).contiguous();
  return operand_of_values(values, kept.encoding, Sides::columns, kept.amax);
}

Operand decoded_weight(const at::Tensor& values, const Encoding& encoding, Sides side, const at::Tensor& amax) {
  const quant::ScaleTile& tile = encoding.tile;
  TESSERA_CHECK(tile.rows == tile.cols || (side == Sides::rows ? tile.rows : tile.cols) == 1,
                "operands of products: tiles of {} x {} do not extend along the dimension of the sum", tile.rows,
                tile.cols);
  const at::Tensor source = dense_like(values, values.sizes(), at::kBFloat16, "decoded_weight values");
  return operand_of_values(source, encoding_of_side(encoding, side), side, amax);
}

at::Tensor decoded_product(const Operand& left, const Operand& right, at::ScalarType type, const at::Tensor& result) {
  if (left.values.is_cpu()) return host_decoded_product(left, right, type);
  if (is_dry(left.values)) return dry_decoded_product(left, right, type);
  return device_decoded_product(left, right, type, result);
}

}  // namespace tessera::ops
