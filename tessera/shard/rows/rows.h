// Exchanges rows of a table by index between the ranks that store parts of the table: the rows that a lookup reads, and
// their gradients. The size of a message does not depend on the rows that are read. Every message contains the maximum
// number of rows that a rank may read. In a message of a lookup, only the rows that the sender stores are valid. In a
// message of gradients, only the rows that the sender has read are valid. If one rank stores a compute part, there are
// no messages, and RowReducer only adds the rows of a microbatch.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/comm/communicator.h"
#include "tessera/shard/parallel_groups.h"
#include "tessera/shard/parameter.h"
#include "tessera/shard/rows/row_kernels.h"
#include "tessera/shard/ways/reduction_tree.h"

namespace tessera::shard {

// The sizes of the messages and buffers for the rows of one microbatch, in bytes. Pure.
struct RowMessages {
  std::int64_t rows = 0, columns = 0;
  int ranks = 1;            // number of ranks that exchange rows
  std::int64_t stored = 0;  // maximum number of rows of a compute part that one of these ranks stores

  std::int64_t row_bytes(quant::DType type) const;  // bytes of the rows of one message
  std::int64_t index_bytes() const;
  // Returns the bytes that a rank receives in one exchange: rows and indices of every other rank. The rank sends the
  // same number of bytes.
  std::int64_t exchanged(quant::DType type) const {
    return (std::int64_t{ranks} - 1) * (row_bytes(type) + index_bytes());
  }
  // Returns the bytes of the buffers for a read: the indices of all ranks, the rows to send and the received rows.
  std::int64_t buffers(quant::DType type) const {
    return ranks * index_bytes() + 2 * (std::int64_t{ranks} - 1) * row_bytes(type);
  }
  // Returns the bytes of a map with one 32-bit entry for each row that the ranks store.
  std::int64_t map_bytes() const { return ranks * stored * static_cast<std::int64_t>(sizeof(std::int32_t)); }
  // Returns the bytes of the staging of a gradient: rows in the accumulator type, their indices, the slots of the
  // tokens, and a map for finding the slots.
  std::int64_t staging(const ParameterTypes& types) const;
  // Returns the bytes of the scratch for the exchange of a gradient: the rounded rows, the received rows and indices,
  // and a map of the rows that this rank stores.
  std::int64_t scratch(const ParameterTypes& types) const;
};
// Returns the sizes for an exchange between `parts` ranks, which are equal for every compute rank.
RowMessages messages_of(const ParameterSpec& spec, const ParameterLayouts& layouts, int parts);

// The owners of the rows of this rank's compute part. Contains only data.
class RowOwners {
 public:
  explicit RowOwners(const ShardedParameter& parameter);

  int ranks() const { return static_cast<int>(begins_.size()) - 1; }
  int rank() const { return rank_; }  // this rank
  std::int64_t rows() const { return begins_.back(); }
  layout::Range owned() const;  // range of rows that this rank stores
  const std::vector<std::int64_t>& begins() const { return begins_; }
  // Returns the index of another rank among all ranks except this rank.
  std::size_t peer(int rank) const { return static_cast<std::size_t>(rank < rank_ ? rank : rank - 1); }

 private:
  std::vector<std::int64_t> begins_;  // by rank: its first row; the last element is the number of rows
  int rank_ = 0;
};

// Reads rows for a lookup. The buffers have a fixed size. The first read allocates them.
class RowGather {
 public:
  RowGather(const ShardedParameter& parameter, const ParallelGroups& parallel);

  std::int64_t received_bytes() const { return messages_.exchanged(type_); }
  // Enqueues a read of rows of the compute part into out [ids.count, columns], in the model's type. The values are
  // exact copies. A row outside the part gives zeros. `ids` has at most reads.per_microbatch entries. The ids are read
  // after `written`. The rows are sent after `written` and after the parameter's publish event. `out` is written after
  // `free`. Collective over the group. When the returned fence is done, `out` is complete. Until then `ids` and `out`
  // must stay valid.
  base::Fence start(const ShardedParameter& parameter, comm::Communicator& group, const RowIds& ids,
                    const base::Fence& written, void* out, const base::Fence& free);
  // The two halves of start(). gather_early() sends the rows after the fence `after`. place() then writes these rows to
  // `out`. `count` must equal ids.count.
  void gather_early(const ShardedParameter& parameter, comm::Communicator& group, const RowIds& ids,
                    const base::Fence& after);
  base::Fence place(const ShardedParameter& parameter, comm::Communicator& group, std::int64_t count, void* out,
                    const base::Fence& free);

 private:
  RowReading reading_of(const ShardedParameter& parameter, std::int64_t count);

  RowMessages messages_;
  RowOwners owners_;
  quant::DType type_;
  base::Device device_;
  std::unique_ptr<RowKernels> kernels_;  // kernels on the lane of the group
  // owners_.begins(); requested rows by rank; rows to each peer; rows from each peer.
  base::Buffer begins_, requested_, sent_, arrived_;
};

// Exchanges the gradients of rows and adds them to main_grad.
class RowReducer {
 public:
  RowReducer(const ShardedParameter& parameter, const ParallelGroups& parallel);

  const RowMessages& messages() const { return messages_; }
  // Enqueues work on compute's lane that finds the slot of each id. The slot is the row of the staging to which the
  // gradient of the id is added. Returns the address of the slots, which are stored in the staging. The staging also
  // receives the table row of each slot. `ids` has at most reads.per_microbatch entries.
  const std::int64_t* find_slots(const RowIds& ids, std::byte* staging) const;
  // Appends the messages of the exchange. `wire` contains the rounded rows.
  void add_messages(std::byte* staging, const std::byte* wire, std::byte* scratch, std::vector<comm::Send>& sends,
                    std::vector<comm::Receive>& receives) const;
  // Called on the lane of the reductions. Adds the rows in the order of the tree. A rank without a row contributes +0,
  // so the bits equal those of sums of whole gradients (reduction.h).
  void add_to_main_grad(ShardedParameter& parameter, const ReductionTree& tree, std::byte* staging,
                        const std::byte* wire, std::byte* scratch, bool accumulate) const;

 private:
  // Returns the address of the indices, which follow the rows in the staging.
  std::int64_t* indices(std::byte* staging) const;
  std::size_t index_part() const;  // bytes of the indices in the staging
  // Byte offsets in the scratch.
  std::size_t received_rows() const;
  std::size_t received_indices() const;
  std::size_t map() const;

  RowMessages messages_;
  RowOwners owners_;
  ParameterTypes types_;
  bool clears_ = false;  // whether sums over replicas also write main_grad
  std::unique_ptr<RowKernels> on_compute_, on_reduce_;
};

}  // namespace tessera::shard
