// Early rows: the table rows that a step reads first, if a graph executes the step. The ids of these rows are known
// before the graph is launched. The rows therefore travel before the launch, and the graph only copies them to the
// buffer from which the step reads them.
#pragma once
#include <cstdint>

#include "tessera/base/lanes/fence.h"
#include "tessera/runtime/parameter_entry.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. At most one table of a step has early rows.
class EarlyRows {
 public:
  explicit EarlyRows(shard::ParallelGroups& parallel) : parallel_(parallel) {}

  // Called while a graph is captured, with the table whose rows will travel before each launch. Throws Error for a
  // second table.
  void note(ParameterEntry& table, const shard::RowIds& ids);
  // Called after each publish event. If `entry` is the table of note(), the early rows of the next step may travel
  // after this publish event.
  void published(const ParameterEntry& entry);
  // Called before a launch. Gathers the rows of `ids`. The number of ids is that of the captured step. Does nothing if
  // note() was not called. Collective over the ranks that store the table.
  void gather(const std::int64_t* ids);
  // Called after a launch. The early rows of the next step may travel after the launched graph has published the table.
  void launched() { after_ = may_begin_; }

 private:
  shard::ParallelGroups& parallel_;
  ParameterEntry* table_ = nullptr;
  shard::RowIds ids_;  // ids of the captured step
  base::Signal beginning_;
  // The point of the graph at which the table is published and the step has read its early rows.
  base::Fence may_begin_;
  base::Fence after_;  // the early rows of the next step wait for this fence
};

}  // namespace tessera::runtime
