// Rows of a table by index, between the gtp ranks that store its parts: what a lookup reads, and the way of its
// gradient. Messages have the same size whatever is read: every rank gives every other one as many rows as one may
// read, of which only those that the giver stores (there) or the reader asked for (back) mean anything.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/comm/communicator.h"
#include "tessera/shard/parallel.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/reduction_tree.h"

namespace tessera::shard {

// What the rows of one microbatch weigh, in bytes. Pure.
struct RowMessages {
  std::int64_t rows = 0, columns = 0;
  int ranks = 1;  // that exchange them

  std::int64_t row_bytes(base::DType type) const;  // of one message
  std::int64_t index_bytes() const;
  // Received by a rank, and given: rows and indices from every other one.
  std::int64_t exchanged(base::DType type) const {
    return (std::int64_t{ranks} - 1) * (row_bytes(type) + index_bytes());
  }
  // Of the buffers for reading rows: all indices, what is sent and what arrives.
  std::int64_t buffers(base::DType type) const {
    return ranks * index_bytes() + 2 * (std::int64_t{ranks} - 1) * row_bytes(type);
  }
  // Of a gradient: rows in the accumulator type, behind them their indices.
  std::int64_t staging(const ParameterTypes& types) const;
  // Of its exchange: the rounded rows, what the others send.
  std::int64_t scratch(const ParameterTypes& types) const;
};
RowMessages messages_of(const ParameterSpec& spec, int ranks);

// Where the rows of a tp rank's part are stored. Data only.
class RowOwners {
 public:
  RowOwners(const ShardedParameter& parameter, const Parallel& parallel);

  int ranks() const { return static_cast<int>(begins_.size()) - 1; }
  int rank() const { return rank_; }  // this one
  std::int64_t rows() const { return begins_.back(); }
  int owner_of(std::int64_t row) const;
  layout::Range owned(int rank) const;
  // Ranks but this one, numbered.
  std::size_t peer(int rank) const { return static_cast<std::size_t>(rank < rank_ ? rank : rank - 1); }

 private:
  std::vector<std::int64_t> begins_;  // by gtp rank; last: the number of rows
  int rank_ = 0;
};

// Reads rows. Its buffers, of fixed size, are allocated at the first start and kept.
class RowGather {
 public:
  RowGather(const ShardedParameter& parameter, const Parallel& parallel);

  std::int64_t received_bytes() const { return messages_.exchanged(type_); }
  // Enqueues the reading of rows of the tp-local part into out [indices, columns], of the model's type: exact copies; a
  // row of zeros for index -1. After the parameter's publish. Collective; out is complete when the fence is done, and
  // the next start waits for that. Errors: more indices than reads.per_microbatch, an index that is no row.
  base::Fence start(const ShardedParameter& parameter, comm::Communicator& gtp, std::span<const std::int64_t> indices,
                    void* out);

 private:
  void pack(const ShardedParameter& parameter);
  void unpack(const ShardedParameter& parameter, std::size_t count, std::byte* out) const;
  std::int64_t* asked(int rank) { return asked_.as<std::int64_t>().data() + rank * messages_.rows; }

  RowMessages messages_;
  RowOwners owners_;
  base::DType type_;
  std::size_t row_bytes_;                // of one row
  base::Buffer asked_, sent_, arrived_;  // indices by rank; rows by peer
};

// Adds rows to main_grad. Data only.
class RowReducer {
 public:
  RowReducer(const ShardedParameter& parameter, const Parallel& parallel);

  const RowMessages& messages() const { return messages_; }
  std::int64_t* indices(std::byte* staging) const;
  // wire: the rounded rows.
  void add_messages(std::byte* staging, const std::byte* wire, std::byte* scratch, std::vector<comm::Send>& sends,
                    std::vector<comm::Receive>& receives) const;
  // The sums that whole gradients give (reduction.h), in the order of the tree, bit by bit: a rank without a row has
  // +0 there. Only rows that some rank has are touched, and all of them when it does not accumulate.
  void add_to_main_grad(ShardedParameter& parameter, const ReductionTree& tree, std::byte* staging,
                        const std::byte* wire, const std::byte* scratch, bool accumulate) const;

 private:
  struct Part {
    std::int64_t row = 0;  // of those stored here
    int rank = 0;
    const std::byte* data = nullptr;
  };
  class Sum;
  std::vector<Part> parts_of(std::byte* staging, const std::byte* wire, const std::byte* scratch) const;
  std::size_t received_rows() const;     // where they begin in the scratch
  std::size_t received_indices() const;  // likewise

  RowMessages messages_;
  RowOwners owners_;
  ParameterTypes types_;
};

}  // namespace tessera::shard
