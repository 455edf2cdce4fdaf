// Sums of what row_square_sums gave, on a GPU, in an order that the logical rows alone give.
#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"

namespace tessera::ops::cuda {

inline constexpr std::int64_t kRowsTogether = 1024;

// Row r is the sum, in order, of values[positions[begins[r]]] ... values[positions[begins[r + 1] - 1]]. sums[i] is that
// of rows i * kRowsTogether and on, kRowsTogether of them, by a tree that depends on their numbers alone. All pointers
// are the device's; begins has rows + 1 entries, sums ceil(rows / kRowsTogether). Enqueues.
void sum_rows(const double* values, const std::int64_t* begins, const std::int64_t* positions, std::int64_t rows,
              double* sums, base::CudaStream stream);

}  // namespace tessera::ops::cuda
