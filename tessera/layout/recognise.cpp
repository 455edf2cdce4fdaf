#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/layout/redistribute.h"

namespace tessera::layout {
namespace {

// The elements that one rank sends to another, if they are contiguous in both buffers.
struct Run {
  int source = 0, target = 0;
  std::int64_t source_begin = 0, target_begin = 0, count = 0;
};

// Collects the transfers of one pair of ranks. The elements form one contiguous run in both buffers if all of them move
// by the same distance and the range from the first to the last element has no gaps. Elements are distinct, so the
// check compares their number with the length of the range.
class RunBuilder {
 public:
  void add(const Transfer& transfer) {
    const Box& box = transfer.box;
    const std::int64_t shift = transfer.target_offset - transfer.source_offset;
    const std::int64_t end = transfer.source_offset + (box.rows - 1) * transfer.source_stride + box.cols;
    const bool same_shape = box.rows == 1 || transfer.source_stride == transfer.target_stride;
    if (count_ == 0) {
      begin_ = transfer.source_offset, end_ = end, shift_ = shift;
    }
    one_shift_ = one_shift_ && same_shape && shift == shift_;
    begin_ = std::min(begin_, transfer.source_offset);
    end_ = std::max(end_, end);
    count_ += box.elements();
  }
  bool empty() const { return count_ == 0; }
  bool in_place() const { return one_shift_ && shift_ == 0; }
  std::optional<Run> run(int source, int target) const {
    if (!one_shift_ || end_ - begin_ != count_) return std::nullopt;
    return Run{
        .source = source, .target = target, .source_begin = begin_, .target_begin = begin_ + shift_, .count = count_};
  }

 private:
  std::int64_t begin_ = 0, end_ = 0, shift_ = 0, count_ = 0;
  bool one_shift_ = true;
};

// The input of the recognition: one run for each pair of ranks, in the order of (target, source). `contiguous` is false
// if the elements of some pair do not form one run.
struct Runs {
  bool inside_ranks = true;  // whether every transfer stays within a rank
  bool in_place = true;      // whether every transfer keeps the rank and the offset
  bool contiguous = true;
  std::vector<Run> runs;
};

Runs collect_runs(const TransferPlan& plan) {
  Runs result;
  result.runs.reserve(plan.transfers.size());
  std::vector<RunBuilder> builders(static_cast<std::size_t>(plan.ranks));
  std::vector<int> sources;  // sources of the current target
  for (std::size_t i = 0; i < plan.transfers.size();) {
    const int target = plan.transfers[i].target;
    sources.clear();
    for (; i < plan.transfers.size() && plan.transfers[i].target == target; ++i) {
      RunBuilder& builder = builders[plan.transfers[i].source];
      if (builder.empty()) sources.push_back(plan.transfers[i].source);
      builder.add(plan.transfers[i]);
    }
    if (!std::is_sorted(sources.begin(), sources.end())) std::sort(sources.begin(), sources.end());
    for (const int source : sources) {
      result.inside_ranks = result.inside_ranks && source == target;
      result.in_place = result.in_place && source == target && builders[source].in_place();
      const auto run = builders[source].run(source, target);
      if (run) result.runs.push_back(*run);
      result.contiguous = result.contiguous && run.has_value();
      builders[source] = RunBuilder();
    }
  }
  return result;
}

using Counts = std::vector<std::int64_t>;

// Checks that every target receives every rank's shard from its start, at the offset that follows from rank order.
std::optional<Counts> as_all_gather(const Runs& runs, int ranks) {
  Counts counts(static_cast<std::size_t>(ranks));
  std::size_t shards = 0;  // number of non-empty shards
  for (; shards < runs.runs.size() && runs.runs[shards].target == 0; ++shards) {
    counts[runs.runs[shards].source] = runs.runs[shards].count;
  }
  if (runs.runs.size() != shards * static_cast<std::size_t>(ranks)) return std::nullopt;
  std::int64_t place = 0;
  for (std::size_t i = 0; i < runs.runs.size(); ++i) {
    const Run& run = runs.runs[i];
    if (i % shards == 0) place = 0;
    const bool fits = run.target == static_cast<int>(i / shards) && run.source == runs.runs[i % shards].source &&
                      run.count == counts[run.source] && run.source_begin == 0 && run.target_begin == place;
    if (!fits) return std::nullopt;
    place += run.count;
  }
  return counts;
}

// Checks that every target with elements receives a run from every rank. All runs to a target start at the same source
// offset, and the offsets of the targets follow rank order.
std::optional<Counts> as_reduce_scatter(const Runs& runs, int ranks) {
  Counts counts(static_cast<std::size_t>(ranks));
  std::int64_t place = 0;
  const std::size_t all = static_cast<std::size_t>(ranks);
  if (runs.runs.size() % all != 0) return std::nullopt;
  for (std::size_t i = 0; i < runs.runs.size(); ++i) {
    const Run& run = runs.runs[i];
    const Run& first = runs.runs[i / all * all];
    const bool fits = run.target == first.target && run.source == static_cast<int>(i % all) &&
                      run.count == first.count && run.source_begin == place && run.target_begin == 0;
    if (!fits) return std::nullopt;
    counts[run.target] = run.count;
    if (i % all == all - 1) place += run.count;
  }
  return counts;
}

// Checks that every target receives the same whole buffer from every rank.
std::optional<Counts> as_all_reduce(const Runs& runs, int ranks) {
  const std::size_t all = static_cast<std::size_t>(ranks);
  if (runs.runs.size() != all * all) return std::nullopt;
  const std::int64_t count = runs.runs.front().count;
  const bool fits = std::all_of(runs.runs.begin(), runs.runs.end(), [&](const Run& run) {
    return run.source_begin == 0 && run.target_begin == 0 && run.count == count;
  });
  if (!fits) return std::nullopt;
  return Counts{count};
}

// Checks the order of runs, without gaps: by target at each source, and by source at each target.
bool is_all_to_all(const Runs& runs, int ranks) {
  Counts sent(static_cast<std::size_t>(ranks)), received(static_cast<std::size_t>(ranks));
  for (const Run& run : runs.runs) {
    if (run.source_begin != sent[run.source] || run.target_begin != received[run.target]) return false;
    sent[run.source] += run.count;
    received[run.target] += run.count;
  }
  return true;
}

// Returns whether each target element has one source, so that a sum is a copy.
bool has_single_sources(const TransferPlan& plan, const Layout& to) {
  if (!plan.adds) return true;
  Counts received(to.ranks.size());
  for (const Transfer& transfer : plan.transfers) received[transfer.target] += transfer.box.elements();
  for (int rank = 0; rank < to.size(); ++rank) {
    if (received[rank] != to.ranks[rank].covered()) return false;
  }
  return true;
}

Collective with_counts(CollectiveKind kind, Counts counts) {
  const bool uniform = std::all_of(counts.begin(), counts.end(), [&](std::int64_t c) { return c == counts.front(); });
  return {.kind = kind, .counts = std::move(counts), .uniform = uniform};
}

}  // namespace

std::string_view name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::none:
      return "none";
    case CollectiveKind::local:
      return "local";
    case CollectiveKind::all_gather:
      return "all_gather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_reduce:
      return "all_reduce";
    case CollectiveKind::all_to_all:
      return "all_to_all";
    case CollectiveKind::transfers:
      return "transfers";
  }
  return "unknown";
}

Collective recognise(const TransferPlan& plan, const Layout& from, const Layout& to) {
  TESSERA_CHECK(plan.ranks == from.size() && plan.ranks == to.size(),
                "recognise: the plan has {} ranks, but the layouts have {} and {}", plan.ranks, from.size(), to.size());
  const Runs runs = collect_runs(plan);
  if (runs.in_place) return {.kind = CollectiveKind::none};
  if (runs.inside_ranks) return {.kind = CollectiveKind::local};
  if (!runs.contiguous) return {.kind = CollectiveKind::transfers};
  if (has_single_sources(plan, to)) {
    if (auto counts = as_all_gather(runs, plan.ranks))
      return with_counts(CollectiveKind::all_gather, std::move(*counts));
    if (is_all_to_all(runs, plan.ranks)) {
      const std::size_t pairs = static_cast<std::size_t>(plan.ranks) * static_cast<std::size_t>(plan.ranks);
      const bool equal = std::all_of(runs.runs.begin(), runs.runs.end(),
                                     [&](const Run& run) { return run.count == runs.runs.front().count; });
      return {.kind = CollectiveKind::all_to_all, .uniform = runs.runs.size() == pairs && equal};
    }
    return {.kind = CollectiveKind::transfers};
  }
  if (auto counts = as_reduce_scatter(runs, plan.ranks)) {
    return with_counts(CollectiveKind::reduce_scatter, std::move(*counts));
  }
  if (auto counts = as_all_reduce(runs, plan.ranks)) return with_counts(CollectiveKind::all_reduce, std::move(*counts));
  return {.kind = CollectiveKind::transfers};
}

}  // namespace tessera::layout
