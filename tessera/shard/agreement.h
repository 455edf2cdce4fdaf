// That all ranks run the same program: what each did is posted where the others can read it, and compared when a rank
// waits too long and at the end of every step.
#pragma once
#include <string>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/shard/entry.h"
#include "tessera/shard/parallel.h"

namespace tessera::shard {

// One rank's record of the step under way. One thread.
class Agreement {
 public:
  explicit Agreement(Parallel& parallel) : parallel_(parallel) {}

  void begin_step();
  void add(const Event& event);
  const Trace& trace() const { return trace_; }  // of the last step begun
  std::uint64_t hash() const { return hash_; }
  void post();  // where this rank is

  // Blocks until the fence is done. Errors: Error with the first differing event when a second passed and another rank
  // did other things; whatever the fence carries.
  void wait(const base::Fence& fence, const Entries& entries);
  // Collective over `group`, blocking: every rank brings `number`. Errors: Error with the first differing event, or
  // naming `what`, when one brings another.
  void compare(comm::Communicator& group, std::uint64_t number, const std::string& what, const Entries& entries);

 private:
  struct Notice;
  void post(int dumped);
  // The first event in which some rank differs from this one; empty while none is known.
  std::string difference(const Entries& entries);

  Parallel& parallel_;
  std::int64_t step_ = 0;
  Trace trace_;
  std::uint64_t hash_ = 0;
  std::vector<std::uint64_t> ends_;  // the hash before each microbatch begun, and before what follows the last
  std::vector<std::size_t> begins_;  // where they begin in trace_
};

}  // namespace tessera::shard
