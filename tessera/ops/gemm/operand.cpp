#include "tessera/ops/gemm/operand.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/operand_parts.h"
#include "tessera/ops/gemm/whole_cast.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/cuda_table.h"
#include "tessera/quant/formats/columnwise.h"
#include "tessera/quant/formats/decoded.h"

namespace tessera::ops {
namespace {

using quant::Encoding, quant::Extent, quant::Quantized, quant::Scale, quant::ScaleTile;

Extent padded(Extent extent) {
  return quant::padded_codes(extent);
}

at::Tensor make_like(const Extent& extent, at::ScalarType type, at::Device device = at::kCPU) {
  return make({extent.rows, extent.cols}, type, device);
}

// CPU: returns the values of a bf16 matrix after a round trip through an encoding with fp32 scales.
at::Tensor rounded_values(const at::Tensor& matrix, const Encoding& encoding, const WholeScale& whole) {
  const Extent extent = extent_of(matrix);
  const quant::Source from{matrix.const_data_ptr(), quant::DType::bf16};
  const quant::Slice all{.end = extent.elements()};
  const auto tiles = static_cast<std::size_t>(scale_extent(encoding, extent).elements());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(data_bytes(encoding.element, extent.elements())));
  std::vector<float> scales(tiles), multipliers(tiles);
  if (whole.multiplier.defined()) {
    multipliers.assign(1, number(whole.multiplier));
    scales.assign(1, number(whole.inverse));
  } else {
    std::vector<float> amaxes(tiles);
    take_amaxes(from, extent, encoding.tile, all, amaxes);
    make_operand_scales(encoding, amaxes, /*tensor_amax=*/0, multipliers, scales.data());
  }
  cast(from, extent, encoding, all, multipliers, codes.data());
  at::Tensor values = make_like(extent, at::kFloat);
  dequantize(Quantized{codes.data(), scales.data(), nullptr}, extent, encoding, data_of<float>(values));
  return values;
}

Operand host_operand(const at::Tensor& matrix, const Encoding& encoding, const WholeScale& whole) {
  return {.extent = extent_of(matrix), .encoding = encoding, .values = rounded_values(matrix, encoding, whole)};
}

const quant::CudaTable& kernels() {
  return quant::require_cuda("operands of products");
}

const quant::bfloat16* bf16_data(const at::Tensor& matrix) {
  return static_cast<const quant::bfloat16*>(matrix.const_data_ptr());
}

Operand device_operand(Extent extent, const Encoding& encoding, at::Device device) {
  return {.extent = extent, .encoding = encoding, .codes = make_like(padded(extent), at::kByte, device)};
}

std::uint8_t* codes_of(const Operand& operand) {
  return operand.codes.defined() ? data_of<std::uint8_t>(operand.codes) : nullptr;
}
float* scales_of(const Operand& operand) {
  return operand.scales.defined() ? data_of<float>(operand.scales) : nullptr;
}

// GPU: allocates the operands. The operand by columns has the transposed extent.
Operands device_operands(Extent matrix, const Encoding& encoding, Sides sides, at::Device device) {
  Operands result;
  if (has(sides, Sides::rows)) result.rows = device_operand(matrix, encoding, device);
  if (has(sides, Sides::columns)) result.columns = device_operand(transposed(matrix), encoding, device);
  return result;
}

// Returns the operands of a dry run, without memory. `read` is the matrix that is quantized.
Operands dry_operands(const at::Tensor& read, const Quantization& as) {
  Operands result = device_operands(extent_of(read), as.encoding, as.sides, read.device());
  std::int64_t bytes = bytes_of({read});
  for (const Operand* operand : {&result.rows, &result.columns})
    if (operand->defined()) bytes += stored_bytes(operand->extent, operand->encoding);
  report(memory_work("quantize", bytes));
  return result;
}

Operands quantize_whole(const at::Tensor& matrix, const Quantization& as) {
  WholeCast result = whole_cast(extent_of(matrix), as, matrix.device());
  result.cast.source = bf16_data(matrix);
  kernels().cast_fp8(result.cast, stream_of(matrix));
  return std::move(result.operands);
}

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + quant::kBlockCast - 1) / quant::kBlockCast;
}

// Scales of padding are zero, because products read whole rows of scales.
at::Tensor block_scales(const Operand& operand, bool squares) {
  const Extent& extent = operand.extent;
  const Extent scales = squares ? Extent{blocks_of(extent.rows), quant::scale_stride(extent.cols)}
                                : Extent{blocks_of(extent.cols), padded(extent).rows};
  return at::zeros({scales.rows, scales.cols}, operand.codes.options().dtype(at::kFloat));
}

Operands quantize_blocks(const at::Tensor& matrix, const Encoding& encoding, Sides sides) {
  const bool squares = encoding.tile.rows > 1;
  const Extent extent = extent_of(matrix);
  Operands result = device_operands(extent, encoding, sides, matrix.device());
  for (Operand* operand : {&result.rows, &result.columns})
    if (operand->codes.defined()) operand->scales = block_scales(*operand, squares);
  kernels().cast_blocks({.source = bf16_data(matrix),
                         .matrix = extent,
                         .padded = padded(extent),
                         .element = encoding.element,
                         .powers_of_two = encoding.powers_of_two,
                         .squares = squares,
                         .rowwise = codes_of(result.rows),
                         .rowwise_scales = scales_of(result.rows),
                         .columnwise = codes_of(result.columns),
                         .columnwise_scales = scales_of(result.columns)},
                        stream_of(matrix));
  return result;
}

Operands quantize_on_device(const at::Tensor& matrix, const Quantization& as) {
  if (has_one_scale(as.encoding)) return quantize_whole(matrix, as);
  return quantize_blocks(matrix, as.encoding, as.sides);
}

void raise_amax(const at::Tensor& matrix, float& amax) {
  quant::take_amaxes({matrix.const_data_ptr(), quant::DType::bf16}, extent_of(matrix), {}, {.end = matrix.numel()},
                     {&amax, 1});
}

}  // namespace

at::Tensor bf16_matrix(const at::Tensor& matrix, const char* what) {
  at::Tensor result = dense(matrix, 2, what);
  TESSERA_CHECK(result.scalar_type() == at::kBFloat16, "{}: element type {}, expected bf16", what,
                c10::toString(result.scalar_type()));
  return result;
}

WholeCast whole_cast(Extent matrix, const Quantization& as, at::Device device) {
  WholeCast result{.operands = device_operands(matrix, as.encoding, as.sides, device), .cast = {}};
  Operands& operands = result.operands;
  operands.rows.scales = operands.columns.scales = as.whole.rows.inverse;
  result.cast = {.source = nullptr,
                 .matrix = matrix,
                 .padded = padded(matrix),
                 .element = as.encoding.element,
                 .multiplier = data_of<float>(as.whole.rows.multiplier),
                 .rowwise = codes_of(operands.rows),
                 .columnwise = codes_of(operands.columns),
                 .amax = as.amax};
  return result;
}

std::int64_t stored_bytes(Extent extent, const Encoding& encoding) {
  if (is_decoded(encoding)) {
    const Extent stored = stored_extent(encoding, transposed(extent));
    return data_bytes(encoding.element, stored.elements()) +
           scale_extent(quant::by_columns(encoding), stored).elements();
  }
  const std::int64_t data = data_bytes(encoding.element, padded(extent).elements());
  if (has_one_scale(encoding)) return data;
  const auto scale_bytes = static_cast<std::int64_t>(encoding.scale == Scale::fp32 ? sizeof(float) : 1);
  return data + scale_bytes * scale_extent(encoding, padded(extent)).elements();
}

at::Tensor amax_of(const at::Tensor& matrix) {
  const at::Tensor source = bf16_matrix(matrix, "amax_of matrix");
  at::Tensor amax = at::zeros({1}, source.options().dtype(at::kFloat));
  if (is_dry(source)) {
    report(memory_work("amax", bytes_of({source})));
    return amax;
  }
  if (!on_cuda(source)) {
    raise_amax(source, *amax.mutable_data_ptr<float>());
    return amax;
  }
  const quant::AmaxTask task{{source.const_data_ptr(), quant::DType::bf16}, source.numel(), data_of<float>(amax)};
  kernels().take_amaxes({&task, 1}, stream_of(source));
  return amax;
}

WholeScale whole_scale(const Encoding& encoding, const at::Tensor& amax) {
  if (encoding.scale == Scale::e4m3) return {.amax = amax};
  if (!has_one_scale(encoding)) return {};
  WholeScale result{.multiplier = at::empty({1}, amax.options()), .inverse = at::empty({1}, amax.options())};
  if (is_dry(amax)) return result;
  auto* multiplier = data_of<float>(result.multiplier);
  auto* inverse = data_of<float>(result.inverse);
  if (on_cuda(amax)) {
    kernels().scale_of_amax(encoding, data_of<float>(amax), multiplier, inverse, stream_of(amax));
    return result;
  }
  const quant::TileScale scale = operand_scale(encoding, number(amax), 0);
  *multiplier = scale.multiplier;
  *inverse = std::bit_cast<float>(scale.stored);
  return result;
}

WholeScales whole_scales(const Encoding& encoding, const at::Tensor& amaxes) {
  if (amaxes.numel() == 1) return whole_scale(encoding, amaxes);
  return {whole_scale(encoding, amaxes.narrow(0, 0, 1)), whole_scale(encoding, amaxes.narrow(0, 1, 1))};
}

namespace {
bool has_numbers(const Encoding& encoding, const WholeScale& whole) {
  if (has_one_scale(encoding)) return whole.multiplier.defined() && whole.inverse.defined();
  return !needs_whole(encoding) || whole.amax.defined();
}
}  // namespace

Operands quantize(const at::Tensor& matrix, const Quantization& as) {
  const at::Tensor source = bf16_matrix(matrix, "quantize matrix");
  for (const Sides side : {Sides::rows, Sides::columns})
    TESSERA_CHECK(
        !has(as.sides, side) || has_numbers(as.encoding, side == Sides::rows ? as.whole.rows : as.whole.columns),
        "quantize: this encoding needs the {} of the whole matrix", has_one_scale(as.encoding) ? "scale" : "amax");
  if (is_decoded(as.encoding)) return quantize_decoded(source, as);
  if (is_dry(source)) return dry_operands(source, as);
  if (on_cuda(source)) return quantize_on_device(source, as);
  if (as.amax != nullptr) raise_amax(source, *as.amax);
  Operands result;
  if (has(as.sides, Sides::rows)) result.rows = host_operand(source, as.encoding, as.whole.rows);
  if (has(as.sides, Sides::columns))
    result.columns = host_operand(source.t().contiguous(), as.encoding, as.whole.columns);
  return result;
}

at::Tensor fp8_codes(const at::Tensor& matrix, const Encoding& encoding, const WholeScale& whole, float* amax) {
  const at::Tensor source = bf16_matrix(matrix, "fp8_codes matrix");
  const Extent extent = extent_of(source);
  if (is_dry(source)) {
    report(memory_work("quantize", source.numel() * 3));
    return make_like(extent, at::kByte, source.device());
  }
  if (on_cuda(source)) {
    const Operand rows = quantize_whole(source, {encoding, Sides::rows, whole, amax}).rows;
    return rows.codes.narrow(0, 0, extent.rows).narrow(1, 0, extent.cols).contiguous();
  }
  if (amax != nullptr) raise_amax(source, *amax);
  at::Tensor codes = make_like(extent, at::kByte);
  const float multiplier = number(whole.multiplier);
  cast({source.const_data_ptr(), quant::DType::bf16}, extent, encoding, {.end = extent.elements()}, {&multiplier, 1},
       data_of<std::uint8_t>(codes));
  return codes;
}

Operand weight_operand(const at::Tensor& weight, quant::Format format, Sides side, const WholeScale& whole) {
  const Encoding encoding = weight_encoding(format);
  Operands both = quantize(weight, encoding, side, whole);
  return side == Sides::rows ? std::move(both.rows) : std::move(both.columns);
}

namespace {

// Returns the weight's own scales, with each row of tiles padded to the stride that products read.
at::Tensor padded_scales(const at::Tensor& scales, std::int64_t stride) {
  if (scales.size(1) == stride) return scales;
  return at::constant_pad_nd(scales, {0, stride - scales.size(1)}, 0);
}

// Returns codes with padding; `codes` itself if no padding is needed.
at::Tensor padded_codes(const at::Tensor& codes) {
  const Extent extent = extent_of(codes), wide = padded(extent);
  if (wide == extent) return codes;
  return at::constant_pad_nd(codes, {0, wide.cols - extent.cols, 0, wide.rows - extent.rows}, 0);
}

Operand stored_rows(const Quantized& planes, Extent extent, const Encoding& encoding, at::Device device) {
  const Extent tiles = scale_extent(encoding, extent);
  const at::Tensor codes = view_of(planes.data, {extent.rows, extent.cols}, quant::DType::u8, device);
  const at::Tensor scales = view_of(planes.scales, {tiles.rows, tiles.cols}, quant::DType::fp32, device);
  return {.extent = extent,
          .encoding = encoding,
          .codes = padded_codes(codes),
          .scales = has_one_scale(encoding) ? scales : padded_scales(scales, quant::scale_stride(extent.cols))};
}

// Returns the values of stored codes.
Operand stored_values(const Quantized& planes, Extent extent, const Encoding& encoding) {
  at::Tensor values = make_like(extent, at::kFloat);
  dequantize(planes, extent, encoding, data_of<float>(values));
  return {.extent = extent, .encoding = encoding, .values = values};
}

at::Tensor dense_part(const at::Tensor& matrix, Extent extent) {
  return matrix.narrow(0, 0, extent.rows).narrow(1, 0, extent.cols).contiguous();
}

// Returns the operand by columns of codes with one scale, which are activations.
Operand transposed_codes(const Quantized& planes, Extent extent, const Encoding& encoding, at::Device device) {
  if (device.is_meta()) {
    report(memory_work("transpose", 2 * stored_bytes(extent, encoding)));
    return device_operand(transposed(extent), encoding, device);
  }
  const at::Tensor copy = make({quant::columnwise_layout(encoding, extent).bytes()}, at::kByte, device);
  const quant::Transposition work =
      quant::columnwise_copy(planes, extent, encoding, static_cast<std::byte*>(copy.mutable_data_ptr()));
  if (device.is_cpu()) {
    transpose(work);
    return borrowed_columns(work.target, extent, encoding, device);
  }
  kernels().create_columnwise({&work, 1}, stream_of(copy));
  const Extent codes = work.codes();
  return {.extent = transposed(extent),
          .encoding = encoding,
          .codes = copy.narrow(0, 0, codes.elements()).view({codes.rows, codes.cols})};
}

}  // namespace

Operand borrowed_weight(const Quantized& planes, Extent extent, const Encoding& encoding, at::Device device) {
  quant::columnwise_layout(encoding, extent);  // throws an error if products of the encoding are not native
  if (device.is_cpu()) return stored_values(planes, extent, encoding);
  if (device.is_meta()) return device_operand(extent, encoding, device);
  return stored_rows(planes, extent, encoding, device);
}

Operand borrowed_columns(const Quantized& copy, Extent extent, const Encoding& encoding, at::Device device) {
  const Extent across = transposed(extent);
  const quant::ColumnwiseLayout layout = quant::columnwise_layout(encoding, extent);
  if (device.is_meta()) return device_operand(across, encoding, device);
  const at::Tensor codes = view_of(copy.data, {layout.codes.rows, layout.codes.cols}, quant::DType::u8, device);
  const at::Tensor scales = view_of(copy.scales, {layout.scales.rows, layout.scales.cols}, quant::DType::fp32, device);
  if (!device.is_cpu()) return {.extent = across, .encoding = encoding, .codes = codes, .scales = scales};
  const at::Tensor own_codes = dense_part(codes, across),
                   own_scales = dense_part(scales, scale_extent(encoding, across));
  return stored_values({data_of<std::uint8_t>(own_codes), data_of<float>(own_scales), nullptr}, across, encoding);
}

Operands operands_of_codes(const at::Tensor& codes, const Encoding& encoding, Sides sides, const WholeScale& whole) {
  const Extent extent = extent_of(codes);
  const Quantized planes{data_of<std::uint8_t>(codes), data_of<float>(whole.inverse), nullptr};
  Operands result;
  if (has(sides, Sides::rows)) {
    if (on_cuda(codes))
      result.rows = {.extent = extent, .encoding = encoding, .codes = padded_codes(codes), .scales = whole.inverse};
    else
      result.rows = borrowed_weight(planes, extent, encoding, codes.device());
  }
  if (has(sides, Sides::columns)) {
    result.columns = transposed_codes(planes, extent, encoding, codes.device());
    if (on_cuda(codes)) result.columns.scales = whole.inverse;
  }
  return result;
}

}  // namespace tessera::ops
