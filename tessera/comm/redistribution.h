// Executes a redistribution plan over a communicator. A plan that is recognised as a collective runs as that
// collective. Any other plan runs as packed messages.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/ordered_addition.h"
#include "tessera/comm/packing.h"
#include "tessera/layout/redistribute.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

struct Movement;

// Returns the bytes that a rank receives from others when a plan over `ranks` ranks runs as `collective`. `elements` is
// the number of elements that the plan transfers to the rank. An all_reduce may move fewer bytes than the plan, because
// the ranks exchange parts and sums instead of whole buffers.
std::int64_t received_bytes(const layout::Collective& collective, int ranks, std::int64_t elements, quant::DType type);

// A plan that is prepared for one rank: the messages to pack, send, receive and unpack. The object is built once and
// run often. The object contains only data, and must live until the fences of its runs are done.
class Redistribution {
 public:
  // `from` and `to` are over the group's ranks in order. `type` is the type of the elements; only a plan that adds uses
  // it. Throws the errors of layout::redistribute.
  Redistribution(const layout::Layout& from, const layout::Layout& to, int rank,
                 quant::DType type = quant::DType::fp32);

  const layout::Collective& collective() const { return collective_; }
  std::int64_t elements_received() const { return received_; }  // elements that this rank receives from others
  std::int64_t received_bytes(quant::DType type) const {
    return comm::received_bytes(collective_, ranks_, received_, type);
  }
  // Returns whether no message needs packing: the plan only copies, and each message is contiguous in the source and in
  // the target. The result is the same on every rank.
  bool is_contiguous() const { return contiguous_; }

  // Moves elements of `type` from `source` (local buffer of `from`) to `target` (local buffer of `to`). An adding plan
  // computes sums in rank order, in the accumulator type of `type`, and writes the sums in `type`. For an adding plan,
  // `type` must be a floating type. Unless the adding plan is one collective, `type` must be the type given to the
  // constructor. `source` and `target` are memory of group.kernels().device() and must not overlap. There are three
  // exceptions: the source of an all_gather may be the rank's part of the target, the target of a reduce_scatter may be
  // the rank's part of the source, and an all_reduce may be in place.
  // Padding, and elements that no transfer covers, keep their value.
  base::Fence run(Communicator& group, const void* source, void* target, quant::DType type) const;

 private:
  struct Staging;

  friend base::Fence run_together(Communicator& group, std::span<const Movement> movements);
  friend base::Fence sum_together(Communicator& group, std::span<const Movement> movements);

  bool is_exchange() const;  // whether the plan is not recognised as a single collective
  void check_group(const Communicator& group) const;
  void copy_own(const quant::Kernels& kernels, const void* source, void* target, quant::DType type) const;
  base::Fence run_local(Communicator& group, const void* source, void* target, quant::DType type) const;
  base::Fence run_copies(Communicator& group, const void* source, void* target, quant::DType type) const;
  // Writes the target of a plan that adds. `parts` are the received parts.
  void add_parts(const quant::Kernels& kernels, const Movement& movement, const std::byte* parts) const;
  std::shared_ptr<Staging> make_staging() const;
  std::vector<Send> pack(Communicator& group, const std::shared_ptr<Staging>& staging, const void* source,
                         quant::DType type) const;
  std::vector<Receive> arrivals(const quant::Kernels& kernels, Staging& staging, void* target, quant::DType type) const;

  layout::Collective collective_;
  quant::DType type_;
  int rank_ = 0, ranks_ = 0;
  bool adds_ = false, contiguous_ = false;
  // Executes a plan that adds and is not one collective, and the sums of several plans; nullopt for other plans.
  std::optional<OrderedAddition> addition_;
  std::int64_t target_size_ = 0;  // elements of the rank's target buffer
  std::int64_t received_ = 0;
  // Contains no empty messages. The list of transfers of a contiguous message is empty.
  std::vector<BoxMessage> sends_, receives_;
};

// The argument of run_together: a redistribution, and the memory that it moves.
struct Movement {
  const Redistribution* redistribution = nullptr;
  const void* source = nullptr;
  void* target = nullptr;
  quant::DType type = quant::DType::fp32;
};

// Executes several redistributions in one exchange. The result is that of run() for each redistribution. Throws Error
// if a redistribution is not contiguous (is_contiguous), or was made for another group or rank. The redistributions
// must live until the fence is done. `movements` is used only during the call.
base::Fence run_together(Communicator& group, std::span<const Movement> movements);

// Executes several redistributions that add, in one exchange. The result is that of run() for each redistribution, with
// the same bits. `type` must be the type given to the constructors. Throws Error if a redistribution does not add, or
// was made for another group or rank. The redistributions must live until the fence is done. `movements` is used only
// during the call.
base::Fence sum_together(Communicator& group, std::span<const Movement> movements);

}  // namespace tessera::comm
