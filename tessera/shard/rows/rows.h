// Rows of a table by index, between the ranks that store its parts: what a lookup reads, and the way of its
// gradient. Messages have the same size whatever is read: every rank gives every other one as many rows as one may
// read, of which only those that the giver stores (there) or the reader asked for (back) mean anything.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/comm/communicator.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/reduction_tree.h"
#include "tessera/shard/rows/row_kernels.h"

namespace tessera::shard {

// What the rows of one microbatch weigh, in bytes. Pure.
struct RowMessages {
  std::int64_t rows = 0, columns = 0;
  int ranks = 1;            // that exchange them
  std::int64_t stored = 0;  // rows of a compute rank's part that one of them stores at most

  std::int64_t row_bytes(quant::DType type) const;  // of one message
  std::int64_t index_bytes() const;
  // Received by a rank, and given: rows and indices from every other one.
  std::int64_t exchanged(quant::DType type) const {
    return (std::int64_t{ranks} - 1) * (row_bytes(type) + index_bytes());
  }
  // Of the buffers for reading rows: all indices, what is sent and what arrives.
  std::int64_t buffers(quant::DType type) const {
    return ranks * index_bytes() + 2 * (std::int64_t{ranks} - 1) * row_bytes(type);
  }
  // A place of every row that all of them store.
  std::int64_t map_bytes() const { return ranks * stored * static_cast<std::int64_t>(sizeof(std::int32_t)); }
  // Of a gradient: rows in the accumulator type; their indices; the tokens' slots and a map to find them.
  std::int64_t staging(const ParameterTypes& types) const;
  // Of its exchange: the rounded rows; rows and indices that the others send; a map of the rows stored here.
  std::int64_t scratch(const ParameterTypes& types) const;
};
// Between `parts` ranks for each compute rank.
RowMessages messages_of(const ParameterSpec& spec, const ParameterLayouts& layouts, int parts);

// Where the rows of a compute rank's part are stored. Data only.
class RowOwners {
 public:
  explicit RowOwners(const ShardedParameter& parameter);

  int ranks() const { return static_cast<int>(begins_.size()) - 1; }
  int rank() const { return rank_; }  // this one
  std::int64_t rows() const { return begins_.back(); }
  layout::Range owned() const;  // by this one
  const std::vector<std::int64_t>& begins() const { return begins_; }
  // Ranks but this one, numbered.
  std::size_t peer(int rank) const { return static_cast<std::size_t>(rank < rank_ ? rank : rank - 1); }

 private:
  std::vector<std::int64_t> begins_;  // by rank; last: the number of rows
  int rank_ = 0;
};

// Reads rows. Its buffers, of fixed size, are allocated at the first start and kept.
class RowGather {
 public:
  RowGather(const ShardedParameter& parameter, const ParallelGroups& parallel);

  std::int64_t received_bytes() const { return messages_.exchanged(type_); }
  // Enqueues the reading of rows of the compute part into out [ids.count, columns], of the model's type: exact copies;
  // a row of zeros for none. At most reads.per_microbatch ids, read after `written`. The rows travel after that and the
  // parameter's publish; out is written after `free`. Collective; out is complete when the fence is done, and ids and
  // out stay valid until then.
  base::Fence start(const ShardedParameter& parameter, comm::Communicator& group, const RowIds& ids,
                    const base::Fence& written, void* out, const base::Fence& free);
  // Its two halves: the rows travel after `after`, and then, as many, are written to out.
  void bring(const ShardedParameter& parameter, comm::Communicator& group, const RowIds& ids, const base::Fence& after);
  base::Fence place(const ShardedParameter& parameter, comm::Communicator& group, std::int64_t count, void* out,
                    const base::Fence& free);

 private:
  RowReading reading_of(const ShardedParameter& parameter, std::int64_t count);

  RowMessages messages_;
  RowOwners owners_;
  quant::DType type_;
  base::Device device_;
  std::unique_ptr<RowKernels> kernels_;           // on the lane of the group
  base::Buffer begins_, asked_, sent_, arrived_;  // begins_: owners_.begins(); indices by rank; rows by peer
};

// Adds rows to main_grad.
class RowReducer {
 public:
  RowReducer(const ShardedParameter& parameter, const ParallelGroups& parallel);

  const RowMessages& messages() const { return messages_; }
  // On compute: which rows of the staging the ids add to, and the indices of these rows. In the staging. At most
  // reads.per_microbatch ids.
  const std::int64_t* find_slots(const RowIds& ids, std::byte* staging) const;
  // wire: the rounded rows.
  void add_messages(std::byte* staging, const std::byte* wire, std::byte* scratch, std::vector<comm::Send>& sends,
                    std::vector<comm::Receive>& receives) const;
  // On the lane of the reductions. The sums that whole gradients give (reduction.h), in the order of the tree, bit by
  // bit: a rank without a row has +0 there.
  void add_to_main_grad(ShardedParameter& parameter, const ReductionTree& tree, std::byte* staging,
                        const std::byte* wire, std::byte* scratch, bool accumulate) const;

 private:
  // Parts of the staging behind its rows.
  std::int64_t* indices(std::byte* staging) const;
  std::size_t index_part() const;  // bytes
  // Where they begin in the scratch.
  std::size_t received_rows() const;
  std::size_t received_indices() const;
  std::size_t map() const;

  RowMessages messages_;
  RowOwners owners_;
  ParameterTypes types_;
  bool clears_ = false;  // main_grad is not this rank's alone: replicas sum into it
  std::unique_ptr<RowKernels> on_compute_, on_reduce_;
};

}  // namespace tessera::shard
