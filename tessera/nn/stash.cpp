#include "tessera/nn/stash.h"

#include <ATen/core/grad_mode.h>

#include "tessera/base/error.h"

namespace tessera::nn {

bool is_kept(const at::Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad();
}

std::vector<runtime::StashItem> items_of(at::TensorList tensors) {
  std::vector<runtime::StashItem> items;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    TESSERA_CHECK(tensor.is_non_overlapping_and_dense(), "a stashed tensor has gaps in memory");
    items.push_back({tensor.const_data_ptr(), static_cast<std::int64_t>(tensor.nbytes())});
  }
  return items;
}

void stash(AutogradContext* ctx, const PassState& pass, bool kept, const std::vector<runtime::StashItem>& items,
           Tokens tokens) {
  if (!kept) return;
  const bool split = tokens == Tokens::own && pass.context.sequence_parallel && pass.context.has_tp();
  c10::IValue& stashes = ctx->saved_data["stashes"];
  std::vector<runtime::StashId> ids = stashes.isNone() ? std::vector<runtime::StashId>() : stashes.toIntVector();
  ids.push_back(pass.context.program.stash(items, pass.id, split ? runtime::StashWay::shard : runtime::StashWay::keep));
  stashes = ids;
}

void fetch(AutogradContext* ctx, const PassState& pass, int number) {
  const std::vector<runtime::StashId> ids = ctx->saved_data["stashes"].toIntVector();
  pass.context.program.fetch(ids[static_cast<std::size_t>(number)], pass.id);
}

}  // namespace tessera::nn
