// Records when the hops of a transfer run on their lanes, if a timeline is recorded.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>

#include "tessera/base/lanes/lane_mark.h"
#include "tessera/mesh/transfer.h"
#include "tessera/schedule/way.h"

namespace tessera::shard {

// Makes the lane marks (base/lanes/lane_mark.h) for the hops of one transfer. Each mark records the begin and end of
// one hop. A default-constructed object records nothing.
class Recording {
 public:
  // Returns the lane mark for one hop. The rank receives `bytes` bytes from other ranks in this hop.
  using MakeMark = std::function<base::LaneMark(mesh::Transfer transfer, std::int64_t bytes)>;

  Recording() = default;
  explicit Recording(MakeMark make) : make_(std::move(make)) {}
  base::LaneMark mark(mesh::Transfer transfer, std::int64_t bytes) const {
    return make_ ? make_(transfer, bytes) : base::LaneMark();
  }

 private:
  MakeMark make_;
};

// Returns the lane mark for the hop of `way` with this transfer.
inline base::LaneMark mark_of(const Recording& recording, const schedule::Way& way, mesh::Transfer transfer) {
  return recording.mark(transfer, bytes_over(way, transfer));
}

}  // namespace tessera::shard
