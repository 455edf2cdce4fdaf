// A redistribution plan carried out over a communicator: recognised collectives run as one, the rest as packed
// messages.
#pragma once
#include "tessera/base/dtype.h"
#include "tessera/base/fence.h"
#include "tessera/comm/communicator.h"
#include "tessera/layout/redistribute.h"

namespace tessera::comm {

// A plan made ready for one rank: what to pack, send, receive, unpack. Build once, run often. Data only.
class Redistribution {
 public:
  // `from` and `to` are over the group's ranks in order. Errors as layout::redistribute.
  Redistribution(const layout::Layout& from, const layout::Layout& to, int rank);

  const layout::Plan& plan() const { return plan_; }
  const layout::Collective& collective() const { return collective_; }

  // Moves elements of `type` from `source` (local buffer of `from`) to `target` (local buffer of `to`). For an adding
  // plan the sum is taken in rank order in `type`'s accumulator and written to target in `type`. source and target must
  // not overlap. Padding of target is left alone. Elements of target that no transfer covers are left alone.
  base::Fence run(Communicator& group, const void* source, void* target, base::DType type) const;

 private:
  layout::Plan plan_;
  layout::Collective collective_;
  int rank_ = 0;
  layout::LocalLayout from_, to_;
};

}  // namespace tessera::comm
