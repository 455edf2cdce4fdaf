#include "tessera/schedule/collectives_in_time.h"

#include <algorithm>

namespace tessera::schedule {

double CollectivesInTime::happened(int index, double now) {
  const auto at = static_cast<std::size_t>(index);
  const double seconds = at < costs_.comm_seconds.size() ? costs_.comm_seconds[at] : 0;
  if (seconds > 0) {
    end_ = std::max(end_, now) + seconds;
    const int last = at < costs_.comm_waits.size() ? std::max(index, costs_.comm_waits[at]) : index;
    due_[static_cast<std::size_t>(last)].push_back(end_);
  }
  for (const double end : due_[at]) now = std::max(now, end);
  due_[at].clear();
  return now;
}

}  // namespace tessera::schedule
