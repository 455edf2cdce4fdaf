#include "tessera/nn/stash.h"

#include <ATen/core/grad_mode.h>

#include <string>

namespace tessera::nn {

bool is_kept(const at::Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad();
}

std::int64_t kept_bytes(const variable_list& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

namespace {
std::string numbered(const char* what, std::int64_t number) {
  return what + std::to_string(number);
}
}  // namespace

void stash(AutogradContext* ctx, Context& context, bool kept, std::int64_t bytes, Tokens tokens) {
  if (!kept) return;
  const bool split = tokens == Tokens::own && context.sequence_parallel && context.has_tp();
  const std::string way = split ? "shard" : "keep";
  const auto stashes = ctx->saved_data.find("stashes");
  const std::int64_t number = stashes == ctx->saved_data.end() ? 0 : stashes->second.toInt();
  ctx->saved_data["stashes"] = number + 1;
  ctx->saved_data[numbered("stashed_bytes", number)] = bytes;
  ctx->saved_data[numbered("stashed_way", number)] = way;
  context.program.stash(bytes, context.pass, way);
}

void stash(AutogradContext* ctx, Context& context, bool kept, const variable_list& tensors, Tokens tokens) {
  stash(ctx, context, kept, kept_bytes(tensors), tokens);
}

void fetch(AutogradContext* ctx, Context& context, int number) {
  context.program.fetch(ctx->saved_data[numbered("stashed_bytes", number)].toInt(), schedule::Pass::backward,
                        ctx->saved_data[numbered("stashed_way", number)].toStringRef());
}

}  // namespace tessera::nn
