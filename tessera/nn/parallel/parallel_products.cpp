#include "tessera/nn/parallel/parallel_products.h"

namespace tessera::nn {
namespace {

schedule::Pass pass_of(const Context& context, Role role) {
  return role == Role::input ? context.pass : schedule::Pass::backward;
}

at::Tensor product(Context& context, const Weight& weight, Role role, const Factor& factor) {
  const std::int64_t columns = role == Role::input ? weight.rows : weight.cols;
  const std::vector<TokenChunk> chunks = product_chunks(context, tokens_of(factor), columns);
  return role == Role::input ? fprop(context, weight, factor, chunks) : dgrad(context, weight, factor, chunks);
}

}  // namespace

std::vector<TokenChunk> product_chunks(const Context& context, std::int64_t tokens, std::int64_t columns) {
  if (!context.has_tp() || !context.sequence_parallel) return {};
  std::vector<std::int64_t> by_rank;
  for (int rank = 0; rank < context.tp_size(); ++rank) by_rank.push_back(context.tokens_of(rank, tokens));
  return token_chunks(by_rank, columns, context.products.tp_chunks);
}

GatheredProduct gathered_product(Context& context, const Weight& weight, Role role, const at::Tensor& own,
                                 std::int64_t tokens, ops::Sides sides) {
  Factor factor = factor_of_tokens(context, weight, role, own, tokens, pass_of(context, role), sides);
  at::Tensor result = product(context, weight, role, factor);
  return {.product = std::move(result), .factor = std::move(factor)};
}

PendingTensor start_scattered_product(Context& context, const Weight& weight, Role role, const Factor& factor) {
  return start_leave_tp(context, product(context, weight, role, factor), pass_of(context, role));
}

at::Tensor scattered_product(Context& context, const Weight& weight, Role role, const Factor& factor) {
  return start_scattered_product(context, weight, role, factor).take();
}

}  // namespace tessera::nn
