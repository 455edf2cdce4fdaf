// Carries out a redistribution plan over a communicator. A plan that is recognised as a collective runs as that
// collective, and any other plan as packed messages.
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

// Returns the bytes that a rank receives from others when a plan over `ranks` ranks is carried out as `collective`.
// `elements` is the number of elements that the rank receives by the plan. An all_reduce transfers parts of sums, not
// every rank's whole buffer.
std::int64_t received_bytes(const layout::Collective& collective, int ranks, std::int64_t elements, quant::DType type);

// A plan that is prepared for one rank: the messages to pack, send, receive and unpack. The object is built once and
// run often. The object contains only data, and must live until the fences of its runs are done.
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
  // Returns whether no message needs packing: the plan only copies, and each message is contiguous in the source and in
  // the target. The result is the same on every rank.
  bool is_contiguous() const { return contiguous_; }

  // Moves elements of `type` from `source` (local buffer of `from`) to `target` (local buffer of `to`). An adding plan
  // computes sums in rank order in the accumulator type of `type`, and writes them in `type`. `type` must then be a
  // floating type; unless the plan is one collective, `type` must be the type given to the constructor. `source` and
  // `target` are memory of group.kernels().device() and must not overlap. Two collectives are exceptions: a shard may
  // be at its own place in the gathered tensor, and an all_reduce may be in place. Padding, and elements that no
  // transfer covers, keep their value.
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
  // Contains no empty messages. A message's transfers are dropped if its run is sufficient.
  std::vector<BoxMessage> sends_, receives_;
};

// The argument of run_together: a redistribution, and the memory that it moves.
struct Movement {
  const Redistribution* redistribution = nullptr;
  const void* source = nullptr;
  void* target = nullptr;
  quant::DType type = quant::DType::fp32;
};

// Carries out several redistributions in one exchange. Each redistribution moves the data that its own run() would
// move. Throws Error if a redistribution is not contiguous (is_contiguous), or if it was made for another group or
// rank. The redistributions must live until the fence is done; the span need not.
base::Fence run_together(Communicator& group, std::span<const Movement> movements);

}  // namespace tessera::comm
