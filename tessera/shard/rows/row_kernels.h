// What is done with rows of a table by index, where the memory lies: on the host at once, on a CUDA device as work of a
// stream. The same bits on both, except in what kind of NaN a sum gives.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/base/host_device.h"
#include "tessera/quant/dtype.h"

namespace tessera::shard {

// Converts a number that is never negative.
inline std::size_t to_size(std::int64_t number) {
  return static_cast<std::size_t>(number);
}

// Which rows: data[i] - first is one of the compute part, or none where it lies outside. In memory that the run's
// device reads.
struct RowIds {
  const std::int64_t* data = nullptr;
  std::int64_t count = 0;
  std::int64_t first = 0;

  // The row of `rows`, -1 for none, and beyond the last id.
  TESSERA_HOST_DEVICE std::int64_t row(std::int64_t at, std::int64_t rows) const {
    const std::int64_t row = at < count ? data[at] - first : -1;
    return row >= 0 && row < rows ? row : -1;
  }
};

// What each of the ranks has, `size` elements: this rank's own, and the others' one after another.
template <typename T>
struct ByRank {
  T* own = nullptr;
  T* others = nullptr;
  std::int64_t size = 0;
  int rank = 0;  // this one

  TESSERA_HOST_DEVICE T* of(int other) const {
    return other == rank ? own : others + (other < rank ? other : other - 1) * size;
  }
};

// Equal rows of a microbatch get one slot, that of the first.
struct RowSlots {
  RowIds ids;
  std::int64_t rows = 0, most = 0;  // of the compute part; of a message
  std::int32_t* map = nullptr;      // [rows], overwritten
  std::int64_t* firsts = nullptr;   // [most]: the row at its first place, -1 everywhere else
  std::int64_t* slots = nullptr;    // [ids.count]: the first place of the row, -1 for none
};

// A reading of rows. Messages are `most` rows; a row lies at the place of its index.
struct RowReading {
  std::int64_t most = 0, row_bytes = 0;
  int ranks = 1, rank = 0;               // of those that exchange rows; this one
  const std::int64_t* begins = nullptr;  // [ranks + 1]: the rows that each stores
  const std::int64_t* asked = nullptr;   // [ranks, most]: rows, -1 for none
  const std::byte* stored = nullptr;     // this rank's rows
  std::byte* messages = nullptr;         // [ranks - 1, most, row_bytes]: to the others, or from them
  std::int64_t count = 0;                // rows that this rank asked for
  std::byte* out = nullptr;              // [count, row_bytes]

  TESSERA_HOST_DEVICE int owner_of(std::int64_t row) const {
    int owner = 0;
    while (begins[owner + 1] <= row) ++owner;
    return owner;
  }
  TESSERA_HOST_DEVICE bool is_own(std::int64_t row) const { return row >= begins[rank] && row < begins[rank + 1]; }
};

// What is known of a row of main_grad. Neither: it holds nothing but +0.
inline constexpr std::uint8_t kRowWritten = 1, kRowHasNegativeZero = 2;

// The sum of the ranks' gradients of rows that this rank stores.
struct RowSum {
  quant::DType wire = quant::DType::fp32, accumulator = quant::DType::fp32;
  std::int64_t columns = 0, most = 0;  // most: rows of a message
  int ranks = 1;
  int node = 1;                        // consecutive ranks that are added first (reduction_tree.h)
  std::int64_t begin = 0, count = 0;   // the rows stored here
  ByRank<const std::int64_t> indices;  // [most] each: every row once at most, -1 for none
  ByRank<const std::byte> rows;        // [most, columns] each, of the wire type
  std::int32_t* map = nullptr;         // [count, ranks], overwritten
  std::uint8_t* states = nullptr;      // [count]
  void* sum = nullptr;                 // [count, columns] of the accumulator type
  bool accumulate = false;             // else rows that nobody has become +0
  bool clear = false;                  // those too whose state says that they are
};

// Pointers are memory of the device. Errors: types that are not floating, CUDA's.
class RowKernels {
 public:
  virtual ~RowKernels() = default;
  // list[i]: row i of `ids`, -1 for none and up to `most`.
  virtual void list(const RowIds& ids, std::int64_t rows, std::int64_t* list, std::int64_t most) const = 0;
  virtual void find_slots(const RowSlots& slots) const = 0;
  // Rows stored here into the messages to those that asked; the rest of the messages is left as it is.
  virtual void give(const RowReading& reading) const = 0;
  // Rows from the messages and from here to where they were asked for, zeros for none.
  virtual void take(const RowReading& reading) const = 0;
  // Each row in the order of the tree, a rank without it having +0. Only rows that some rank has are touched, those
  // with a -0 (-0 + 0 is 0), and those that become +0.
  virtual void sum(const RowSum& sum) const = 0;
};

// On a CUDA device: enqueues on `stream`, which outlives it. Errors: built without CUDA.
std::unique_ptr<RowKernels> make_row_kernels(base::Device device, base::CudaStream stream);

namespace detail {
std::unique_ptr<RowKernels> make_cuda_row_kernels(base::Device device, base::CudaStream stream);
}  // namespace detail

}  // namespace tessera::shard
