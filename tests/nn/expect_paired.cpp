#include "tests/nn/expect_paired.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <utility>

namespace tessera::nn {

void expect_paired(const schedule::Trace& trace, const std::vector<std::string>& names) {
  std::map<std::pair<schedule::ParameterId, schedule::Pass>, int> consumed;
  std::vector<schedule::Event> kept;
  for (const schedule::Event& event : trace) {
    SCOPED_TRACE(to_string(event, names));
    int& uses = consumed[{event.parameter, event.pass}];
    if (event.kind == schedule::EventKind::consume) ++uses;
    if (event.kind == schedule::EventKind::release) {
      EXPECT_GT(uses--, 0);
    }
    if (event.kind == schedule::EventKind::stash) kept.push_back(event);
    if (event.kind != schedule::EventKind::fetch) continue;
    ASSERT_FALSE(kept.empty());
    EXPECT_EQ(event.bytes, kept.back().bytes);
    EXPECT_EQ(event.op, kept.back().op);
    kept.pop_back();
  }
  EXPECT_TRUE(kept.empty());
  for (const auto& [use, count] : consumed) EXPECT_EQ(count, 0) << names[static_cast<std::size_t>(use.first)];
}

void expect_distinct(const runtime::Stashes& stashes) {
  std::map<std::pair<int, const std::byte*>, std::int64_t> items;  // bytes, by microbatch and address
  for (const runtime::Stash& stash : stashes.all()) {
    EXPECT_TRUE(stash.is_fetched);
    if (stash.pass.pass != schedule::Pass::forward) continue;
    for (const runtime::StashItem& item : stash.items) {
      if (item.data == nullptr || item.bytes == 0) continue;
      EXPECT_TRUE(
          items.emplace(std::pair(stash.pass.microbatch, static_cast<const std::byte*>(item.data)), item.bytes).second);
    }
  }
  for (auto next = items.begin(); next != items.end();) {
    const auto item = next++;
    if (next == items.end() || next->first.first != item->first.first) continue;
    EXPECT_LE(item->first.second + item->second, next->first.second);
  }
}

}  // namespace tessera::nn
