// Tables whose rows travel by index.
#include "tessera/base/error.h"
#include "tessera/runtime/runtime.h"
#include "tessera/schedule/check/together.h"

namespace tessera::runtime {
namespace {

void check_count(const ParameterEntry& entry, const shard::RowIds& ids) {
  const std::int64_t most = entry.parameter.spec.reads.per_microbatch;
  TESSERA_CHECK(ids.count <= most, "'{}': {} rows of at most {} a microbatch", entry.name(), ids.count, most);
}

}  // namespace

void Runtime::gather_rows(schedule::ParameterId id, const shard::RowIds& ids, void* out, schedule::Pass pass,
                          const std::optional<base::Fence>& written) {
  ParameterEntry& entry = this->entry(id, "gather_rows");
  TESSERA_CHECK(numbers_.in_microbatch(), "rows of '{}' are read outside a microbatch", entry.name());
  TESSERA_CHECK(entry.rows, "'{}' is gathered whole: consume", entry.name());
  check_count(entry, ids);
  schedule::Event event = numbers_.next(schedule::EventKind::comm, pass, id);
  event.group = schedule::role_name(schedule::kRowGroup, entry.parameter.spec.domain);
  event.op = schedule::kRowOp;
  event.bytes = entry.rows->received_bytes();  // messages have one size: as many as are given
  happens(event);
  passed();
  const int place = static_cast<int>(trace().size()) - 1;
  timeline_.began(place);
  statistics_.count_gathered(entry.format, entry.rows->received_bytes());
  comm::Communicator& group = parallel_.of(entry.parameter.spec.domain, shard::Via::rows);
  const base::Fence compute = parallel_.compute->record();
  const bool is_first = numbers_.microbatch() == 0 && pass == schedule::Pass::forward && event.ordinal == 0;
  if (is_first && written && parallel_.compute->is_captured() && entry.parameter.spec.trainable) {
    TESSERA_CHECK(early_rows_.table == nullptr || early_rows_.table == &entry,
                  "rows of '{}' and of '{}' are read in one step, which cannot be a graph", early_rows_.table->name(),
                  entry.name());
    early_rows_.table = &entry;
    early_rows_.ids = ids;
    return wait({entry.rows->place(entry.parameter, group, ids.count, out, compute), place});
  }
  wait({entry.rows->start(entry.parameter, group, ids, written.value_or(compute), out, compute), place});
}

void Runtime::bring_rows(const std::int64_t* ids) {
  if (early_rows_.table == nullptr) return;
  ParameterEntry& table = *early_rows_.table;
  shard::RowIds own = early_rows_.ids;
  own.data = ids;
  table.rows->bring(table.parameter, parallel_.of(table.parameter.spec.domain, shard::Via::rows), own,
                    early_rows_.after);
}

// Of early_rows_'s table.
void Runtime::rows_published(const ParameterEntry& entry) {
  if (!parallel_.compute->is_captured()) {
    early_rows_.after = entry.parameter.published;
    return;
  }
  early_rows_.after = {};  // what was before is done when a graph is recorded
  base::Lane& lane = parallel_.of(entry.parameter.spec.domain, shard::Via::rows).lane();
  lane.wait(entry.parameter.published);
  early_rows_.may_begin = lane.record(early_rows_.beginning);
}

RowGradient Runtime::grad_rows(schedule::ParameterId id, const shard::RowIds& ids) {
  ParameterEntry& entry = this->entry(id, "grad_rows");
  TESSERA_CHECK(entry.parameter.spec.trainable, "'{}' is frozen and has no gradient", entry.name());
  const shard::RowReducer* rows = entry.reducer.rows();
  TESSERA_CHECK(rows, "'{}' has a gradient of the whole: grad_buffer", entry.name());
  TESSERA_CHECK(!entry.produced, "'{}': rows are produced twice in a microbatch", entry.name());
  check_count(entry, ids);
  std::byte* staging = staging_of(entry, id);
  return {staging, entry.parameter.types.accumulator, rows->find_slots(ids, staging)};
}

}  // namespace tessera::runtime
