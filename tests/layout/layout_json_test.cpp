#include "tessera/layout/layout_json.h"

#include <gtest/gtest.h>

namespace tessera::layout {
namespace {

using nlohmann::json;

TEST(Json, LayoutListsThePiecesOfEachRank) {
  Layout layout = cut_rows({3, 2}, {{"all", 3}}, 2);
  const json expected = json::parse(R"({"shape": [3, 2], "state": "replicated", "ranks": [
    {"size": 2, "pieces": [{"rows": [0, 1], "cols": [0, 2], "offset": 0, "stride": 2}]},
    {"size": 4, "pieces": [{"rows": [1, 3], "cols": [0, 2], "offset": 0, "stride": 2}]}]})");
  EXPECT_EQ(json(layout), expected);
  layout = {.shape = {1, 1}, .ranks = {{}}, .state = State::partial};
  EXPECT_EQ(json(layout),
            json::parse(R"({"shape": [1, 1], "state": "partial", "ranks": [{"size": 0, "pieces": []}]})"));
}

TEST(Json, PlanAndCollective) {
  const Layout from = cut_rows({2, 3}, {{"all", 2}}, 2), to = replicated({2, 3}, 2);
  const TransferPlan plan = redistribute(from, to);
  const json written = plan;
  EXPECT_EQ(written["ranks"], 2);
  EXPECT_EQ(written["adds"], false);
  ASSERT_EQ(written["transfers"].size(), 4u);
  EXPECT_EQ(written["transfers"][3],
            json::parse(R"({"source": 1, "target": 1, "rows": [1, 2], "cols": [0, 3], "source_offset": 0,
                            "source_stride": 3, "target_offset": 3, "target_stride": 3})"));
  EXPECT_EQ(json(recognise(plan, from, to)),
            json::parse(R"({"kind": "all_gather", "counts": [3, 3], "uniform": true})"));
}

}  // namespace
}  // namespace tessera::layout
