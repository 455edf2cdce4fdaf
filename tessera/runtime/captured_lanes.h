// The lanes of a run, while what they are given goes into one graph.
#pragma once
#include <functional>
#include <memory>

#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// From when compute's stream began to be captured until that ends. Every lane goes on from compute at the beginning,
// and compute from every lane at join().
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
