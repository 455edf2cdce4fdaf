// The rows that a graph's step reads first. The ids of these rows are known before the graph is launched. The rows
// therefore travel before the launch, and the graph only copies them to where the step reads them.
#pragma once
#include <cstdint>

#include "tessera/base/fence.h"
#include "tessera/runtime/parameter_entry.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. At most one table of a step has early rows.
class EarlyRows {
 public:
  explicit EarlyRows(shard::ParallelGroups& parallel) : parallel_(parallel) {}

  // Called while a graph is captured, for a table whose rows are to travel before each launch. Throws Error for a
  // second table.
  void note(ParameterEntry& table, const shard::RowIds& ids);
  // Called after each publish. If `entry` is the noted table, early rows of the next step travel after this publish.
  void published(const ParameterEntry& entry);
  // Called before a launch. Sends the rows of `ids`, the same number as in the captured step. Does nothing without a
  // table. Collective over the ranks that store the table.
  void gather(const std::int64_t* ids);
  // Called after a launch. Rows of the next step travel after the point of the graph that publishes the table.
  void launched() { after_ = may_begin_; }

 private:
  shard::ParallelGroups& parallel_;
  ParameterEntry* table_ = nullptr;
  shard::RowIds ids_;  // of the captured step
  base::Signal beginning_;
  base::Fence
      may_begin_;  // the point of the graph where the table is published and the early rows of its step have been read
  base::Fence after_;  // the rows of the next step wait for it
};

}  // namespace tessera::runtime
