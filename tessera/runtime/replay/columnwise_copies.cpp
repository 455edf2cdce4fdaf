#include "tessera/runtime/replay/columnwise_copies.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::runtime {

ColumnwiseCopies::ColumnwiseCopies(const schedule::Trace& trace, const schedule::Schedule& schedule, StepContext& step)
    : schedule_(schedule),
      step_(step),
      copy_of_(static_cast<std::size_t>(schedule.body), -1),
      offsets_(step.entries.size(), 0),
      gathered_(step.entries.size(), 0),
      made_(schedule.copies.size()) {
  for (int index = 0; index < static_cast<int>(schedule.copies.size()); ++index)
    for (int event = copy(index).make; event <= copy(index).last; ++event) {
      const schedule::Event& it = trace[static_cast<std::size_t>(event)];
      if (it.kind == schedule::EventKind::consume && it.pass == schedule::Pass::backward &&
          std::ranges::find(unit_of(index), it.parameter) != unit_of(index).end())
        copy_of_[static_cast<std::size_t>(event)] = index;
    }
  for (const schedule::Unit& unit : schedule.gather_units) {
    std::int64_t offset = 0, gathered = 0;
    for (const schedule::ParameterId id : unit) {
      offsets_[static_cast<std::size_t>(id)] = offset;
      gathered_[static_cast<std::size_t>(id)] = gathered;
      offset += static_cast<std::int64_t>(entry(id).materializer.columnwise_bytes());
      gathered += static_cast<std::int64_t>(entry(id).materializer.bytes());
    }
  }
}

void ColumnwiseCopies::begin_step() {
  for (Made& made : made_) made.is_made = false;
}

int ColumnwiseCopies::copy_of(const ParameterEntry& entry, int event) const {
  const int index = copy_of_[static_cast<std::size_t>(event)];
  TESSERA_CHECK(index >= 0, "event {}: '{}' has no columnwise copy in the schedule", event, entry.name());
  return index;
}

bool ColumnwiseCopies::note(int index) {
  Made& made = made_[static_cast<std::size_t>(index)];
  if (made.is_made) return false;
  made.is_made = true;
  made.versions.clear();
  for (const schedule::ParameterId id : unit_of(index)) made.versions.push_back(entry(id).parameter.version());
  return true;
}

void ColumnwiseCopies::make(int index, std::byte* gathered) {
  std::byte* const target = step_.arenas.gather.data() + copy(index).offset;
  std::vector<quant::Transposition> work;
  for (const schedule::ParameterId id : unit_of(index)) {
    ParameterEntry& member = entry(id);
    if (gathered == nullptr) step_.waits.until(member.parameter.published(), mesh::Transfer::publish, {&id, 1});
    work.push_back(member.materializer.columnwise_copy(
        member.parameter, gathered == nullptr ? nullptr : gathered + gathered_[static_cast<std::size_t>(id)],
        target + offsets_[static_cast<std::size_t>(id)]));
  }
  step_.parallel.kernels().create_columnwise(work);
  ++step_.statistics.columnwise_copies;
  step_.arenas.gather_peak =
      std::max(step_.arenas.gather_peak,
               copy(index).offset + schedule_.columnwise_bytes[static_cast<std::size_t>(copy(index).unit)]);
}

void ColumnwiseCopies::check_version(const ParameterEntry& entry, int index, int event) {
  const schedule::Unit& unit = unit_of(index);
  const std::vector<std::int64_t>& versions = made_[static_cast<std::size_t>(index)].versions;
  for (std::size_t i = 0; i < unit.size(); ++i)
    if (&this->entry(unit[i]) == &entry)
      TESSERA_CHECK(versions[i] == entry.parameter.version(),
                    "event {}: the columnwise copy of '{}' was made from version {}, the stored weight has version {}",
                    event, entry.name(), versions[i], entry.parameter.version());
}

void ColumnwiseCopies::arrive(ParameterEntry& entry, schedule::ParameterId id, int event, std::byte* gathered) {
  const int index = copy_of(entry, event);
  if (note(index)) make(index, gathered);
  check_version(entry, index, event);
  entry.set_columnwise(step_.arenas.gather.data() + copy(index).offset + offsets_[static_cast<std::size_t>(id)]);
}

void ColumnwiseCopies::repeat(const ParameterEntry& entry, int event) {
  const int index = copy_of(entry, event);
  if (note(index)) ++step_.statistics.columnwise_copies;
  check_version(entry, index, event);
}

}  // namespace tessera::runtime
