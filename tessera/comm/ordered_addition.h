// A redistribution that adds: each element of the target layout becomes what it starts from plus the parts of the ranks
// that hold it in the source layout, in rank order, rounded to the accumulator type after each.
//
// It is made of an exchange, which several additions can share, and of sums after it. All memory is the caller's, so
// that addresses stay the same from step to step.
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

// The ranks and types of an addition. Its layouts are over some ranks of a group, in ascending order of ranks.
struct Addends {
  std::vector<int> members;         // of the group, by rank of the layouts
  std::vector<quant::DType> types;  // of the part that each of them gives
  quant::DType accumulator{};       // of the sums
};

// The first term of a sum: its first part, or the old value of the target.
enum class Start { nothing, target };

// Made ready for one rank; data only. It must live until what it has enqueued is done.
class OrderedAddition {
 public:
  // `rank`: this one's in the layouts; from.state is partial. Errors: as layout::redistribute; a rank or a number of
  // members or types that is not that of the layouts.
  OrderedAddition(const layout::Layout& from, const layout::Layout& to, int rank, Addends addends);

  std::int64_t received_bytes() const { return received_; }  // by this rank, from others
  std::size_t scratch_bytes() const { return scratch_; }     // what is packed before it is sent, and what arrives
  std::size_t sums() const { return cells_.size(); }         // runs of elements that sum() adds up one after the other
  quant::DType own_type() const { return addends_.types[static_cast<std::size_t>(rank_)]; }

  // Adds what this rank sends and receives for one Communicator::exchange over the group, and enqueues on its lane the
  // packing of messages that are not one run. source: this rank's buffer of `from`.
  void add_messages(Communicator& group, const void* source, std::byte* scratch, std::vector<Send>& sends,
                    std::vector<Receive>& receives) const;
  // After the exchange, on a lane that waits for it. target: this rank's buffer of `to`, of the accumulator type.
  // Elements that no part covers are left alone. squares: null, or where the sums of the squares of each row of the
  // target go (quant::Kernels::ordered_sum_squares); then the target is dense, of rows of one width.
  void sum(const quant::Kernels& kernels, const void* source, const std::byte* scratch, void* target, Start start,
           double* squares = nullptr) const;
  // After sum, on the same lane: rounds the sums once to `type`. target: a buffer of `to`, of that type. Elements that
  // no part covers are left alone.
  void round(const quant::Kernels& kernels, const void* sums, void* target, quant::DType type) const;

 private:
  // To or from another rank of the layouts.
  struct Message : BoxMessage {
    std::size_t place = 0;  // in the scratch
  };
  // A part of a cell: of this rank's own buffer, or of what has arrived.
  struct Term {
    quant::DType type{};
    bool is_own = false;
    std::size_t place = 0;  // of the message in the scratch
    std::int64_t offset = 0, stride = 0;
    bool operator==(const Term&) const = default;
  };
  // A box of the target whose elements are sums over the same ranks.
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
