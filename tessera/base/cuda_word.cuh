// Types for memory accesses of a GPU thread, by their width in bytes.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace tessera::base {

namespace detail {
template <int kBytes>
struct CudaWord;
template <>
struct CudaWord<1> {
  using type = std::uint8_t;
};
template <>
struct CudaWord<2> {
  using type = std::uint16_t;
};
template <>
struct CudaWord<4> {
  using type = std::uint32_t;
};
template <>
struct CudaWord<8> {
  using type = uint2;
};
template <>
struct CudaWord<16> {
  using type = uint4;
};
}  // namespace detail

// The type that a thread loads or stores in one access of kBytes bytes: 1, 2, 4, 8 or 16. The address of such a value
// must be a multiple of kBytes.
template <int kBytes>
using CudaWord = typename detail::CudaWord<kBytes>::type;

}  // namespace tessera::base
