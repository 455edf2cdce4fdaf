// Includes the lanes of a rank in the capture of one graph.
#pragma once
#include <functional>
#include <memory>

#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// Exists while compute's stream is captured. The constructor makes every lane wait for compute, so the work of the
// lanes is captured too. join() makes compute wait for every lane.
class CapturedLanes {
 public:
  explicit CapturedLanes(shard::ParallelGroups& parallel);
  ~CapturedLanes();
  CapturedLanes(const CapturedLanes&) = delete;
  CapturedLanes& operator=(const CapturedLanes&) = delete;
  void join();

 private:
  void for_each(const std::function<void(base::Lane&)>& visit);

  shard::ParallelGroups& parallel_;
};

}  // namespace tessera::runtime
