// Kernels that access rows of a table by index. On the host a call returns when the work is done. On a CUDA device a
// call enqueues the work on a stream. Host and device give the same bits. Only the bits of a NaN in a sum may differ.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/base/host_device.h"
#include "tessera/quant/dtype.h"

namespace tessera::shard {

// Converts a number that must not be negative.
inline std::size_t to_size(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

// The ids of the rows to access. Id data[i] belongs to row data[i] - first of the compute part; an id outside the part
// has no row. `data` is memory that the run's device can read.
struct RowIds {
  const std::int64_t* data = nullptr;
  std::int64_t count = 0;
  std::int64_t first = 0;

  // Returns the row of id number `at`. Returns -1 if the row is outside [0, rows) or if there is no id with this
  // number.
  TESSERA_HOST_DEVICE std::int64_t row(std::int64_t at, std::int64_t rows) const {
    const std::int64_t row = at < count ? data[at] - first : -1;
    return row >= 0 && row < rows ? row : -1;
  }
};

// Arrays of all ranks, with `size` elements each. `own` is this rank's array. `others` contains the arrays of the other
// ranks, one after another.
template <typename T>
struct ByRank {
  T* own = nullptr;
  T* others = nullptr;
  std::int64_t size = 0;
  int rank = 0;  // index of this rank

  TESSERA_HOST_DEVICE T* of(int other) const {
    return other == rank ? own : others + (other < rank ? other : other - 1) * size;
  }
};

// Arguments of find_slots: the slots of the ids of a microbatch. Ids of the same row share a slot, which is the index
// of the first of these ids.
struct RowSlots {
  RowIds ids;
  std::int64_t rows = 0;           // number of rows in the compute part
  std::int64_t most = 0;           // maximum number of rows in a message
  std::int32_t* map = nullptr;     // [rows], overwritten
  std::int64_t* firsts = nullptr;  // [most]: at index i the row of id i if it is the first id of this row, otherwise -1
  std::int64_t* slots = nullptr;   // [ids.count]: the slot of each id, or -1 if its row is outside the part
};

// Arguments of give and take: a read of rows. A message has `most` rows. A row has the same index in a message as in
// the list of requested rows.
struct RowReading {
  std::int64_t most = 0, row_bytes = 0;
  int ranks = 1, rank = 0;                  // number of ranks that exchange rows; this rank
  const std::int64_t* begins = nullptr;     // [ranks + 1]: the first row that each rank stores, and the number of rows
  const std::int64_t* requested = nullptr;  // [ranks, most]: the rows that each rank requests; -1: no row
  const std::byte* stored = nullptr;        // the rows that this rank stores
  std::byte* messages = nullptr;            // [ranks - 1, most, row_bytes]: messages to or from the other ranks
  std::int64_t count = 0;                   // number of rows that this rank requests
  std::byte* out = nullptr;                 // [count, row_bytes]: receives the requested rows

  TESSERA_HOST_DEVICE int owner_of(std::int64_t row) const {
    int owner = 0;
    while (begins[owner + 1] <= row) ++owner;
    return owner;
  }
  TESSERA_HOST_DEVICE bool is_own(std::int64_t row) const { return row >= begins[rank] && row < begins[rank + 1]; }
};

// Bits of the state of a row of main_grad. If neither bit is set, all elements of the row are +0.
inline constexpr std::uint8_t kRowWritten = 1, kRowHasNegativeZero = 2;

// Arguments of sum: the sum of the ranks' gradients for the rows that this rank stores.
struct RowSum {
  quant::DType wire = quant::DType::fp32, accumulator = quant::DType::fp32;
  std::int64_t columns = 0, most = 0;  // most: number of rows in a message
  int ranks = 1;
  int node = 1;                       // number of consecutive ranks whose gradients are added first (reduction_tree.h)
  std::int64_t begin = 0, count = 0;  // the rows that this rank stores: [begin, begin + count)
  // [most] for each rank: the table row of each entry of `rows`, or -1 for an empty entry. A table row occurs at most
  // once for each rank.
  ByRank<const std::int64_t> indices;
  ByRank<const std::byte> rows;    // [most, columns] for each rank, in the wire type
  std::int32_t* map = nullptr;     // [count, ranks], overwritten
  std::uint8_t* states = nullptr;  // [count]
  void* sum = nullptr;             // [count, columns] in the accumulator type
  bool accumulate = false;         // true: adds to `sum`; false: overwrites it, and rows that no rank sends become +0
  bool clear = false;              // true: also writes +0 to rows whose state is already +0
};

// All pointers are memory of the device. The functions throw Error for types that are not floating, and for CUDA
// errors.
class RowKernels {
 public:
  virtual ~RowKernels() = default;
  // Sets list[i] to the row of id i, or to -1 if there is no row, for all i < `most`.
  virtual void list(const RowIds& ids, std::int64_t rows, std::int64_t* list, std::int64_t most) const = 0;
  virtual void find_slots(const RowSlots& slots) const = 0;
  // Copies rows that this rank stores into the messages to the ranks that request them. Does not change the other rows
  // of the messages.
  virtual void give(const RowReading& reading) const = 0;
  // Copies the requested rows to `out`, from the received messages and from this rank's stored rows. Writes zeros for
  // -1.
  virtual void take(const RowReading& reading) const = 0;
  // Adds the gradients of each row in the order of the reduction tree. A rank that does not send the row contributes
  // +0. Accesses only rows that some rank sends, rows that contain -0 (because -0 + 0 is +0), and rows that become +0.
  virtual void sum(const RowSum& sum) const = 0;
};

// Return the kernels of a device. Kernels for a CUDA device enqueue on `stream`, which must outlive them. Throw Error
// for a CUDA device in a build without CUDA.
std::unique_ptr<RowKernels> make_row_kernels(base::Device device, base::CudaStream stream);

namespace detail {
std::unique_ptr<RowKernels> make_cuda_row_kernels(base::Device device, base::CudaStream stream);
}  // namespace detail

}  // namespace tessera::shard
