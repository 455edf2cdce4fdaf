// Operations on rows of a table by index: at once on the host, or as work of a stream on a CUDA device. Host and device
// give the same bits, except for the kind of NaN in a sum.
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

// The rows to access: data[i] - first is a row of the compute part, unless it is outside the part. In memory that the
// run's device can read.
struct RowIds {
  const std::int64_t* data = nullptr;
  std::int64_t count = 0;
  std::int64_t first = 0;

  // Returns the row of id number `at`, or -1 if the row is outside [0, rows) or `at` is beyond the last id.
  TESSERA_HOST_DEVICE std::int64_t row(std::int64_t at, std::int64_t rows) const {
    const std::int64_t row = at < count ? data[at] - first : -1;
    return row >= 0 && row < rows ? row : -1;
  }
};

// Data of each rank, `size` elements: this rank's own elements, and those of the other ranks one after another.
template <typename T>
struct ByRank {
  T* own = nullptr;
  T* others = nullptr;
  std::int64_t size = 0;
  int rank = 0;  // this rank

  TESSERA_HOST_DEVICE T* of(int other) const {
    return other == rank ? own : others + (other < rank ? other : other - 1) * size;
  }
};

// Slots for the rows of a microbatch. Equal rows get one slot: the index of the first one.
struct RowSlots {
  RowIds ids;
  std::int64_t rows = 0, most = 0;  // rows: of the compute part; most: of a message
  std::int32_t* map = nullptr;      // [rows], overwritten
  std::int64_t* firsts = nullptr;   // [most]: the row at its first index, -1 at all other indices
  std::int64_t* slots = nullptr;    // [ids.count]: the first index of the row, -1 if it is outside the part
};

// A read of rows. A message has `most` rows. A row has the same index in the message as in the request.
struct RowReading {
  std::int64_t most = 0, row_bytes = 0;
  int ranks = 1, rank = 0;                  // ranks that exchange rows; this rank
  const std::int64_t* begins = nullptr;     // [ranks + 1]: the first row that each rank stores
  const std::int64_t* requested = nullptr;  // [ranks, most]: the requested rows, -1: no row
  const std::byte* stored = nullptr;        // this rank's rows
  std::byte* messages = nullptr;            // [ranks - 1, most, row_bytes]: messages to or from the other ranks
  std::int64_t count = 0;                   // number of rows that this rank requests
  std::byte* out = nullptr;                 // [count, row_bytes]

  TESSERA_HOST_DEVICE int owner_of(std::int64_t row) const {
    int owner = 0;
    while (begins[owner + 1] <= row) ++owner;
    return owner;
  }
  TESSERA_HOST_DEVICE bool is_own(std::int64_t row) const { return row >= begins[rank] && row < begins[rank + 1]; }
};

// The state of a row of main_grad. Without these bits all elements of the row are +0.
inline constexpr std::uint8_t kRowWritten = 1, kRowHasNegativeZero = 2;

// A sum of the ranks' gradients for the rows that this rank stores.
struct RowSum {
  quant::DType wire = quant::DType::fp32, accumulator = quant::DType::fp32;
  std::int64_t columns = 0, most = 0;  // most: rows of a message
  int ranks = 1;
  int node = 1;                        // the number of consecutive ranks whose parts are added first (reduction_tree.h)
  std::int64_t begin = 0, count = 0;   // the rows stored here
  ByRank<const std::int64_t> indices;  // [most] each: every row at most once, -1: no row
  ByRank<const std::byte> rows;        // [most, columns] each, of the wire type
  std::int32_t* map = nullptr;         // [count, ranks], overwritten
  std::uint8_t* states = nullptr;      // [count]
  void* sum = nullptr;                 // [count, columns] of the accumulator type
  bool accumulate = false;             // false: rows that no rank sends become +0
  bool clear = false;                  // also writes +0 to rows whose state is already +0
};

// Pointers are memory of the device. Throws Error for types that are not floating, and for errors of CUDA.
class RowKernels {
 public:
  virtual ~RowKernels() = default;
  // Writes list[i] = row i of `ids`, for i < `most`; -1 if there is no row.
  virtual void list(const RowIds& ids, std::int64_t rows, std::int64_t* list, std::int64_t most) const = 0;
  virtual void find_slots(const RowSlots& slots) const = 0;
  // Copies rows that are stored here into the messages to the ranks that request them. Leaves the rest of the messages
  // unchanged.
  virtual void give(const RowReading& reading) const = 0;
  // Copies the requested rows, from the messages and from the rows stored here, to `out`. Writes zeros where no row is
  // requested.
  virtual void take(const RowReading& reading) const = 0;
  // Adds each row in the order of the tree. A rank without the row contributes +0. Touches only rows that some rank
  // sends, rows that contain -0 (-0 + 0 is 0), and rows that become +0.
  virtual void sum(const RowSum& sum) const = 0;
};

// Returns the host kernels, or, for a CUDA device, kernels that enqueue on `stream`. `stream` must outlive the kernels.
// Throws Error for a CUDA device in a build without CUDA.
std::unique_ptr<RowKernels> make_row_kernels(base::Device device, base::CudaStream stream);

namespace detail {
std::unique_ptr<RowKernels> make_cuda_row_kernels(base::Device device, base::CudaStream stream);
}  // namespace detail

}  // namespace tessera::shard
