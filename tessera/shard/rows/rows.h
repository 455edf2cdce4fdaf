// Exchanges rows of a table by index between the ranks that store its parts: the rows that a lookup reads, and their
// gradients. The size of a message does not depend on the rows that are read. Every rank sends every other rank as many
// rows as one rank may read. In a message of a lookup, only the rows that the sender stores are valid. In a message of
// gradients, only the rows that the sender has read are valid.
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

// The sizes of the messages and buffers for the rows of one microbatch, in bytes. Pure.
struct RowMessages {
  std::int64_t rows = 0, columns = 0;
  int ranks = 1;            // ranks that exchange rows
  std::int64_t stored = 0;  // maximum number of rows that one of these ranks stores of a compute rank's part

  std::int64_t row_bytes(quant::DType type) const;  // of one message
  std::int64_t index_bytes() const;
  // Returns the bytes that a rank receives, and also sends: rows and indices for every other rank.
  std::int64_t exchanged(quant::DType type) const {
    return (std::int64_t{ranks} - 1) * (row_bytes(type) + index_bytes());
  }
  // Returns the bytes of the buffers for a read: all indices, the rows to send and the received rows.
  std::int64_t buffers(quant::DType type) const {
    return ranks * index_bytes() + 2 * (std::int64_t{ranks} - 1) * row_bytes(type);
  }
  // Returns the bytes of a map with one index for each row that the ranks store.
  std::int64_t map_bytes() const { return ranks * stored * static_cast<std::int64_t>(sizeof(std::int32_t)); }
  // Returns the bytes of a gradient's staging: rows in the accumulator type, their indices, the slots of the tokens,
  // and a map to find the slots.
  std::int64_t staging(const ParameterTypes& types) const;
  // Returns the bytes of the scratch of a gradient's exchange: the rounded rows, the received rows and indices, and a
  // map of the rows that are stored here.
  std::int64_t scratch(const ParameterTypes& types) const;
};
// Returns the messages between `parts` ranks, for each compute rank.
RowMessages messages_of(const ParameterSpec& spec, const ParameterLayouts& layouts, int parts);

// The owners of the rows of a compute rank's part. Contains only data.
class RowOwners {
 public:
  explicit RowOwners(const ShardedParameter& parameter);

  int ranks() const { return static_cast<int>(begins_.size()) - 1; }
  int rank() const { return rank_; }  // this rank
  std::int64_t rows() const { return begins_.back(); }
  layout::Range owned() const;  // the rows that this rank stores
  const std::vector<std::int64_t>& begins() const { return begins_; }
  // Returns the number of another rank among all ranks except this one.
  std::size_t peer(int rank) const { return static_cast<std::size_t>(rank < rank_ ? rank : rank - 1); }

 private:
  std::vector<std::int64_t> begins_;  // first row by rank; the last element is the number of rows
  int rank_ = 0;
};

// Reads rows. The buffers have a fixed size; the first read allocates them.
class RowGather {
 public:
  RowGather(const ShardedParameter& parameter, const ParallelGroups& parallel);

  std::int64_t received_bytes() const { return messages_.exchanged(type_); }
  // Enqueues a read of rows of the compute part into out [ids.count, columns], in the model's type. The values are
  // exact copies; a row outside the part gives zeros. `ids` has at most reads.per_microbatch entries, which are read
  // after `written`. The rows travel after `written` and the parameter's publish. `out` is written after `free`.
  // Collective over the group. When the returned fence is done, `out` is complete. `ids` and `out` must stay valid
  // until that time.
  base::Fence start(const ShardedParameter& parameter, comm::Communicator& group, const RowIds& ids,
                    const base::Fence& written, void* out, const base::Fence& free);
  // The two halves of start(). gather_early() sends the rows after `after`. place() then writes the same number of rows
  // to `out`.
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
  std::unique_ptr<RowKernels> kernels_;               // on the lane of the group
  base::Buffer begins_, requested_, sent_, arrived_;  // owners_.begins(); indices by rank; rows to and from each peer
};

// Adds rows to main_grad.
class RowReducer {
 public:
  RowReducer(const ShardedParameter& parameter, const ParallelGroups& parallel);

  const RowMessages& messages() const { return messages_; }
  // Finds the slot of each id on compute's lane. The slot is the row of the staging to which the id's gradient is
  // added. Returns the slots, which are stored in the staging. Also writes the table row of each slot into the staging.
  // `ids` has at most reads.per_microbatch entries.
  const std::int64_t* find_slots(const RowIds& ids, std::byte* staging) const;
  // `wire` contains the rounded rows.
  void add_messages(std::byte* staging, const std::byte* wire, std::byte* scratch, std::vector<comm::Send>& sends,
                    std::vector<comm::Receive>& receives) const;
  // Called on the lane of the reductions. Gives the same bits as sums of whole gradients (reduction.h), in the order of
  // the tree: a rank without a row contributes +0.
  void add_to_main_grad(ShardedParameter& parameter, const ReductionTree& tree, std::byte* staging,
                        const std::byte* wire, std::byte* scratch, bool accumulate) const;

 private:
  // The indices, after the rows in the staging.
  std::int64_t* indices(std::byte* staging) const;
  std::size_t index_part() const;  // bytes
  // Byte offsets in the scratch.
  std::size_t received_rows() const;
  std::size_t received_indices() const;
  std::size_t map() const;

  RowMessages messages_;
  RowOwners owners_;
  ParameterTypes types_;
  bool clears_ = false;  // whether replicas also sum into main_grad
  std::unique_ptr<RowKernels> on_compute_, on_reduce_;
};

}  // namespace tessera::shard
