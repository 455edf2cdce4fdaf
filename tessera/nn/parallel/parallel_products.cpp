#include "tessera/nn/parallel/parallel_products.h"

#include <memory>
#include <utility>

#include "tessera/nn/parallel/token_pieces.h"
#include "tessera/nn/parallel/token_wire.h"

namespace tessera::nn {
namespace {

std::vector<TokenChunk> chunks_of(const Context& context, const Weight& weight, OperandKind kind, std::int64_t tokens) {
  return product_chunks(context, tokens, kind == OperandKind::input ? weight.rows : weight.cols);
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

namespace {

// Multiplies the chunks of a gathered factor while other chunks arrive. The tokens are bf16 numbers if `codes` is null.
GatheredProduct product_in_pieces(const PassState& pass, const Weight& weight, OperandKind kind, const at::Tensor& own,
                                  std::int64_t tokens, const TokenCodes* codes, ops::Sides sides) {
  GatherInPieces gather(pass, codes ? codes->rows() : part_of_rows(pass.context, own, tokens), {.weight = weight.id});
  std::optional<GatherInPieces> columns;
  if (codes && codes->own.columns.defined())
    columns.emplace(pass, codes->columns(), TokenReader{.weight = weight.id, .is_wgrad = true});
  ChunkedProduct how{.chunks = in_order_of_arrival(chunks_of(pass.context, weight, kind, tokens),
                                                   pass.context.tp_rank(), pass.context.tp_size())};
  how.rows = [&](const TokenChunk& chunk) -> Factor {
    const at::Tensor parts = gather.parts(chunk, chunk == how.chunks.back());
    if (!codes) return {.matrix = parts, .operands = {}};
    return {.matrix = {}, .operands = {.rows = codes->operand(parts, chunk.ranks, ops::Sides::rows), .columns = {}}};
  };
  GatheredProduct result{.product = product(pass, weight, kind, /*factor=*/{}, how), .factor = {}};
  const at::Tensor all = gather.take();
  if (!codes)
    result.factor.matrix = all;
  else if (sides != ops::Sides::rows)
    result.factor.operands.columns =
        codes->operand(columns ? columns->take() : all, codes->all_ranks(), ops::Sides::columns);
  return result;
}

}  // namespace

GatheredProduct gathered_product(const PassState& pass, const Weight& weight, OperandKind kind, const at::Tensor& own,
                                 std::int64_t tokens, ops::Sides sides) {
  if (travels_in_pieces(pass.context)) {
    const std::optional<TokenCodes> codes = codes_of_tokens(pass, weight, kind, own, tokens, sides);
    if (codes || weight.product == quant::Format::bf16)
      return product_in_pieces(pass, weight, kind, own, tokens, codes ? &*codes : nullptr, sides);
  }
  const ChunkedProduct how{.chunks = chunks_of(pass.context, weight, kind, tokens)};
  Factor factor = factor_of_tokens(pass, weight, kind, own, tokens, sides);
  at::Tensor result = product(pass, weight, kind, factor, how);
  return {.product = std::move(result), .factor = std::move(factor)};
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
