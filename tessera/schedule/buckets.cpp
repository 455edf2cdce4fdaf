#include "tessera/schedule/buckets.h"

#include <algorithm>

namespace tessera::schedule {

std::vector<ParameterId> order_of_first_uses(const Trace& trace, int weights) {
  std::vector<ParameterId> order;
  std::vector<bool> seen(static_cast<std::size_t>(weights), false);
  const auto add = [&](ParameterId id) {
    if (id >= weights || seen[static_cast<std::size_t>(id)]) return;
    seen[static_cast<std::size_t>(id)] = true;
    order.push_back(id);
  };
  for (const Event& event : trace)
    if (event.kind == EventKind::consume || reads_rows(event)) add(event.parameter);
  for (ParameterId id = 0; id < weights; ++id) add(id);
  return order;
}

std::vector<std::vector<ParameterId>> optimizer_buckets(std::span<const ParameterId> order,
                                                        const std::function<std::int64_t(ParameterId)>& elements) {
  std::int64_t total = 0;
  for (const ParameterId id : order) total += elements(id);
  std::vector<std::vector<ParameterId>> buckets;
  std::int64_t before = 0,
               // The number of elements in the buckets so far, and the eighth of all elements in which the newest
               // bucket began.
      newest = -1;
  for (const ParameterId id : order) {
    const std::int64_t part = before * kOptimizerBuckets / std::max<std::int64_t>(total, 1);
    if (buckets.empty() || part > newest) buckets.emplace_back();
    newest = part;
    buckets.back().push_back(id);
    before += elements(id);
  }
  return buckets;
}

}  // namespace tessera::schedule
