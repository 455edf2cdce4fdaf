// The memory that a program gives to layers: weights to read, and buffers for gradients.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "tessera/quant/formats/quantize.h"
#include "tessera/shard/parameter.h"

namespace tessera::runtime {

// The part of a weight that this rank reads, valid from consume to the matching release. Pointers are null in a dry
// run.
struct WeightView {
  struct Plane {
    const void* data = nullptr;  // dense, local_compute.size elements of the plane
    quant::DType type = quant::DType::fp32;
  };
  // The planes of the parameter. If the weight was unpacked, the first plane contains the unpacked weight.
  std::array<Plane, shard::kMaxPlanes> planes;
  // The quantized matrix and its encoding. Set if the weight's products read the encoding directly.
  std::optional<quant::Quantized> encoded;
  quant::Encoding encoding;
  // The columnwise copy of the quantized matrix (quant/formats/columnwise.h). Set in backward passes if `encoded` is
  // set and products of the encoding are native. Its addresses are null if this rank has no elements of the weight.
  std::optional<quant::Quantized> columnwise;
  // True: the weight was unpacked to decoded values of `encoding`. `whole` then points to the numbers of the logical
  // matrices that alpha of a product depends on (quant::product_alpha), one for each matrix of the compute part; null
  // if alpha does not depend on the weight.
  bool is_decoded = false;
  const float* whole = nullptr;
  const Plane& weight() const { return planes.front(); }
};

// The buffer to which a product writes the weight gradient, dense in the compute layout. If `accumulate` is true, an
// earlier use of the weight in this microbatch has written the buffer, and the product adds to it.
struct GradientBuffer {
  void* data = nullptr;
  quant::DType dtype = quant::DType::fp32;
  bool accumulate = false;
};

// The buffer for the gradient of rows that a table lookup has read: [ids, columns], dense. The gradient of the id at
// index t is added to row slots[t] of the buffer. If slots[t] is -1, this gradient is dropped. Equal ids have the slot
// of the first of them. `slots` is device memory, valid until produce.
struct RowGradient {
  void* data = nullptr;
  quant::DType dtype = quant::DType::fp32;
  const std::int64_t* slots = nullptr;
};

}  // namespace tessera::runtime
