#include "tessera/nn/parallel/parallel_products.h"

#include <memory>
#include <utility>

#include "tessera/nn/parallel/token_pieces.h"

namespace tessera::nn {
namespace {

std::vector<TokenChunk> chunks_of(const Context& context, const Weight& weight, OperandKind kind, std::int64_t tokens) {
  return product_chunks(context, tokens, kind == OperandKind::input ? weight.rows : weight.cols);
}

// Returns whether rows of a gathered factor can be multiplied before the other rows have arrived.
bool arrives_by_rows(const Context& context, const Weight& weight) {
  return weight.product == quant::Format::bf16 ||
         (weight.product == quant::Format::fp8 && context.products.tp_wire == quant::Format::fp8);
}

at::Tensor product(const PassState& pass, const Weight& weight, OperandKind kind, const Factor& factor,
                   const ChunkedProduct& how) {
  return kind == OperandKind::input ? fprop(pass, weight, factor, how) : dgrad(pass, weight, factor, how);
}

}  // namespace

std::vector<TokenChunk> product_chunks(const Context& context, std::int64_t tokens, std::int64_t columns) {
  if (!context.has_tp() || !context.sequence_parallel) return {};
  std::vector<std::int64_t> by_rank;
  for (int rank = 0; rank < context.tp_size(); ++rank) by_rank.push_back(context.tokens_of(rank, tokens));
  return token_chunks(by_rank, columns, context.products.tp_chunks);
}

GatheredProduct gathered_product(const PassState& pass, const Weight& weight, OperandKind kind, const at::Tensor& own,
                                 std::int64_t tokens, ops::Sides sides) {
  ChunkedProduct how{.chunks = chunks_of(pass.context, weight, kind, tokens)};
  if (!travels_in_pieces(pass.context) || !arrives_by_rows(pass.context, weight)) {
    Factor factor = factor_of_tokens(pass, weight, kind, own, tokens, sides);
    at::Tensor result = product(pass, weight, kind, factor, how);
    return {.product = std::move(result), .factor = std::move(factor)};
  }
  const std::optional<TokenCodes> codes = codes_of_tokens(pass, weight, kind, own);
  const auto factor_of = [&](const at::Tensor& rows, ops::Sides wanted) -> Factor {
    if (!codes) return {.matrix = rows, .operands = {}};
    return {.matrix = {}, .operands = operands_of_codes(rows, codes->encoding, wanted, codes->scale)};
  };
  GatherInPieces gather(pass, codes ? codes->own : own, tokens, {.weight = weight.id});
  how.chunks = in_order_of_arrival(std::move(how.chunks), pass.context.tp_rank(), pass.context.tp_size());
  how.rows = [&](const TokenChunk& chunk) {
    return factor_of(gather.rows(chunk, chunk == how.chunks.back()), ops::Sides::rows);
  };
  at::Tensor result = product(pass, weight, kind, /*factor=*/{}, how);
  const at::Tensor all = gather.take();
  if (codes && sides == ops::Sides::rows) return {.product = std::move(result), .factor = {}};
  return {.product = std::move(result), .factor = factor_of(all, ops::Sides::columns)};
}

PendingTensor start_scattered_product(const PassState& pass, const Weight& weight, OperandKind kind,
                                      const Factor& factor) {
  ChunkedProduct how{.chunks = chunks_of(pass.context, weight, kind, tokens_of(factor))};
  if (!travels_in_pieces(pass.context))
    return start_leave_tp(pass, product(pass, weight, kind, factor, how), weight.id);
  std::unique_ptr<ScatterInPieces> scatter;
  how.chunks = in_order_of_departure(std::move(how.chunks), pass.context.tp_rank(), pass.context.tp_size());
  how.after = [&](const TokenChunk& chunk, const at::Tensor& result) {
    if (!scatter) scatter = std::make_unique<ScatterInPieces>(pass, result, weight.id);
    scatter->written(chunk.ranks);
  };
  product(pass, weight, kind, factor, how);
  return PendingTensor(std::move(scatter));
}

SummedParts scattered_product(const PassState& pass, const Weight& weight, OperandKind kind, const Factor& factor) {
  return start_scattered_product(pass, weight, kind, factor).take_parts();
}

}  // namespace tessera::nn
