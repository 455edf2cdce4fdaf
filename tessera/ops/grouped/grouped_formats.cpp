#include "tessera/ops/grouped/grouped_formats.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <bit>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/gemm.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/gemm/operand_parts.h"
#include "tessera/ops/grouped/grouped.h"
#include "tessera/ops/grouped/grouped_casts.h"
#include "tessera/ops/grouped/grouped_codes.h"
#include "tessera/ops/grouped/grouped_parts.h"
#include "tessera/ops/tensor.h"
#include "tessera/quant/formats/decoded.h"
#include "tessera/quant/formats/format.h"

namespace tessera::ops {
namespace {

using quant::Encoding;

// Returns the number of a matrix. `numbers` has one number for each matrix or for all matrices.
float number_at(const at::Tensor& numbers, std::int64_t matrix) {
  if (!numbers.defined()) return 1;
  return numbers.const_data_ptr<float>()[numbers.numel() == 1 ? 0 : matrix];
}
// Throws Error unless the tensors of a scale have one number for each of `matrices` or for all of them.
void check_scales(const Encoding& encoding, const WholeScale& whole, std::int64_t matrices) {
  if (!needs_whole(encoding)) return;
  for (const at::Tensor& numbers : {scales_of(encoding, whole), numbers_of(encoding, whole)})
    TESSERA_CHECK(numbers.defined() && (numbers.numel() == 1 || numbers.numel() == matrices),
                  "experts: scales of {} matrices, expected 1 or {}", numbers.defined() ? numbers.numel() : 0,
                  matrices);
}

void check_quantization(const RowQuantization& as, const Selection& selection, RowMatrices matrices) {
  check_scales(as.encoding, as.whole, matrices_of(selection, matrices));
  TESSERA_CHECK((!as.transform && as.rounding.step == nullptr) || as.encoding == input_encoding(quant::Format::nvfp4),
                "experts: the transform and stochastic rounding belong to the inputs and gradients of nvfp4");
  TESSERA_CHECK(!as.transform || matrices == RowMatrices::experts, "experts: only wgrad transforms its rows");
}

// CPU: returns the decoded values of one matrix in fp32. `matrix` is dense.
at::Tensor host_decoded(const at::Tensor& matrix, const Encoding& encoding, float scale,
                        const quant::StochasticRounding& rounding) {
  const at::Tensor values = make(matrix.sizes(), at::kBFloat16);
  decode_operand({.values = data_of<quant::bfloat16>(matrix),
                  .matrix = extent_of(matrix),
                  .encoding = encoding,
                  .whole = scale,
                  .rounding = rounding},
                 data_of<quant::bfloat16>(values));
  return values.to(at::kFloat);
}

// CPU: returns the decoded rows [begin, end) of a local expert in one block. Tiles of randomly rounded values belong to
// one row, so that each row is decoded as the token that it has.
at::Tensor host_decoded_rows(const at::Tensor& rows, const RowQuantization& as, const Selection& selection,
                             std::int64_t expert, std::int64_t block) {
  const auto [begin, end] = selection.rows_of(expert, block);
  const float scale = number_at(scales_of(as.encoding, as.whole), expert * selection.blocks + block);
  const at::Tensor own = rows.narrow(0, begin, end - begin);
  if (as.rounding.step == nullptr) return host_decoded(own, as.encoding, scale, {});
  const at::Tensor result = make(own.sizes(), at::kFloat);
  const auto* tokens = selection.tokens.const_data_ptr<std::int64_t>() + begin;
  quant::StochasticRounding rounding = as.rounding.of(expert);
  for (std::int64_t row = 0; row < own.size(0); ++row) {
    rounding.first_token = as.rounding.first_token + tokens[row];
    result.narrow(0, row, 1).copy_(host_decoded(own.narrow(0, row, 1), as.encoding, scale, rounding));
  }
  return result;
}

// CPU: returns the decoded rows of a local expert in all blocks, by columns.
at::Tensor host_decoded_columns(const at::Tensor& rows, const RowQuantization& as, const Selection& selection,
                                std::int64_t expert) {
  const auto [begin, end] = selection.rows_of(expert);
  const at::Tensor own = rows.narrow(0, begin, end - begin);
  return host_decoded(as.transform ? transformed_on_host(own) : own, quant::by_columns(as.encoding),
                      number_at(scales_of(as.encoding, as.whole), expert), as.rounding.of(expert));
}

at::Tensor times_alpha(at::Tensor sums, float alpha) {
  return alpha == 1 ? sums : sums.mul_(alpha);
}

// CPU: calls product(decoded rows of the expert in the block, decoded matrix of the expert), which returns fp32 sums.
template <typename Product>
void each_host_product(const at::Tensor& rows, const RowQuantization& as, const StackFactor& w,
                       const Selection& selection, at::Tensor& result, Product product) {
  if (selection.local == 0) return;
  const std::int64_t height = w.values.size(0) / selection.local;
  const at::Tensor numbers = numbers_of(as.encoding, as.whole);
  for (std::int64_t expert = 0; expert < selection.local; ++expert) {
    if (selection.rows_of(expert).first == selection.rows_of(expert).second) continue;
    const at::Tensor weight = w.values.narrow(0, expert * height, height).to(at::kFloat);
    for (std::int64_t block = 0; block < selection.blocks; ++block) {
      const auto [begin, end] = selection.rows_of(expert, block);
      if (begin == end) continue;
      const std::int64_t matrix = expert * selection.blocks + block;
      const at::Tensor left = host_decoded_rows(rows, as, selection, expert, block);
      const float alpha =
          product_alpha(as.encoding, number_at(numbers, matrix), w.encoding, number_at(w.whole, expert));
      result.narrow(0, begin, end - begin)
          .copy_(rounded_to(times_alpha(product(left, weight), alpha), result.scalar_type()));
    }
  }
}

void raise_host_amax(const at::Tensor& rows, const Selection& selection, float* amax) {
  const std::int64_t used = selection.rows();
  quant::take_amaxes({rows.const_data_ptr(), quant::DType::bf16}, {.rows = used, .cols = rows.size(1)}, {},
                     {.end = used * rows.size(1)}, {amax, 1});
}

// ---- GPU and dry run

// GPU: raises the amaxes of stacked matrices.
void take_device_amaxes(const at::Tensor& rows, const StackedRows& source, float* amaxes, bool transform = false) {
  if (source.matrices == 0 || rows.numel() == 0) return;
  const base::CudaStream stream = stream_of(rows);
  DevicePlaces found;
  if (source.ends != nullptr) found = find_places(source, kExpertRows, rows.device(), stream);
  cuda_only<cuda::take_grouped_amaxes>(
      {.source = source, .places = found.places, .amaxes = amaxes, .transform = transform}, stream);
}

// Returns the decoded values of rows, and the selection that describes them.
struct DecodedRows {
  at::Tensor values;
  Selection selection;
};

// GPU: decodes rows for fprop and dgrad, or by columns for wgrad. If `partner` is not null, multiplies them by alpha.
DecodedRows device_decoded(const at::Tensor& rows, const RowQuantization& as, RowMatrices matrices,
                           const Partner* partner, const Selection& selection) {
  const bool by_columns = matrices == RowMatrices::experts;
  const Encoding encoding = by_columns ? quant::by_columns(as.encoding) : as.encoding;
  DecodedRows result{.values = {}, .selection = selection};
  if (by_columns) result.selection.room += kExpertRows * selection.local;
  result.values = make({result.selection.room, rows.size(1)}, at::kBFloat16, rows.device());
  if (is_dry(rows)) {
    report(memory_work("quantize", 4 * selection.expected * rows.size(1)));
    return result;
  }
  if (selection.local == 0 || rows.numel() == 0) return result;
  const base::CudaStream stream = stream_of(rows);
  const StackedRows source = stacked(rows, selection, matrices);
  const DevicePlaces found = find_places(source, strip_rows(encoding), rows.device(), stream);
  const at::Tensor numbers = numbers_of(as.encoding, as.whole);
  GroupedCast cast{.source = source,
                   .encoding = encoding,
                   .places = found.places,
                   .scales = device_numbers(scales_of(as.encoding, as.whole)),
                   .per_expert = source.matrices / selection.local,
                   .target = data_of<quant::bfloat16>(result.values),
                   .is_spread = by_columns,
                   .amax = by_columns ? nullptr : as.amax,
                   .transform = as.transform,
                   .rounding = as.rounding,
                   .row_tokens = by_columns ? nullptr : selection.row_tokens.const_data_ptr<std::int32_t>()};
  if (partner != nullptr && (numbers.defined() || partner->numbers.defined())) {
    cast.multiplies = true;
    cast.own = device_numbers(numbers);
    cast.partner = device_numbers(partner->numbers);
    cast.partner_encoding = partner->encoding;
  }
  cuda_only<cuda::cast_grouped>(cast, stream);
  if (by_columns) result.selection.ends = found.result_ends();
  return result;
}

// GPU and dry run: quantizes rows for fprop or dgrad with a stack.
at::Tensor device_rows(const at::Tensor& rows, const RowQuantization& as, const StackFactor& w,
                       const Selection& selection) {
  const Partner partner{.numbers = w.whole, .encoding = w.encoding};
  return device_decoded(rows, as, RowMatrices::blocks, &partner, selection).values;
}

}  // namespace

at::Tensor amaxes_of_rows(const at::Tensor& rows, const Selection& selection, RowMatrices matrices, bool transform) {
  TESSERA_CHECK(!transform || matrices == RowMatrices::experts, "amaxes_of_rows: only wgrad transforms its rows");
  const at::Tensor source = bf16_rows(rows, selection, "amaxes_of_rows rows");
  const std::int64_t count = matrices_of(selection, matrices);
  at::Tensor amaxes = at::zeros({count}, source.options().dtype(at::kFloat));
  if (is_dry(source)) {
    report(memory_work("amax", 2 * selection.expected * source.size(1)));
    return amaxes;
  }
  if (on_cuda(source)) {
    take_device_amaxes(source, stacked(source, selection, matrices), amaxes.mutable_data_ptr<float>(), transform);
    return amaxes;
  }
  const std::int64_t blocks = count == 0 ? 1 : selection.blocks * selection.local / count;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = selection.rows_of(i * blocks / selection.blocks, i * blocks % selection.blocks).first;
    const std::int64_t last = (i + 1) * blocks - 1;
    const std::int64_t end = selection.rows_of(last / selection.blocks, last % selection.blocks).second;
    if (begin == end) continue;
    const at::Tensor own = source.narrow(0, begin, end - begin);
    amaxes.narrow(0, i, 1).copy_(amax_of(transform ? transformed_on_host(own) : own));
  }
  return amaxes;
}

at::Tensor amaxes_of_stack(const at::Tensor& stack, std::int64_t matrices) {
  const at::Tensor source = dense(stack, 2, "amaxes_of_stack stack");
  at::Tensor amaxes = at::zeros({matrices}, source.options().dtype(at::kFloat));
  if (is_dry(source)) {
    report(memory_work("amax", bytes_of({source})));
    return amaxes;
  }
  if (on_cuda(source)) {
    take_device_amaxes(source, stacked(source, matrices), amaxes.mutable_data_ptr<float>());
    return amaxes;
  }
  for (std::int64_t i = 0; i < matrices; ++i) {
    const std::int64_t height = source.size(0) / matrices;
    amaxes.narrow(0, i, 1).copy_(amax_of(source.narrow(0, i * height, height)));
  }
  return amaxes;
}

WholeScale grouped_scales(const Encoding& encoding, const at::Tensor& amaxes) {
  if (encoding.scale == quant::Scale::e4m3) return {.amax = amaxes};
  if (!has_one_scale(encoding)) return {};
  WholeScale result{.multiplier = at::empty_like(amaxes), .inverse = at::empty_like(amaxes)};
  if (is_dry(amaxes) || amaxes.numel() == 0) return result;
  auto* multipliers = data_of<float>(result.multiplier);
  auto* inverses = data_of<float>(result.inverse);
  if (on_cuda(amaxes)) {
    cuda_only<cuda::scales_of_amaxes>(encoding, amaxes.const_data_ptr<float>(), amaxes.numel(), multipliers, inverses,
                                      stream_of(amaxes));
    return result;
  }
  for (std::int64_t i = 0; i < amaxes.numel(); ++i) {
    const quant::TileScale scale = operand_scale(encoding, amaxes.const_data_ptr<float>()[i], 0);
    multipliers[i] = scale.multiplier;
    inverses[i] = std::bit_cast<float>(scale.stored);
  }
  return result;
}

at::Tensor numbers_of(const Encoding& encoding, const WholeScale& whole) {
  if (encoding.scale == quant::Scale::e4m3) return whole.amax;
  return has_one_scale(encoding) ? whole.inverse : at::Tensor();
}

StackFactor decode_stack(const at::Tensor& stack, std::int64_t matrices, const Encoding& encoding,
                         const WholeScale& whole) {
  const at::Tensor source = dense_like(stack, stack.sizes(), at::kBFloat16, "decode_stack stack");
  check_scales(encoding, whole, matrices);
  StackFactor result{.values = make(source.sizes(), at::kBFloat16, source.device()),
                     .encoding = encoding,
                     .whole = numbers_of(encoding, whole)};
  if (is_dry(source)) {
    report(memory_work("quantize", bytes_of({source, result.values})));
    return result;
  }
  if (source.numel() == 0) return result;
  const at::Tensor& scales = scales_of(encoding, whole);
  if (on_cuda(source)) {
    cuda_only<cuda::cast_grouped>({.source = stacked(source, matrices),
                                   .encoding = encoding,
                                   .scales = device_numbers(scales),
                                   .target = data_of<quant::bfloat16>(result.values)},
                                  stream_of(source));
    return result;
  }
  const std::int64_t height = source.size(0) / matrices;
  for (std::int64_t i = 0; i < matrices; ++i) {
    const at::Tensor matrix = source.narrow(0, i * height, height);
    decode_operand({.values = data_of<quant::bfloat16>(matrix),
                    .matrix = extent_of(matrix),
                    .encoding = encoding,
                    .whole = number_at(scales, i),
                    .rounding = {}},
                   data_of<quant::bfloat16>(result.values) + i * matrix.numel());
  }
  return result;
}

StackFactor code_stack(const at::Tensor& stack, std::int64_t matrices, const Encoding& encoding,
                       const WholeScale& whole, Sides side) {
  check_scales(encoding, whole, matrices);
  if (stack.is_cpu()) return decode_stack(stack, matrices, encoding, whole);
  return codes_of_stack(stack, matrices, encoding, whole, side);
}

namespace {

StackFactor factor_of(const StoredStack& stack, at::Device device) {
  TESSERA_CHECK(has_one_scale(stack.encoding) && stack.encoding.element == quant::Element::e4m3,
                "a stored stack: expected e4m3 codes with one scale for each matrix");
  return {.values = {},
          .codes = {},
          .encoding = stack.encoding,
          .whole = view_of(stack.planes.scales, {stack.matrices}, quant::DType::fp32, device)};
}

}  // namespace

StackFactor stored_stack(const StoredStack& stack, quant::ProductKernel kernel, at::Device device) {
  StackFactor result = factor_of(stack, device);
  const std::int64_t all[] = {stack.matrices, stack.matrix.rows, stack.matrix.cols};
  const at::Tensor codes = view_of(stack.planes.data, all, quant::DType::u8, device);
  if (kernel == quant::ProductKernel::native && !device.is_cpu()) {
    result.codes = codes;
    return result;
  }
  result.values = make({stack.matrices * stack.matrix.rows, stack.matrix.cols}, at::kBFloat16, device);
  if (device.is_meta())
    report(memory_work("decode", bytes_of({codes, result.values})));
  else if (codes.numel() > 0)
    result.values.copy_(codes.view(at::kFloat8_e4m3fn).view(result.values.sizes()));
  return result;
}

StackFactor copied_stack(const StoredStack& stack, at::Device device) {
  StackFactor result = factor_of(stack, device);
  const std::int64_t all[] = {stack.matrices, stack.matrix.cols, stack.matrix.rows};
  const at::Tensor codes = view_of(stack.planes.data, all, quant::DType::u8, device);
  if (device.is_cpu())
    result.values = codes.view(at::kFloat8_e4m3fn).to(at::kBFloat16).transpose(1, 2).reshape({-1, stack.matrix.cols});
  else
    result.codes = codes;
  return result;
}

namespace {

// Throws Error unless the rows have the width that the decoded matrices of the stack multiply.
void check_stack(const at::Tensor& rows, const StackFactor& w, std::int64_t local, bool by_rows, const char* what) {
  TESSERA_CHECK(w.values.dim() == 2 && w.values.scalar_type() == at::kBFloat16 &&
                    (local == 0 ? w.values.size(0) == 0 : w.values.size(0) % local == 0),
                "{}: a stack of {} rows, expected bf16 matrices of {} experts", what, w.values.size(0), local);
  const std::int64_t width = by_rows ? w.values.size(1) : local == 0 ? rows.size(1) : w.values.size(0) / local;
  TESSERA_CHECK(rows.size(1) == width, "{}: rows have {} columns, expected {} as in w", what, rows.size(1), width);
}

}  // namespace

at::Tensor grouped_fprop(const at::Tensor& x, const RowQuantization& as, const StackFactor& w,
                         const Selection& selection) {
  const at::Tensor rows = bf16_rows(x, selection, "grouped_fprop x");
  if (w.codes.defined()) {
    check_quantization(as, selection, RowMatrices::blocks);
    return fprop_of_codes(rows, as, w, selection);
  }
  check_stack(rows, w, selection.local, /*by_rows=*/true, "grouped_fprop w");
  check_quantization(as, selection, RowMatrices::blocks);
  if (!rows.is_cpu()) return grouped_fprop(device_rows(rows, as, w, selection), w.values, selection);
  if (as.amax != nullptr) raise_host_amax(rows, selection, as.amax);
  const std::int64_t local = selection.local;
  at::Tensor y = make({selection.room, local == 0 ? 0 : w.values.size(0) / local}, at::kBFloat16);
  each_host_product(rows, as, w, selection, y,
                    [](const at::Tensor& left, const at::Tensor& weight) { return gemm_fprop(left, weight); });
  return y;
}

at::Tensor grouped_dgrad(const at::Tensor& dy, const RowQuantization& as, const StackFactor& w,
                         const Selection& selection) {
  const at::Tensor rows = bf16_rows(dy, selection, "grouped_dgrad dy");
  if (w.codes.defined()) {
    check_quantization(as, selection, RowMatrices::blocks);
    return dgrad_of_codes(rows, as, w, selection);
  }
  check_stack(rows, w, selection.local, /*by_rows=*/false, "grouped_dgrad w");
  check_quantization(as, selection, RowMatrices::blocks);
  if (!rows.is_cpu()) return grouped_dgrad(device_rows(rows, as, w, selection), w.values, selection);
  if (as.amax != nullptr) raise_host_amax(rows, selection, as.amax);
  at::Tensor dx = make({selection.room, w.values.size(1)}, at::kBFloat16);
  each_host_product(rows, as, w, selection, dx,
                    [](const at::Tensor& left, const at::Tensor& weight) { return gemm_dgrad(left, weight); });
  return dx;
}

namespace {

void host_wgrad(const at::Tensor& dy, const RowQuantization& dy_as, const at::Tensor& x, const RowQuantization& x_as,
                const Selection& selection, at::Tensor& dw, bool accumulate) {
  const std::int64_t height = selection.local == 0 ? 0 : dw.size(0) / selection.local;
  for (std::int64_t expert = 0; expert < selection.local; ++expert) {
    const auto [begin, end] = selection.rows_of(expert);
    at::Tensor own = dw.narrow(0, expert * height, height);
    if (begin == end) {
      if (!accumulate) own.zero_();
      continue;
    }
    at::Tensor alone = make({height, x.size(1)}, at::kFloat);
    gemm_wgrad(host_decoded_columns(dy, dy_as, selection, expert), host_decoded_columns(x, x_as, selection, expert),
               alone, /*accumulate=*/false);
    const auto number = [&](const RowQuantization& as) { return number_at(numbers_of(as.encoding, as.whole), expert); };
    alone = times_alpha(alone, product_alpha(dy_as.encoding, number(dy_as), x_as.encoding, number(x_as)));
    if (accumulate)
      add_to(own, alone);
    else
      own.copy_(rounded_to(alone, own.scalar_type()));
  }
}

}  // namespace

void grouped_wgrad(const RowFactor& dy, const RowFactor& x, const Selection& selection, at::Tensor& dw, bool accumulate,
                   quant::ProductKernel kernel) {
  const at::Tensor gradients = bf16_rows(dy.rows, selection, "grouped_wgrad dy");
  const at::Tensor inputs = bf16_rows(x.rows, selection, "grouped_wgrad x");
  for (const RowFactor* factor : {&dy, &x}) check_quantization(factor->as, selection, RowMatrices::experts);
  TESSERA_CHECK(dy.as.transform == x.as.transform,
                "grouped_wgrad: expected that both factors are transformed or neither");
  TESSERA_CHECK(dw.defined() && dw.dim() == 2 && (selection.local == 0 || dw.size(0) % selection.local == 0),
                "grouped_wgrad dw: expected a matrix of {} experts", selection.local);
  if (kernel == quant::ProductKernel::native && !gradients.is_cpu()) {
    TESSERA_CHECK(!accumulate, "grouped_wgrad: expected products of codes to overwrite the gradient");
    return wgrad_of_codes({.rows = gradients, .as = dy.as}, {.rows = inputs, .as = x.as}, selection, dw);
  }
  if (!gradients.is_cpu()) {
    const Partner partner{.numbers = numbers_of(x.as.encoding, x.as.whole), .encoding = x.as.encoding};
    const DecodedRows left = device_decoded(gradients, dy.as, RowMatrices::experts, &partner, selection);
    const DecodedRows right = device_decoded(inputs, x.as, RowMatrices::experts, nullptr, selection);
    return grouped_wgrad(left.values, right.values, left.selection, dw, accumulate);
  }
  require_writable(dw, {dw.size(0), inputs.size(1)},
                   !accumulate && at::isFloatingType(dw.scalar_type()) ? dw.scalar_type() : at::kFloat,
                   "grouped_wgrad dw");
  if (selection.local > 0)
    TESSERA_CHECK(gradients.size(1) == dw.size(0) / selection.local, "grouped_wgrad: dy has {} columns, expected {}",
                  gradients.size(1), dw.size(0) / selection.local);
  host_wgrad(gradients, dy.as, inputs, x.as, selection, dw, accumulate);
}

}  // namespace tessera::ops
