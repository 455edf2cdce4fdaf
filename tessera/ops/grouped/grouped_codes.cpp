#include "tessera/ops/grouped/grouped_codes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "tessera/ops/aten_types.h"
#include "tessera/ops/grouped/grouped_parts.h"
#include "tessera/quant/formats/decoded.h"

namespace tessera::ops {
namespace {

using quant::Encoding, quant::kCodesMultiple;

std::int64_t codes_padded(std::int64_t size) {
  return (size + kCodesMultiple - 1) / kCodesMultiple * kCodesMultiple;
}

// Throws Error unless matrices of this encoding and with these sizes can be multiplied as codes.
void check_codes(const Encoding& encoding, std::int64_t out, std::int64_t in, const char* what) {
  TESSERA_CHECK(has_one_scale(encoding) && encoding.element == quant::Element::e4m3 && out % kCodesMultiple == 0 &&
                    in % kCodesMultiple == 0,
                "{}: matrices [{} x {}], expected e4m3 codes with one scale for each matrix and multiples of {}", what,
                out, in, kCodesMultiple);
}

at::Tensor bytes_like(at::IntArrayRef shape, const at::Tensor& on) {
  return make(shape, at::kByte, on.device());
}

// The codes of rows, and the description of their groups.
struct GroupCodes {
  at::Tensor codes;    // fprop, dgrad: [room, cols]; wgrad: [cols, room of spread rows]
  at::Tensor factors;  // fprop, dgrad: [room], alpha of each row
  at::Tensor ends;
};

GroupCodes coded_rows(const at::Tensor& rows, const RowQuantization& as, const StackFactor& w,
                      const Selection& selection) {
  GroupCodes result{.codes = bytes_like(rows.sizes(), rows),
                    .factors = make({selection.room}, at::kFloat, rows.device()),
                    .ends = selection.ends};
  if (is_dry(rows)) {
    report(memory_work("quantize", 3 * selection.expected * rows.size(1)));
    return result;
  }
  const base::CudaStream stream = stream_of(rows);
  const StackedRows source = stacked(rows, selection, RowMatrices::blocks);
  const DevicePlaces found = find_places(source, kCodeStrip, rows.device(), stream);
  cuda_only<cuda::cast_codes>({.source = source,
                               .places = found.places,
                               .scales = device_numbers(as.whole.multiplier),
                               .codes = data_of<std::uint8_t>(result.codes),
                               .factors = data_of<float>(result.factors),
                               .own = device_numbers(as.whole.inverse),
                               .partner = device_numbers(w.whole),
                               .per_expert = selection.blocks,
                               .amax = as.amax},
                              stream);
  return result;
}

GroupCodes coded_columns(const RowFactor& factor, const at::Tensor& rows, const Selection& selection) {
  const std::int64_t room = codes_padded(selection.room) + kExpertRows * selection.local;
  GroupCodes result{.codes = bytes_like({rows.size(1), room}, rows), .factors = {}, .ends = {}};
  if (is_dry(rows)) {
    report(memory_work("quantize", 3 * selection.expected * rows.size(1)));
    return result;
  }
  const base::CudaStream stream = stream_of(rows);
  const StackedRows source = stacked(rows, selection, RowMatrices::experts);
  // The grouped product refuses groups without elements, so an expert without rows has rows of zeros.
  DevicePlaces found = find_places(source, kCodeStrip, rows.device(), stream, static_cast<int>(kExpertRows));
  cuda_only<cuda::cast_codes>({.source = source,
                               .places = found.places,
                               .scales = device_numbers(factor.as.whole.multiplier),
                               .codes = data_of<std::uint8_t>(result.codes),
                               .is_transposed = true,
                               .stride = room},
                              stream);
  result.ends = found.result_ends();
  return result;
}

void report_codes_product(const char* name, const ProductSizes& sizes, at::ScalarType result) {
  ProductSizes of_codes = sizes;
  of_codes.call = ProductCall::operands;
  of_codes.format = quant::Format::fp8;
  of_codes.left = of_codes.right = quant::weight_encoding(quant::Format::fp8);
  report(product_work(name, of_codes, quant::DType::u8, to_dtype(result)));
}

// Returns rows times the codes of a stack.
at::Tensor times_codes(const char* name, const at::Tensor& rows, const RowQuantization& as, const StackFactor& w,
                       const Selection& selection, bool fast) {
  const std::int64_t inner = rows.size(1), cols = w.codes.size(1);
  check_codes(as.encoding, cols, inner, name);
  // Without local experts the width of an output is unknown.
  TESSERA_CHECK(
      w.codes.dim() == 3 && w.codes.size(0) == selection.local && (selection.local == 0 || w.codes.size(2) == inner),
      "{}: codes of {} matrices with sums of {}, expected {} and {}", name, w.codes.size(0), w.codes.size(-1),
      selection.local, inner);
  at::Tensor result = make({selection.room, cols}, at::kBFloat16, rows.device());
  const bool is_empty = selection.local == 0 || selection.room == 0 || w.codes.numel() == 0;
  if (is_empty && !is_dry(rows)) return result.zero_();
  const GroupCodes coded = coded_rows(rows, as, w, selection);
  if (is_dry(rows)) {
    report_codes_product(name, {.rows = selection.expected, .cols = cols, .inner = inner, .fast = fast}, at::kBFloat16);
    return result;
  }
  cuda_only<cuda::multiply_row_codes>(
      {.left = coded.codes, .right = w.codes, .factors = coded.factors, .ends = coded.ends, .fast = fast}, result);
  return result;
}

}  // namespace

StackFactor codes_of_stack(const at::Tensor& stack, std::int64_t matrices, const Encoding& encoding,
                           const WholeScale& whole, Sides side) {
  const at::Tensor source = dense_like(stack, stack.sizes(), at::kBFloat16, "code_stack stack");
  const std::int64_t in = source.size(1), out = matrices == 0 ? 0 : source.size(0) / matrices;
  check_codes(encoding, out, in, "code_stack");
  StackFactor result{.values = {}, .codes = {}, .encoding = encoding, .whole = whole.inverse};
  const bool is_transposed = side == Sides::columns;
  result.codes = is_transposed ? bytes_like({matrices, in, out}, source) : bytes_like({matrices, out, in}, source);
  if (is_dry(source)) {
    report(memory_work("quantize", bytes_of({source, result.codes})));
    return result;
  }
  cuda_only<cuda::cast_codes>({.source = stacked(source, matrices),
                               .scales = device_numbers(whole.multiplier),
                               .codes = data_of<std::uint8_t>(result.codes),
                               .is_transposed = is_transposed},
                              stream_of(source));
  return result;
}

at::Tensor fprop_of_codes(const at::Tensor& x, const RowQuantization& as, const StackFactor& w,
                          const Selection& selection) {
  return times_codes("experts fprop", x, as, w, selection, /*fast=*/true);
}

at::Tensor dgrad_of_codes(const at::Tensor& dy, const RowQuantization& as, const StackFactor& w,
                          const Selection& selection) {
  return times_codes("experts dgrad", dy, as, w, selection, /*fast=*/false);
}

void wgrad_of_codes(const RowFactor& dy, const RowFactor& x, const Selection& selection, at::Tensor& dw) {
  const std::int64_t out = dy.rows.size(1), in = x.rows.size(1);
  check_codes(dy.as.encoding, out, in, "experts wgrad dy");
  check_codes(x.as.encoding, out, in, "experts wgrad x");
  require_writable(dw, {selection.local * out, in}, at::kBFloat16, "experts wgrad dw");
  if (selection.local == 0 || selection.room == 0 || dw.numel() == 0) {
    if (!is_dry(dw)) dw.zero_();
    return;
  }
  const GroupCodes left = coded_columns(dy, dy.rows, selection), right = coded_columns(x, x.rows, selection);
  if (is_dry(dw)) {
    report_codes_product("experts wgrad", {.rows = out, .cols = in, .inner = selection.expected}, at::kBFloat16);
    return;
  }
  const at::Tensor alpha = (dy.as.whole.inverse * x.as.whole.inverse).expand({selection.local});
  const at::Tensor factors = alpha.view({-1, 1}).expand({selection.local, out}).contiguous();
  const std::int64_t shape[] = {selection.local, out, in};
  at::Tensor result = dw.view(shape);
  cuda_only<cuda::multiply_inner_codes>(
      {.left = left.codes, .right = right.codes, .factors = factors, .ends = left.ends}, result);
}

}  // namespace tessera::ops
