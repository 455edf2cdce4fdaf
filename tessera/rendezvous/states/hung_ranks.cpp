#include "tessera/rendezvous/states/hung_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

#include "tessera/rendezvous/rank_text.h"

namespace tessera::rendezvous {
namespace {

bool waits(const RankReport& report) {
  return report.answers && report.state && (report.state->waits || report.state->timed_out);
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", rank_list(ranks));
}

// Returns the ranks for which `rank` waits.
std::vector<int> targets_of(const std::vector<RankReport>& reports, int rank) {
  const RankReport& own = reports[static_cast<std::size_t>(rank)];
  if (!waits(own)) return {};
  std::vector<int> targets;
  for (int other = 0; other < static_cast<int>(reports.size()); ++other) {
    const bool is_named = std::ranges::find(own.state->waits_for, other) != own.state->waits_for.end();
    const bool is_target = own.state->waits_for.empty() ? !waits(reports[static_cast<std::size_t>(other)]) : is_named;
    if (is_target && other != rank) targets.push_back(other);
  }
  return targets;
}

std::string one_rank_text(int rank, const RankReport& report) {
  if (!report.state) return fmt::format("rank {} does not answer", rank);
  return fmt::format("rank {} (host {}, process {}) {}: {}", rank, report.state->host, report.state->process,
                     report.answers ? "runs" : "does not answer; its last report", state_text(*report.state));
}

}  // namespace

std::vector<int> hung_ranks(const std::vector<RankReport>& reports) {
  const bool any =
      std::ranges::any_of(reports, [](const RankReport& report) { return waits(report) && report.state->timed_out; });
  std::vector<bool> seen(reports.size());
  std::vector<int> next;
  const auto visit = [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (at >= seen.size() || seen[at]) return;
    seen[at] = true;
    next.push_back(rank);
  };
  for (int rank = 0; rank < static_cast<int>(reports.size()); ++rank) {
    const RankReport& report = reports[static_cast<std::size_t>(rank)];
    if (waits(report) && (!any || report.state->timed_out)) visit(rank);
  }
  std::vector<int> silent, busy;
  while (!next.empty()) {
    const int rank = next.back();
    next.pop_back();
    const RankReport& report = reports[static_cast<std::size_t>(rank)];
    if (!waits(report)) (report.answers ? busy : silent).push_back(rank);
    for (const int target : targets_of(reports, rank)) visit(target);
  }
  std::vector<int>& hung = silent.empty() ? busy : silent;
  std::ranges::sort(hung);
  return hung;
}

std::string hung_text(const std::vector<RankReport>& reports, const std::vector<int>& hung, std::int64_t limit_ms) {
  const std::string limit = fmt::format("the time limit of {} ms (--timeout-s)", limit_ms);
  if (hung.empty())
    return fmt::format("tessera: the ranks wait for each other until {}; no rank hangs alone:\n{}", limit,
                       table_text(reports));
  std::vector<int> waiting;
  for (int rank = 0; rank < static_cast<int>(reports.size()); ++rank)
    if (const auto targets = targets_of(reports, rank);
        std::ranges::any_of(targets, [&](int target) { return std::ranges::binary_search(hung, target); }))
      waiting.push_back(rank);
  std::vector<std::string> texts;
  for (const int rank : hung) texts.push_back(one_rank_text(rank, reports[static_cast<std::size_t>(rank)]));
  return fmt::format("tessera: {} {}: {} waited until {}; {}\n", ranks_text(hung), hung.size() == 1 ? "hangs" : "hang",
                     waiting.empty() ? "other ranks" : ranks_text(waiting), limit, fmt::join(texts, "; "));
}

std::string table_text(const std::vector<RankReport>& reports) {
  std::string text;
  for (int rank = 0; rank < static_cast<int>(reports.size()); ++rank)
    text += fmt::format("tessera: {}\n", one_rank_text(rank, reports[static_cast<std::size_t>(rank)]));
  return text;
}

}  // namespace tessera::rendezvous
