// The random bits of initial values, for every device. Internal to ops.
#pragma once
#include "tessera/base/host_device.h"
#include "tessera/base/philox.h"
#include "tessera/base/text/name_hash.h"
#include "tessera/ops/initialise/initialise.h"
#include "tessera/ops/initialise/normal.h"

namespace tessera::ops {

// Throws Error unless the block is inside the logical matrix.
void check_fill(const NormalFill& fill);

// The random bits of one parameter. The seed is Philox's key. The index of an element and the hash of the parameter's
// name are Philox's counter.
class NormalStream {
 public:
  explicit NormalStream(const NormalFill& fill) : seed_(fill.seed), name_hash_(base::name_hash(fill.name)) {}
  TESSERA_HOST_DEVICE std::uint64_t bits(std::uint64_t index) const {
    const base::PhiloxCounter random =
        base::philox({low(index), high(index), low(name_hash_), high(name_hash_)}, {low(seed_), high(seed_)});
    return std::uint64_t{random[1]} << 32 | random[0];
  }

 private:
  TESSERA_HOST_DEVICE static std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
  TESSERA_HOST_DEVICE static std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

  std::uint64_t seed_, name_hash_;
};

}  // namespace tessera::ops
