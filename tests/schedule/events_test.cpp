#include "tessera/schedule/events.h"

#include <gtest/gtest.h>

#include <functional>

namespace tessera::schedule {
namespace {

TEST(EventHash, DependsOnEverythingThatTellsEventsApart) {
  const Event event{.kind = EventKind::comm, .microbatch = 1, .parameter = 2, .group = "tp", .op = "sum", .bytes = 8};
  const std::function<void(Event&)> changes[] = {[](Event& e) { e.kind = EventKind::stash; },
                                                 [](Event& e) { e.step = StepKind::evaluate; },
                                                 [](Event& e) { e.microbatch = 2; },
                                                 [](Event& e) { e.pass = Pass::backward; },
                                                 [](Event& e) { e.parameter = 3; },
                                                 [](Event& e) { e.ordinal = 1; },
                                                 [](Event& e) { e.group = "dp"; },
                                                 [](Event& e) { e.op = "max"; }};
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    Event other = event;
    changes[i](other);
    EXPECT_FALSE(is_same(event, other)) << i;
    EXPECT_NE(hash_event(7, event), hash_event(7, other)) << i;
  }
  Event uneven = event;  // ranks may hold shards of other sizes
  uneven.bytes = 9;
  EXPECT_TRUE(is_same(event, uneven));
  EXPECT_EQ(hash_event(7, event), hash_event(7, uneven));
  EXPECT_NE(hash_event(7, event), hash_event(8, event));
}

TEST(EventHash, OfATraceDependsOnTheOrder) {
  const Event first{.microbatch = 0, .parameter = 1}, second{.microbatch = 0, .parameter = 2};
  EXPECT_NE(hash_trace({first, second}), hash_trace({second, first}));
}

}  // namespace
}  // namespace tessera::schedule
