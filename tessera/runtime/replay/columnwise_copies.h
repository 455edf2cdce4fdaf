// Makes the columnwise copies of a schedule (schedule.h) while a step follows it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/runtime/step_context.h"
#include "tessera/schedule/schedule.h"

namespace tessera::runtime {

// Belongs to one Replay; used by its thread. All arguments of the constructor outlive the object.
class ColumnwiseCopies {
 public:
  ColumnwiseCopies(const schedule::Trace& trace, const schedule::Schedule& schedule, StepContext& step);

  // After this call no copy of an earlier step is read.
  void begin_step();
  // Called before the consume event `event` of a backward pass. Makes the copies of the weight's unit, if the event is
  // the first that reads them, and sets the address of the weight's copy. `gathered` is the address of the unit's
  // gathered weights; null if they stay in place. Throws Error if the schedule has no copy at this event, or if the
  // copy was made from another version than the stored weight.
  void arrive(ParameterEntry& entry, schedule::ParameterId id, int event, std::byte* gathered);
  // Like arrive, if a graph makes the copies: only stores and compares the versions.
  void repeat(const ParameterEntry& entry, int event);

 private:
  struct Made {
    bool is_made = false;                // in this step
    std::vector<std::int64_t> versions;  // versions of the unit's members when the copy was made
  };
  ParameterEntry& entry(schedule::ParameterId id) { return *step_.entries[static_cast<std::size_t>(id)]; }
  const schedule::ColumnwiseCopy& copy(int index) const { return schedule_.copies[static_cast<std::size_t>(index)]; }
  const schedule::Unit& unit_of(int index) const {
    return schedule_.gather_units[static_cast<std::size_t>(copy(index).unit)];
  }
  int copy_of(const ParameterEntry& entry, int event) const;
  bool note(int index);  // stores the versions if the copy is not made yet; returns whether this was the case
  void make(int index, std::byte* gathered);
  void check_version(const ParameterEntry& entry, int index, int event);

  const schedule::Schedule& schedule_;
  StepContext& step_;
  std::vector<int> copy_of_;  // by event: the copy that a consume event reads; -1: the event reads no copy
  // By parameter: offsets in the unit's copies, and in its gathered weights.
  std::vector<std::int64_t> offsets_, gathered_;
  std::vector<Made> made_;  // by copy
};

}  // namespace tessera::runtime
