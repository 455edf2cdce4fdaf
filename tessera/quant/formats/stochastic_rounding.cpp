#include "tessera/quant/formats/stochastic_rounding.h"

#include "tessera/base/text/name_hash.h"

namespace tessera::quant {

base::PhiloxKey rounding_key(const RoundingSite& site) {
  constexpr std::uint64_t kName = 0x6E76667034737231;  // "nvfp4sr1": other random numbers than those of other uses
  const std::uint64_t seed = site.seed ^ kName, name = base::name_hash(site.parameter);
  const base::PhiloxCounter words =
      base::philox({site.matrix, site.part, static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32)},
                   {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {words[0], words[1]};
}

}  // namespace tessera::quant
