#include "tessera/schedule/schedule.h"

#include <xxhash.h>

namespace tessera::schedule {
namespace {

std::uint64_t mix(std::uint64_t hash, std::int64_t number) {
  return XXH64(&number, sizeof number, hash);
}

std::uint64_t mix(std::uint64_t hash, const Unit& unit) {
  for (const ParameterId member : unit) hash = mix(hash, member);
  return mix(hash, kNoParameter);
}

}  // namespace

std::uint64_t gather_hash(const Schedule& schedule) {
  std::uint64_t hash = schedule.trace_hash;
  for (const Residency& residency : schedule.residencies)
    hash = mix(mix(hash, schedule.gather_units[static_cast<std::size_t>(residency.unit)]), residency.wait);
  return hash;
}

std::uint64_t reduce_hash(const Schedule& schedule) {
  std::uint64_t hash = schedule.trace_hash;
  for (const Reduction& reduction : schedule.reductions) {
    hash = mix(hash, schedule.reduce_units[static_cast<std::size_t>(reduction.unit)]);
    hash = mix(mix(hash, reduction.microbatch), reduction.replicas ? 1 : 0);
  }
  return hash;
}

}  // namespace tessera::schedule
