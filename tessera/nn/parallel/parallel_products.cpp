#include "tessera/nn/parallel/parallel_products.h"

#include <memory>
#include <utility>

#include "tessera/nn/parallel/token_pieces.h"
#include "tessera/nn/parallel/token_wire.h"

namespace tessera::nn {
namespace {

schedule::Pass pass_of(const Context& context, OperandKind kind) {
  return kind == OperandKind::input ? context.pass : schedule::Pass::backward;
}

std::vector<TokenChunk> chunks_of(const Context& context, const Weight& weight, OperandKind kind, std::int64_t tokens) {
  return product_chunks(context, tokens, kind == OperandKind::input ? weight.rows : weight.cols);
}

at::Tensor product(Context& context, const Weight& weight, OperandKind kind, const Factor& factor,
                   const ChunkedProduct& how) {
  return kind == OperandKind::input ? fprop(context, weight, factor, how) : dgrad(context, weight, factor, how);
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
GatheredProduct product_in_pieces(Context& context, const Weight& weight, OperandKind kind, const at::Tensor& own,
                                  std::int64_t tokens, const TokenCodes* codes, ops::Sides sides) {
  const schedule::Pass pass = pass_of(context, kind);
  GatherInPieces gather(context, codes ? codes->rows() : part_of_rows(context, own, tokens), pass,
                        {.weight = weight.id});
  std::optional<GatherInPieces> columns;
  if (codes && codes->own.columns.defined())
    columns.emplace(context, codes->columns(), pass, TokenReader{.weight = weight.id, .is_wgrad = true});
  ChunkedProduct how{
      .chunks = in_order_of_arrival(chunks_of(context, weight, kind, tokens), context.tp_rank(), context.tp_size())};
  how.rows = [&](const TokenChunk& chunk) -> Factor {
    const at::Tensor parts = gather.parts(chunk, chunk == how.chunks.back());
    if (!codes) return {.matrix = parts, .operands = {}};
    return {.matrix = {}, .operands = {.rows = codes->operand(parts, chunk.ranks, ops::Sides::rows), .columns = {}}};
  };
  GatheredProduct result{.product = product(context, weight, kind, /*factor=*/{}, how), .factor = {}};
  const at::Tensor all = gather.take();
  if (!codes)
    result.factor.matrix = all;
  else if (sides != ops::Sides::rows)
    result.factor.operands.columns =
        codes->operand(columns ? columns->take() : all, codes->all_ranks(), ops::Sides::columns);
  return result;
}

}  // namespace

GatheredProduct gathered_product(Context& context, const Weight& weight, OperandKind kind, const at::Tensor& own,
                                 std::int64_t tokens, ops::Sides sides) {
  const schedule::Pass pass = pass_of(context, kind);
  if (travels_in_pieces(context)) {
    const std::optional<TokenCodes> codes = codes_of_tokens(context, weight, kind, own, tokens, pass, sides);
    if (codes || weight.product == quant::Format::bf16)
      return product_in_pieces(context, weight, kind, own, tokens, codes ? &*codes : nullptr, sides);
  }
  const ChunkedProduct how{.chunks = chunks_of(context, weight, kind, tokens)};
  Factor factor = factor_of_tokens(context, weight, kind, own, tokens, pass, sides);
  at::Tensor result = product(context, weight, kind, factor, how);
  return {.product = std::move(result), .factor = std::move(factor)};
}

PendingTensor start_scattered_product(Context& context, const Weight& weight, OperandKind kind, const Factor& factor) {
  const schedule::Pass pass = pass_of(context, kind);
  ChunkedProduct how{.chunks = chunks_of(context, weight, kind, tokens_of(factor))};
  if (!travels_in_pieces(context))
    return start_leave_tp(context, product(context, weight, kind, factor, how), pass, weight.id);
  std::unique_ptr<ScatterInPieces> scatter;
  how.chunks = in_order_of_departure(std::move(how.chunks), context.tp_rank(), context.tp_size());
  how.after = [&](const TokenChunk& chunk, const at::Tensor& result) {
    if (!scatter) scatter = std::make_unique<ScatterInPieces>(context, result, pass, weight.id);
    scatter->written(chunk.ranks);
  };
  product(context, weight, kind, factor, how);
  return PendingTensor(std::move(scatter));
}

SummedParts scattered_product(Context& context, const Weight& weight, OperandKind kind, const Factor& factor) {
  return start_scattered_product(context, weight, kind, factor).take_parts();
}

}  // namespace tessera::nn
