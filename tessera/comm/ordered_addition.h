// A redistribution that adds in rank order. Each element of the target layout receives its starting value plus the
// parts of the ranks that hold the element in the source layout. The sum is rounded to the accumulator type after each
// part.
//
// An addition consists of an exchange of messages and of sums after the exchange. Several additions can share one
// exchange. The caller owns all memory, so that addresses stay the same from step to step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/comm/packing.h"
#include "tessera/layout/redistribute.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

// The ranks and types of an addition. The layouts are over some ranks of a group, in ascending order of ranks.
struct Addends {
  std::vector<int> members;         // group ranks, by rank of the layouts
  std::vector<quant::DType> types;  // the type of each member's part
  quant::DType accumulator{};       // the type of the sums
};

// The starting value of a sum: `nothing` starts with the first part, `target` with the value that is already in the
// target.
enum class Start { nothing, target };

// An addition that is prepared for one rank. The object contains only data, and must live until the work that it has
// enqueued is done.
class OrderedAddition {
 public:
  // `rank` is this rank's number in the layouts. from.state is partial. Throws the errors of layout::redistribute_add,
  // and Error for: a `rank` that is not in the layouts; a number of members or types other than the number of ranks;
  // members that are not in ascending order.
  OrderedAddition(const layout::Layout& from, const layout::Layout& to, int rank, Addends addends);

  std::int64_t received_bytes() const { return received_; }  // bytes that this rank receives from others
  std::size_t scratch_bytes() const { return scratch_; }     // for packed messages to send and for received messages
  std::size_t sums() const { return cells_.size(); }  // number of boxes of the target that sum() computes separately
  quant::DType own_type() const { return addends_.types[static_cast<std::size_t>(rank_)]; }

  // Appends this rank's messages to `sends` and `receives`, for one Communicator::exchange over the group. Also packs
  // the messages that are not contiguous in `source`; this work is enqueued on the group's lane. `source` is this
  // rank's buffer of `from`.
  void add_messages(Communicator& group, const void* source, std::byte* scratch, std::vector<Send>& sends,
                    std::vector<Receive>& receives) const;
  // Computes the sums. Called on a lane that waits for the exchange. `target` is this rank's buffer of `to`, in the
  // accumulator type. Elements without a part keep their value. If `squares` is not null, it receives the sum of
  // squares of each row of the target (quant::Kernels::ordered_sum_squares). The target must then be dense, with rows
  // of equal width.
  void sum(const quant::Kernels& kernels, const void* source, const std::byte* scratch, void* target, Start start,
           double* squares = nullptr) const;
  // Rounds the sums once to `type`. Called after sum(), on the same lane. `target` is a buffer of `to` with elements of
  // `type`. Elements that no part covers keep their value.
  void round(const quant::Kernels& kernels, const void* sums, void* target, quant::DType type) const;

 private:
  // A message to or from another rank of the layouts.
  struct Message : BoxMessage {
    std::size_t place = 0;  // byte offset in the scratch
  };
  // A part that a cell adds. The part is stored in this rank's own buffer or in a received message.
  struct Term {
    quant::DType type{};
    bool is_own = false;
    std::size_t place = 0;  // byte offset of the message in the scratch
    std::int64_t offset = 0, stride = 0;
    bool operator==(const Term&) const = default;
  };
  // A box of the target. All elements of the box are sums over the same ranks.
  struct Cell {
    std::int64_t rows = 0, cols = 0, offset = 0, stride = 0;
    std::vector<Term> terms;  // in rank order
    bool is_dense() const;
  };

  void make_messages(const layout::TransferPlan& plan);
  void make_cells(const layout::TransferPlan& plan, const layout::LocalLayout& target);
  static bool join(Cell& cell, const Cell& next);
  void add_rows(const quant::Kernels& kernels, const Cell& cell, std::int64_t row, std::int64_t rows,
                const std::byte* source, const std::byte* scratch, std::byte* target, Start start,
                double* squares) const;

  Addends addends_;
  int rank_ = 0;
  std::vector<Message> sends_, receives_;
  std::vector<Cell> cells_;
  std::int64_t received_ = 0;
  std::size_t scratch_ = 0;
};

}  // namespace tessera::comm
