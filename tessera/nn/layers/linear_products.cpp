#include "tessera/nn/layers/linear_products.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/nn/collectives.h"
#include "tessera/nn/nvfp4_recipe.h"
#include "tessera/nn/stash.h"
#include "tessera/ops/gemm/gemm.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/swiglu/swiglu_operand.h"
#include "tessera/quant/formats/hadamard.h"

namespace tessera::nn {

using quant::Encoding, quant::Format;

Encoding encoding_of(const Context& context, const Weight& weight, OperandKind kind) {
  return kind == OperandKind::input ? input_encoding(weight.product)
                                    : gradient_encoding(weight.product, context.products.recipe);
}

namespace {
int scale_number(const Weight& weight, OperandKind kind) {
  return kind == OperandKind::input ? weight.input_scale : weight.gradient_scale;
}
}  // namespace

bool is_delayed(const Context& context, const Weight& weight, OperandKind kind) {
  return context.scales != nullptr && scale_number(weight, kind) >= 0;
}

std::optional<ops::WholeScale> known_scale(const PassState& pass, const Weight& weight, OperandKind kind) {
  if (!is_delayed(pass.context, weight, kind) || !pass.context.scales->are_known()) return std::nullopt;
  return pass.context.scales->scale(scale_number(weight, kind));
}

float* place_of_amax(const PassState& pass, const Weight& weight, OperandKind kind) {
  if (!is_delayed(pass.context, weight, kind)) return nullptr;
  const int number = scale_number(weight, kind);
  return pass.context.program.is_training() ? pass.context.scales->amax(number)
                                            : pass.context.scales->evaluated_amax(number);
}

namespace {

// Reduces the amax over tp. is_event: whether the reduction is recorded as an event of the step. Delayed scaling, which
// needs the reduction only in its first steps, records no event.
void take_greatest(const PassState& pass, at::Tensor& amax, bool is_event) {
  if (is_event) return all_reduce_tp(pass, amax, comm::ReduceOp::max);
  reduce_unrecorded(pass, amax, comm::ReduceOp::max);
}

// A matrix of a layer before it is quantized.
struct Unquantized {
  const at::Tensor& matrix;
  bool is_part = false;  // whether the tp ranks hold different parts of the logical matrix
};

ops::WholeScales scales_of(const PassState& pass, const Weight& weight, OperandKind kind, const Unquantized& source,
                           ops::Sides sides) {
  const Encoding encoding = encoding_of(pass.context, weight, kind);
  if (!ops::needs_whole(encoding)) return {};
  if (const auto known = known_scale(pass, weight, kind)) return *known;
  at::Tensor amaxes = ops::amaxes_of(source.matrix, sides, transforms_wgrad(pass.context, weight));
  if (source.is_part) take_greatest(pass, amaxes, !is_delayed(pass.context, weight, kind));
  return ops::whole_scales(encoding, amaxes);
}

ops::Quantization quantization(const PassState& pass, const Weight& weight, OperandKind kind, ops::Sides sides,
                               const ops::WholeScales& scales) {
  return {.encoding = encoding_of(pass.context, weight, kind),
          .sides = sides,
          .whole = scales,
          .amax = place_of_amax(pass, weight, kind),
          .transform = transforms_wgrad(pass.context, weight)};
}

Factor quantized(const PassState& pass, const Weight& weight, OperandKind kind, const Unquantized& source,
                 ops::Sides sides) {
  const ops::WholeScales scales = scales_of(pass, weight, kind, source, sides);
  ops::Quantization as = quantization(pass, weight, kind, sides, scales);
  if (kind == OperandKind::gradient)
    as.rounding = gradient_rounding(pass, weight,
                                    {.part = static_cast<std::uint32_t>(source.is_part ? pass.context.tp_rank() : 0),
                                     .first_token = pass.random.first_token});
  return {.matrix = {}, .operands = quantize(source.matrix, as)};
}

// Returns how to quantize a matrix whose scale is known before the matrix; nullopt if the scale is not known yet.
std::optional<ops::Quantization> known_quantization(const PassState& pass, const Weight& weight, OperandKind kind,
                                                    ops::Sides sides) {
  const auto scale = known_scale(pass, weight, kind);
  return scale ? std::optional(quantization(pass, weight, kind, sides, *scale)) : std::nullopt;
}

std::optional<runtime::TpWireFallback> fallback_of(const Context& context, const Weight& weight, OperandKind kind,
                                                   quant::Extent matrix, ops::Sides sides) {
  const Encoding encoding = encoding_of(context, weight, kind);
  return wire_fallback(
      {.encoding = encoding,
       .matrix = matrix,
       .sides = sides,
       .begins_at_tiles = has_one_scale(encoding) || begins_at_tiles(context, matrix.rows, encoding.tile.cols),
       .transforms_columns = transforms_wgrad(context, weight)});
}

}  // namespace

void add_scales(const Context& context, Weight& weight) {
  if (weight.product != Format::fp8 || context.scales == nullptr) return;
  const std::string& name = context.program.parameters().spec(weight.id).name;
  weight.input_scale = context.scales->add(name + " input", encoding_of(context, weight, OperandKind::input).element);
  weight.gradient_scale =
      context.scales->add(name + " gradient", encoding_of(context, weight, OperandKind::gradient).element);
}

std::optional<TokenCodes> codes_of_tokens(const PassState& pass, const Weight& weight, OperandKind kind,
                                          const at::Tensor& own, std::int64_t tokens, ops::Sides sides) {
  if (!has_coded_wire(pass.context, weight)) return std::nullopt;
  if (fallback_of(pass.context, weight, kind, {.rows = tokens, .cols = own.size(1)}, sides)) return std::nullopt;
  const ops::WholeScales scales = scales_of(pass, weight, kind, {.matrix = own, .is_part = true}, sides);
  TokenCodes codes{.own = {},
                   .tokens = {},
                   .cols = own.size(1),
                   .encoding = encoding_of(pass.context, weight, kind),
                   .whole = sides == ops::Sides::columns ? scales.columns : scales.rows,
                   .format = weight.product};
  ops::Quantization as = quantization(pass, weight, kind, sides, scales);
  // This rank's tokens have all columns, so the bits of their rounding are those of the whole matrix.
  if (kind == OperandKind::gradient)
    as.rounding = gradient_rounding(pass, weight, {.part = 0, .first_token = pass.random.first_own_token});
  codes.own = operand_codes(own, as);
  for (int rank = 0; rank < pass.context.tp_size(); ++rank)
    codes.tokens.push_back(pass.context.tokens_of(rank, tokens));
  return codes;
}

namespace {

// Starts the gathers of the codes. Returns a function that waits for them and returns the factor.
std::function<Factor()> start_coded_factor(const PassState& pass, const Weight& weight, const TokenCodes& codes,
                                           ops::Sides sides) {
  std::shared_ptr<PendingTensor> rows, columns;
  if (codes.own.rows.defined())
    rows = std::make_shared<PendingTensor>(
        start_gather(pass, codes.rows(), {.weight = weight.id, .is_wgrad = sides == ops::Sides::columns}));
  if (codes.own.columns.defined())
    columns =
        std::make_shared<PendingTensor>(start_gather(pass, codes.columns(), {.weight = weight.id, .is_wgrad = true}));
  return [codes, rows, columns, sides]() -> Factor {
    const at::Tensor by_rows = rows ? rows->take() : at::Tensor(), by_columns = columns ? columns->take() : by_rows;
    Factor factor;
    if (sides != ops::Sides::columns)
      factor.operands.rows = codes.operand(by_rows, codes.all_ranks(), ops::Sides::rows);
    if (sides != ops::Sides::rows)
      factor.operands.columns = codes.operand(by_columns, codes.all_ranks(), ops::Sides::columns);
    return factor;
  };
}

}  // namespace

std::function<Factor()> start_factor_of_tokens(const PassState& pass, const Weight& weight, OperandKind kind,
                                               const at::Tensor& own, std::int64_t tokens, ops::Sides sides) {
  if (const std::optional<TokenCodes> codes = codes_of_tokens(pass, weight, kind, own, tokens, sides))
    return start_coded_factor(pass, weight, *codes, sides);
  if (has_coded_wire(pass.context, weight))
    pass.context.program.count_tp_wire_fallback(
        fallback_of(pass.context, weight, kind, {.rows = tokens, .cols = own.size(1)}, sides).value());
  const TokenReader reader{.weight = weight.id, .is_wgrad = sides == ops::Sides::columns};
  auto arriving = std::make_shared<PendingTensor>(start_enter_tp(pass, own, tokens, reader));
  return [arriving, pass, &weight, kind, sides]() -> Factor {
    const at::Tensor whole = arriving->take();
    if (weight.product == Format::bf16) return {.matrix = whole, .operands = {}};
    return quantized(pass, weight, kind, {.matrix = whole}, sides);
  };
}

Factor factor_of_tokens(const PassState& pass, const Weight& weight, OperandKind kind, const at::Tensor& own,
                        std::int64_t tokens, ops::Sides sides) {
  return start_factor_of_tokens(pass, weight, kind, own, tokens, sides)();
}

Factor factor_of_columns(const PassState& pass, const Weight& weight, OperandKind kind, const at::Tensor& part,
                         ops::Sides sides) {
  if (weight.product == Format::bf16) return {.matrix = part, .operands = {}};
  return quantized(pass, weight, kind, {.matrix = part, .is_part = true}, sides);
}

Factor factor_of_swiglu(const PassState& pass, const Weight& weight, const at::Tensor& gate_up, ops::Sides sides) {
  if (const auto known = known_quantization(pass, weight, OperandKind::input, sides))
    return {.matrix = {}, .operands = ops::swiglu_operands(gate_up, *known)};
  return factor_of_columns(pass, weight, OperandKind::input, ops::swiglu_forward(gate_up), sides);
}

namespace {
SwigluFactors swiglu_backward_in_steps(const PassState& pass, const Weight& weight, const Weight* reader,
                                       const at::Tensor& dout, const at::Tensor& gate_up) {
  const auto gradient = [&](const at::Tensor& matrix) {
    return factor_of_columns(pass, weight, OperandKind::gradient, matrix, ops::Sides::both);
  };
  if (reader == nullptr) return {.gradient = gradient(ops::swiglu_backward(dout, gate_up)), .out = {}};
  const ops::SwigluBackward swiglu = ops::swiglu_backward_with_output(dout, gate_up);
  Factor out = factor_of_columns(pass, *reader, OperandKind::input, swiglu.out, ops::Sides::columns);
  return {.gradient = gradient(swiglu.gradient), .out = std::move(out)};
}
}  // namespace

SwigluFactors factors_of_swiglu_backward(const PassState& pass, const Weight& weight, const Weight* reader,
                                         const at::Tensor& dout, const at::Tensor& gate_up) {
  const auto of_gradient = known_quantization(pass, weight, OperandKind::gradient, ops::Sides::both);
  const auto of_out =
      reader == nullptr ? std::nullopt : known_quantization(pass, *reader, OperandKind::input, ops::Sides::columns);
  if (!of_gradient || (reader != nullptr && !of_out))
    return swiglu_backward_in_steps(pass, weight, reader, dout, gate_up);
  ops::SwigluOperands operands =
      ops::swiglu_backward_operands(dout, gate_up, *of_gradient, of_out ? &*of_out : nullptr);
  return {.gradient = {.matrix = {}, .operands = std::move(operands.gradient)},
          .out = {.matrix = {}, .operands = {.rows = {}, .columns = std::move(operands.out)}}};
}

bool keeps_columns(const PassState& pass, const Weight& weight, Tokens tokens) {
  const bool gathered = tokens == Tokens::own && pass.context.sequence_parallel && pass.context.has_tp();
  return weight.product != Format::bf16 && pass.policy != Recompute::selective && !gathered &&
         is_trainable(pass.context, weight);
}

KeptColumns kept_columns(const Factor& input) {
  const ops::Operand& columns = input.operands.columns;
  return {columns.values.defined() ? columns.values : columns.codes, columns.scales, columns.amax};
}

std::vector<runtime::StashItem> with_columns(at::TensorList tensors, const Factor& input) {
  std::vector<runtime::StashItem> items = items_of(tensors);
  const ops::Operand& columns = input.operands.columns;
  if (!columns.defined()) return items;
  std::int64_t bytes = ops::stored_bytes(columns.extent, columns.encoding);
  for (const at::Tensor& stored : {columns.codes, columns.scales}) {
    if (!stored.is_cuda() || bytes == 0) continue;
    items.push_back({stored.const_data_ptr(), std::min(bytes, static_cast<std::int64_t>(stored.nbytes()))});
    bytes -= items.back().bytes;
  }
  if (bytes > 0) items.push_back({nullptr, bytes});
  return items;
}

Factor factor_of_kept(const Context& context, const Weight& weight, const KeptColumns& columns, std::int64_t tokens) {
  quant::Extent matrix{.rows = tokens, .cols = weight.cols};
  if (transforms_wgrad(context, weight)) matrix = transformed_extent(matrix);
  ops::Operand operand{.extent = {.rows = matrix.cols, .cols = matrix.rows},
                       .encoding = encoding_of(context, weight, OperandKind::input)};
  (columns.data.is_cpu() ? operand.values : operand.codes) = columns.data;
  operand.scales = columns.scales;
  operand.amax = columns.amax;
  return {.matrix = {}, .operands = {.rows = {}, .columns = decode(operand)}};
}

std::int64_t tokens_of(const Factor& factor) {
  if (factor.matrix.defined()) return factor.matrix.size(0);
  // Transformed columns have more tokens than the factor.
  const ops::Operands& operands = factor.operands;
  return operands.rows.defined() ? operands.rows.extent.rows : operands.columns.extent.cols;
}

namespace {

// Counts the product's multiplications and additions.
void count(const PassState& pass, const Weight& weight, std::int64_t tokens) {
  const bool is_gpu = pass.context.program.device().kind == base::DeviceKind::cuda;
  pass.context.program.count_product(weight.product, quant::kernel_of(weight.product, is_gpu),
                                     2 * tokens * weight.rows * weight.cols);
}

Factor rows_of(const Factor& factor, const layout::Range& tokens) {
  if (factor.matrix.defined()) return {.matrix = factor.matrix.narrow(0, tokens.begin, tokens.size()), .operands = {}};
  return {.matrix = {},
          .operands = {.rows = operand_of_rows(factor.operands.rows, tokens.begin, tokens.size()), .columns = {}}};
}

std::int64_t tokens_of(const Factor& factor, const ChunkedProduct& how) {
  if (how.chunks.empty()) return tokens_of(factor);
  std::int64_t tokens = 0;
  for (const TokenChunk& chunk : how.chunks) tokens += chunk.tokens.size();
  return tokens;
}

// Returns an uninitialized result. `part` is a factor with some of the product's rows.
at::Tensor result_like(const Factor& part, std::int64_t tokens, std::int64_t columns) {
  if (part.matrix.defined()) return at::empty({tokens, columns}, part.matrix.options());
  const ops::Operand& rows = part.operands.rows;
  return at::empty({tokens, columns},
                   (rows.values.defined() ? rows.values : rows.codes).options().dtype(at::kBFloat16));
}

// Multiplies in chunks. Calls whole(factor) for one chunk, or part(factor, result) for each of several chunks.
template <typename Whole, typename Part>
at::Tensor in_chunks(const Factor& factor, std::int64_t columns, const ChunkedProduct& how, Whole whole, Part part) {
  at::Tensor result;
  const auto multiplied = [&](const TokenChunk& chunk) {
    if (how.after) how.after(chunk, result);
  };
  if (how.chunks.size() < 2) {
    result = whole(how.rows ? how.rows(how.chunks.front()) : factor);
    if (!how.chunks.empty()) multiplied(how.chunks.front());
    return result;
  }
  for (const TokenChunk& chunk : how.chunks) {
    const Factor rows = how.rows ? how.rows(chunk) : rows_of(factor, chunk.tokens);
    if (!result.defined()) result = result_like(rows, tokens_of(factor, how), columns);
    at::Tensor own = result.narrow(0, chunk.tokens.begin, chunk.tokens.size());
    part(rows, own);
    multiplied(chunk);
  }
  return result;
}

}  // namespace

at::Tensor fprop(const PassState& pass, const Weight& weight, const Factor& x, const ChunkedProduct& how) {
  count(pass, weight, tokens_of(x, how));
  ConsumedWeight consumed(pass, weight);
  if (weight.product == Format::bf16) {
    const at::Tensor& w = consumed.tensor();
    return in_chunks(
        x, weight.rows, how, [&](const Factor& all) { return ops::gemm_fprop(all.matrix, w); },
        [&](const Factor& part, at::Tensor& y) { ops::gemm_fprop_to(part.matrix, w, y); });
  }
  const ops::Operand w = consumed.operand(ops::Sides::rows);
  const bool fast = weight.product == Format::fp8;
  return in_chunks(
      x, weight.rows, how, [&](const Factor& all) { return multiply(all.operands.rows, w, fast); },
      [&](const Factor& part, at::Tensor& y) { multiply_to(part.operands.rows, w, y, fast); });
}

at::Tensor dgrad(const PassState& pass, const Weight& weight, const Factor& dy, const ChunkedProduct& how) {
  count(pass, weight, tokens_of(dy, how));
  ConsumedWeight consumed(pass, weight);
  if (weight.product == Format::bf16) {
    const at::Tensor& w = consumed.tensor();
    return in_chunks(
        dy, weight.cols, how, [&](const Factor& all) { return ops::gemm_dgrad(all.matrix, w); },
        [&](const Factor& part, at::Tensor& dx) { ops::gemm_dgrad_to(part.matrix, w, dx); });
  }
  const ops::Operand w = consumed.operand(ops::Sides::columns);
  return in_chunks(
      dy, weight.cols, how, [&](const Factor& all) { return multiply(all.operands.rows, w); },
      [&](const Factor& part, at::Tensor& dx) { multiply_to(part.operands.rows, w, dx); });
}

void wgrad(const PassState& pass, const Weight& weight, const Factor& dy, const Factor& x) {
  produce_gradient(pass, weight, [&](at::Tensor& gradient, bool accumulate) {
    count(pass, weight, tokens_of(dy));
    if (weight.product == Format::bf16)
      ops::gemm_wgrad(dy.matrix, x.matrix, gradient, accumulate);
    else
      multiply_into(dy.operands.columns, x.operands.columns, gradient, accumulate);
  });
}

}  // namespace tessera::nn
