// Tables whose rows travel by index.
#include <algorithm>
#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/shard/runtime.h"

namespace tessera::shard {

void Runtime::gather_rows(ParameterId id, std::span<const std::int64_t> indices, void* out, Pass pass) {
  Entry& entry = this->entry(id, "gather_rows");
  TESSERA_CHECK(in_microbatch_, "rows of '{}' are read outside a microbatch", entry.name());
  TESSERA_CHECK(entry.rows, "'{}' is gathered whole: consume", entry.name());
  Event event = event_of(EventKind::comm, pass, id);
  event.group = "gtp";
  event.op = "gather_rows";
  event.bytes = entry.rows->received_bytes();  // messages have one size: as many as are given
  happens(event);
  passed();
  statistics_.gathered_bytes += entry.rows->received_bytes();
  wait(entry.rows->start(entry.parameter, *parallel_.gtp_rows, indices, out));
}

RowGradient Runtime::grad_rows(ParameterId id, std::span<const std::int64_t> indices) {
  Entry& entry = this->entry(id, "grad_rows");
  const RowReducer* rows = entry.reducer.rows();
  TESSERA_CHECK(rows, "'{}' has a gradient of the whole: grad_buffer", entry.name());
  TESSERA_CHECK(!entry.produced, "'{}': rows are produced twice in a microbatch", entry.name());
  const std::int64_t most = rows->messages().rows;
  TESSERA_CHECK(static_cast<std::int64_t>(indices.size()) <= most, "'{}': {} rows of at most {} a microbatch",
                entry.name(), indices.size(), most);
  std::byte* staging = staging_of(entry, id);
  std::int64_t* kept = rows->indices(staging);
  std::fill(kept, kept + most, -1);
  std::unordered_map<std::int64_t, std::int64_t> first;
  entry.slots.assign(indices.size(), -1);
  for (std::size_t at = 0; at < indices.size(); ++at) {
    if (indices[at] < 0) continue;
    const auto [found, is_new] = first.try_emplace(indices[at], static_cast<std::int64_t>(at));
    if (is_new) kept[at] = indices[at];
    entry.slots[at] = found->second;
  }
  return {staging, entry.parameter.types.accumulator, entry.slots};
}

}  // namespace tessera::shard
