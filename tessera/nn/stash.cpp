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

void stash(AutogradContext* ctx, const PassState& pass, bool kept, std::int64_t bytes, Tokens tokens) {
  if (!kept) return;
  const bool split = tokens == Tokens::own && pass.context.sequence_parallel && pass.context.has_tp();
  const std::string way = split ? "shard" : "keep";
  const auto stashes = ctx->saved_data.find("stashes");
  const std::int64_t number = stashes == ctx->saved_data.end() ? 0 : stashes->second.toInt();
  ctx->saved_data["stashes"] = number + 1;
  ctx->saved_data[numbered("stashed_bytes", number)] = bytes;
  ctx->saved_data[numbered("stashed_way", number)] = way;
  pass.context.program.stash(bytes, pass.id, way);
}

void stash(AutogradContext* ctx, const PassState& pass, bool kept, const variable_list& tensors, Tokens tokens) {
  stash(ctx, pass, kept, kept_bytes(tensors), tokens);
}

void fetch(AutogradContext* ctx, const PassState& pass, int number) {
  pass.context.program.fetch(ctx->saved_data[numbered("stashed_bytes", number)].toInt(), pass.id,
                             ctx->saved_data[numbered("stashed_way", number)].toStringRef());
}

}  // namespace tessera::nn
