// Where the hops of a way leave when they ran, if somebody records.
#pragma once
#include <cstdint>
#include <functional>
#include <utility>

#include "tessera/base/lane_mark.h"
#include "tessera/schedule/activity.h"

namespace tessera::shard {

// Of one operation, for those who carry it out in one hop or in two. A default-made one records nothing.
class Recording {
 public:
  // The mark of one hop; `bytes` that it receives from other ranks.
  using MakeMark = std::function<base::LaneMark(schedule::Activity activity, std::int64_t bytes)>;

  Recording() = default;
  explicit Recording(MakeMark make) : make_(std::move(make)) {}
  base::LaneMark mark(schedule::Activity activity, std::int64_t bytes) const {
    return make_ ? make_(activity, bytes) : base::LaneMark();
  }

 private:
  MakeMark make_;
};

}  // namespace tessera::shard
