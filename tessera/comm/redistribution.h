// A redistribution plan carried out over a communicator: recognised collectives run as one, the rest as packed
// messages.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/ordered_addition.h"
#include "tessera/comm/packing.h"
#include "tessera/layout/redistribute.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

struct Movement;

// Bytes that a rank receives from others when a plan over `ranks` ranks, recognised as `collective`, is carried out.
// `elements`: those that the plan brings the rank. An all_reduce sends parts of sums, not every rank's whole part.
std::int64_t received_bytes(const layout::Collective& collective, int ranks, std::int64_t elements, quant::DType type);

// A plan made ready for one rank: what to pack, send, receive, unpack. Build once, run often. Data only; it must live
// until the fences of its runs are done.
class Redistribution {
 public:
  // `from` and `to` are over the group's ranks in order. type: of the elements, used only if the plan adds. Throws the
  // errors of layout::redistribute.
  Redistribution(const layout::Layout& from, const layout::Layout& to, int rank,
                 quant::DType type = quant::DType::fp32);

  const layout::Collective& collective() const { return collective_; }
  std::int64_t elements_received() const { return received_; }  // by this rank, from others
  std::int64_t received_bytes(quant::DType type) const {
    return comm::received_bytes(collective_, ranks_, received_, type);
  }
  // Whether nothing needs packing: the plan only copies, and what any rank sends another is one run on both sides. The
  // same on every rank.
  bool is_contiguous() const { return contiguous_; }

  // Moves elements of `type` from `source` (local buffer of `from`) to `target` (local buffer of `to`). For an adding
  // plan the sum is taken in rank order in `type`'s accumulator and written to target in `type`, which must be
  // floating and, unless the plan is one collective, the type of the constructor. Both are memory of
  // group.kernels().device(). source and target must not overlap, but for collectives: a shard may be at its own place
  // in the whole, and an all_reduce be in place. Padding of target is left alone. Elements of target that no transfer
  // covers are left alone.
  base::Fence run(Communicator& group, const void* source, void* target, quant::DType type) const;

 private:
  struct Staging;

  friend base::Fence run_together(Communicator& group, std::span<const Movement> movements);

  bool is_exchange() const;  // not recognised as one collective
  void check_group(const Communicator& group) const;
  void copy_own(const quant::Kernels& kernels, const void* source, void* target, quant::DType type) const;
  base::Fence run_local(Communicator& group, const void* source, void* target, quant::DType type) const;
  base::Fence run_copies(Communicator& group, const void* source, void* target, quant::DType type) const;
  base::Fence run_sums(Communicator& group, const void* source, void* target, quant::DType type) const;
  std::shared_ptr<Staging> make_staging() const;
  std::vector<Send> pack(Communicator& group, const std::shared_ptr<Staging>& staging, const void* source,
                         quant::DType type) const;
  std::vector<Receive> arrivals(const quant::Kernels& kernels, Staging& staging, void* target, quant::DType type) const;

  layout::Collective collective_;
  quant::DType type_;
  int rank_ = 0, ranks_ = 0;
  bool adds_ = false, contiguous_ = false;
  std::optional<OrderedAddition> addition_;  // of an exchange that adds
  std::int64_t target_size_ = 0;             // elements of its target buffer
  std::int64_t received_ = 0;
  // None empty. Their transfers are left out where the run is enough.
  std::vector<BoxMessage> sends_, receives_;
};

// The argument of run_together: a redistribution, and the memory that it moves.
struct Movement {
  const Redistribution* redistribution = nullptr;
  const void* source = nullptr;
  void* target = nullptr;
  quant::DType type = quant::DType::fp32;
};

// Carries out several redistributions in one exchange. Each moves what its own run() would move. Errors: a
// redistribution that is not contiguous (is_contiguous) or was made for another group or rank. The redistributions must
// live until the fence is done; the span need not.
base::Fence run_together(Communicator& group, std::span<const Movement> movements);

}  // namespace tessera::comm
