#include "tessera/runtime/replay/early_rows.h"

#include "tessera/base/error.h"

namespace tessera::runtime {

void EarlyRows::note(ParameterEntry& table, const shard::RowIds& ids) {
  TESSERA_CHECK(table_ == nullptr || table_ == &table,
                "rows of '{}' and of '{}' are read in one step, which cannot be a graph", table_->name(), table.name());
  table_ = &table;
  ids_ = ids;
}

void EarlyRows::published(const ParameterEntry& entry) {
  if (&entry != table_) return;
  if (!parallel_.compute->is_captured()) {
    after_ = entry.parameter.published();
    return;
  }
  after_ = {};  // nothing to wait for: earlier work is done when a graph is captured
  base::Lane& lane = parallel_.of(entry.domain(), mesh::Transfer::rows).lane();
  lane.wait(entry.parameter.published());
  may_begin_ = lane.record(beginning_);
}

void EarlyRows::gather(const std::int64_t* ids) {
  if (table_ == nullptr) return;
  shard::RowIds own = ids_;
  own.data = ids;
  table_->rows->gather_early(table_->parameter, parallel_.of(table_->domain(), mesh::Transfer::rows), own, after_);
}

}  // namespace tessera::runtime
