#include "tessera/nn/stash.h"

#include <ATen/core/grad_mode.h>

namespace tessera::nn {

bool is_kept(const at::Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad();
}

void stash(AutogradContext* ctx, Context& context, bool kept, const variable_list& tensors, Tokens tokens,
           std::int64_t more) {
  if (!kept) return;
  std::int64_t bytes = more;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  const bool split = tokens == Tokens::own && context.sequence_parallel && context.tp_size() > 1;
  const std::string way = split ? "shard" : "keep";
  ctx->saved_data["stashed_bytes"] = bytes;
  ctx->saved_data["stashed_way"] = way;
  context.runtime.stash(bytes, context.pass, way);
}

void fetch(AutogradContext* ctx, Context& context) {
  context.runtime.fetch(ctx->saved_data["stashed_bytes"].toInt(), schedule::Pass::backward,
                        ctx->saved_data["stashed_way"].toStringRef());
}

}  // namespace tessera::nn
