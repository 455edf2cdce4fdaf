#include "tessera/runtime/record/stashes.h"

#include "tessera/base/error.h"

namespace tessera::runtime {

std::int64_t Stash::bytes() const {
  std::int64_t sum = 0;
  for (const StashItem& item : items) sum += item.bytes;
  return sum;
}

StashId Stashes::add(std::span<const StashItem> items, schedule::PassId pass, StashWay way) {
  stashes_.push_back({.items = {items.begin(), items.end()}, .way = way, .pass = pass});
  return static_cast<StashId>(stashes_.size()) - 1;
}

const Stash& Stashes::fetch(StashId id, schedule::PassId pass) {
  TESSERA_CHECK(id >= 0 && id < static_cast<StashId>(stashes_.size()), "stash {} is fetched, but the step has {}", id,
                stashes_.size());
  Stash& stash = stashes_[static_cast<std::size_t>(id)];
  TESSERA_CHECK(stash.pass.microbatch == pass.microbatch, "stash {} of microbatch {} is fetched in microbatch {}", id,
                stash.pass.microbatch, pass.microbatch);
  TESSERA_CHECK(!stash.is_fetched, "stash {} is fetched twice", id);
  stash.is_fetched = true;
  return stash;
}

}  // namespace tessera::runtime
