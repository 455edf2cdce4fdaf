// Records the times of a way's hops, if a timeline is recorded.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>

#include "tessera/base/lane_mark.h"
#include "tessera/schedule/activity.h"
#include "tessera/schedule/way.h"

namespace tessera::shard {

// Makes the marks of one operation, which has one or two hops. A default-constructed object records nothing.
class Recording {
 public:
  // Makes the mark of one hop, which receives `bytes` from other ranks.
  using MakeMark = std::function<base::LaneMark(schedule::Activity activity, std::int64_t bytes)>;

  Recording() = default;
  explicit Recording(MakeMark make) : make_(std::move(make)) {}
  base::LaneMark mark(schedule::Activity activity, std::int64_t bytes) const {
    return make_ ? make_(activity, bytes) : base::LaneMark();
  }

 private:
  MakeMark make_;
};

// Makes the mark of one hop of a way.
inline base::LaneMark mark_of(const Recording& recording, const schedule::Way& way, schedule::Activity activity) {
  return recording.mark(activity, bytes_over(way, activity));
}

}  // namespace tessera::shard
