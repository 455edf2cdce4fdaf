// The stashes of a step: the activations that autograd keeps from forward to backward.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::runtime {

enum class StashWay : std::uint8_t { keep, shard };  // shard: only this rank's own tokens are kept
constexpr std::string_view name_of(StashWay way) {
  return way == StashWay::shard ? "shard" : "keep";
}

// A range of memory that backward reads. The layer that stashes the item owns the memory.
struct StashItem {
  const void* data = nullptr;  // null in a dry run, and for codes that a CPU does not store
  std::int64_t bytes = 0;
};

using StashId = std::int64_t;  // number of a stash in its step, from 0

struct Stash {
  std::vector<StashItem> items;
  StashWay way = StashWay::keep;
  schedule::PassId pass;  // the pass that stashed the items
  bool is_fetched = false;

  std::int64_t bytes() const;  // sum over the items
};

class Stashes {
 public:
  void begin_step() { stashes_.clear(); }
  StashId add(std::span<const StashItem> items, schedule::PassId pass, StashWay way);
  // Marks the stash as fetched and returns it. Throws Error if the stash is not of this step, if it belongs to
  // another microbatch, or if it was fetched before.
  const Stash& fetch(StashId id, schedule::PassId pass);
  std::span<const Stash> all() const { return stashes_; }  // index: StashId

 private:
  std::vector<Stash> stashes_;
};

}  // namespace tessera::runtime
