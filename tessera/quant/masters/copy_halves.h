// Merges 4-bit elements into bytes whose other element belongs to another slice of the weight.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"

namespace tessera::quant {

// The bits of a 4-bit element in its byte: of the element of the even column, or of the element of the odd column.
enum class Half : std::uint8_t { even = 0x0F, odd = 0xF0 };

// Copies one half of source[i] to the byte targets[i], and keeps the other half of the byte. The targets are different
// bytes. All bytes are memory of `device`; `targets` itself is host memory, which is used only during the call. On a
// GPU the call enqueues a launch on `stream` for each kTargetsOfLaunch targets. On the host the call returns when the
// work is done.
void copy_halves(Half half, const std::uint8_t* source, std::span<std::uint8_t* const> targets, base::Device device,
                 base::CudaStream stream);

// The addresses of a launch fit into 4 KiB of kernel parameters.
inline constexpr std::size_t kTargetsOfLaunch = 256;

constexpr std::uint8_t with_half(std::uint8_t target, std::uint8_t source, Half half) {
  const auto mask = static_cast<unsigned>(half);
  return static_cast<std::uint8_t>((target & ~mask) | (source & mask));
}

}  // namespace tessera::quant
