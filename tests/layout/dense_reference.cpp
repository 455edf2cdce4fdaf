#include "dense_reference.h"

#include <algorithm>
#include <optional>

namespace tessera::layout::testing {
namespace {

using Counts = std::vector<std::int64_t>;

bool is_dense(const std::map<std::int64_t, std::vector<Origin>>& elements) {
  return elements.empty() ||
         (elements.begin()->first == 0 && elements.rbegin()->first + 1 == static_cast<std::int64_t>(elements.size()));
}

// counts[s][t] is the number of elements that rank t receives from rank s.
std::vector<Counts> pair_counts(const Origins& all) {
  std::vector<Counts> counts(all.size(), Counts(all.size()));
  for (std::size_t t = 0; t < all.size(); ++t) {
    for (const auto& [at, parts] : all[t]) {
      for (const Origin& origin : parts) ++counts[origin.source][t];
    }
  }
  return counts;
}

std::optional<Counts> as_all_gather(const Origins& all) {
  Counts counts;
  for (const Counts& of_source : pair_counts(all)) counts.push_back(of_source[0]);
  for (const auto& elements : all) {
    std::int64_t at = 0;
    for (std::size_t s = 0; s < all.size(); ++s) {
      for (std::int64_t i = 0; i < counts[s]; ++i, ++at) {
        const auto found = elements.find(at);
        if (found == elements.end() || found->second != std::vector<Origin>{{static_cast<int>(s), i}})
          return std::nullopt;
      }
    }
    if (at != static_cast<std::int64_t>(elements.size())) return std::nullopt;
  }
  return counts;
}

bool is_all_to_all(const Origins& all) {
  const auto counts = pair_counts(all);
  for (std::size_t t = 0; t < all.size(); ++t) {
    if (!is_dense(all[t])) return false;
    auto element = all[t].begin();
    for (std::size_t s = 0; s < all.size(); ++s) {
      std::int64_t sent = 0;
      for (std::size_t before = 0; before < t; ++before) sent += counts[s][before];
      for (std::int64_t i = 0; i < counts[s][t]; ++i, ++element) {
        if (element->second != std::vector<Origin>{{static_cast<int>(s), sent + i}}) return false;
      }
    }
  }
  return true;
}

// Returns the origins of a sum to which each rank contributes the element at offset `at` of its buffer.
std::vector<Origin> from_all(std::size_t ranks, std::int64_t at) {
  std::vector<Origin> parts;
  for (std::size_t s = 0; s < ranks; ++s) parts.push_back({static_cast<int>(s), at});
  return parts;
}

std::optional<Counts> as_reduce_scatter(const Origins& all) {
  Counts counts;
  std::int64_t start = 0;
  for (const auto& elements : all) {
    if (!is_dense(elements)) return std::nullopt;
    for (const auto& [at, parts] : elements) {
      if (parts != from_all(all.size(), start + at)) return std::nullopt;
    }
    counts.push_back(static_cast<std::int64_t>(elements.size()));
    start += counts.back();
  }
  return counts;
}

std::optional<Counts> as_all_reduce(const Origins& all) {
  for (const auto& elements : all) {
    if (!is_dense(elements) || elements.size() != all[0].size()) return std::nullopt;
    for (const auto& [at, parts] : elements) {
      if (parts != from_all(all.size(), at)) return std::nullopt;
    }
  }
  return Counts{static_cast<std::int64_t>(all[0].size())};
}

bool same(const Counts& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::int64_t count) { return count == counts[0]; });
}

}  // namespace

std::vector<std::vector<int>> holders(const Layout& layout) {
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(layout.shape.elements()));
  for_each_element(layout, [&](int rank, std::int64_t, std::int64_t row, std::int64_t col) {
    ranks.at(static_cast<std::size_t>(row * layout.shape.cols + col)).push_back(rank);
  });
  return ranks;
}

Origins origins(const TransferPlan& plan) {
  Origins all(static_cast<std::size_t>(plan.ranks));
  for (const Transfer& t : plan.transfers) {
    for (std::int64_t r = 0; r < t.box.rows; ++r) {
      for (std::int64_t c = 0; c < t.box.cols; ++c) {
        all[t.target][t.target_offset + r * t.target_stride + c].push_back(
            {t.source, t.source_offset + r * t.source_stride + c});
      }
    }
  }
  for (auto& elements : all) {
    for (auto& [at, parts] : elements) {
      std::stable_sort(parts.begin(), parts.end(),
                       [](const Origin& a, const Origin& b) { return a.source < b.source; });
    }
  }
  return all;
}

Collective recognise_slowly(const TransferPlan& plan) {
  const Origins all = origins(plan);
  bool in_place = true, inside = true, single = true;
  for (std::size_t t = 0; t < all.size(); ++t) {
    for (const auto& [at, parts] : all[t]) {
      single = single && parts.size() == 1;
      inside = inside && parts.size() == 1 && parts[0].source == static_cast<int>(t);
      in_place = in_place && inside && parts[0].at == at;
    }
  }
  if (in_place) return {.kind = CollectiveKind::none};
  if (inside) return {.kind = CollectiveKind::local};
  if (single) {
    if (const auto counts = as_all_gather(all)) {
      return {.kind = CollectiveKind::all_gather, .counts = *counts, .uniform = same(*counts)};
    }
    if (is_all_to_all(all)) {
      bool uniform = true;
      const auto counts = pair_counts(all);
      for (const Counts& of_source : counts) uniform = uniform && same(of_source) && of_source[0] == counts[0][0];
      return {.kind = CollectiveKind::all_to_all, .uniform = uniform};
    }
    return {.kind = CollectiveKind::transfers};
  }
  if (const auto counts = as_reduce_scatter(all)) {
    return {.kind = CollectiveKind::reduce_scatter, .counts = *counts, .uniform = same(*counts)};
  }
  if (const auto counts = as_all_reduce(all)) {
    return {.kind = CollectiveKind::all_reduce, .counts = *counts, .uniform = true};
  }
  return {.kind = CollectiveKind::transfers};
}

}  // namespace tessera::layout::testing
