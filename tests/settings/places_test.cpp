#include "tessera/settings/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/error.h"
#include "tests/base/files.h"

namespace tessera::settings {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

MeshSettings mesh(std::int64_t tp, std::int64_t gtp, std::int64_t dp, std::string dead, std::string idle = "",
                  std::string spares = "") {
  return {
      .tp = tp,
      .gtp = gtp,
      .dp = dp,
      .unused = {
          .dead = parse_slots(dead, "--dead"), .idle = parse_slots(idle, "--idle"), .tp_spares = std::move(spares)}};
}

TEST(PlaceMaps, AreParsedAndPrinted) {
  EXPECT_EQ(parse_slots("", "--dead"), PlaceMap());
  const PlaceMap slots = parse_slots("dp0.gtp1:3,0;dp2:1", "--dead");
  EXPECT_EQ(slots, (PlaceMap{{{0, 1}, {0, 3}}, {{2, 0}, {1}}}));
  EXPECT_EQ(to_text(slots), "dp0.gtp1:0,3;dp2.gtp0:1");
  EXPECT_EQ(parse_slots(to_text(slots), "--dead"), slots);
  EXPECT_EQ(parse_slots("gtp1.dp0.pp0.cp0:3", "--dead"), (PlaceMap{{{0, 1}, {3}}}));
}

TEST(PlaceMaps, OfAnotherFormAreRefused) {
  for (const auto& [text, words] : std::initializer_list<std::pair<std::string, std::string>>{
           {"dp0", "--dead: got 'dp0', expected"},
           {"dp0:", "got the tp slot '' in 'dp0:'"},
           {"dp0:1,", "got the tp slot ''"},
           {"dp0:x", "got the tp slot 'x'"},
           {"dp0:-1", "got the tp slot '-1'"},
           {"dp0:99999999999", "got the tp slot '99999999999'"},
           {"dp:1", "got the tp group 'dp'"},
           {"dp0.dp1:1", "got the tp group 'dp0.dp1'"},
           {"tp0:1", "got the tp group 'tp0'"},
           {"gtp0:1", "the tp group 'gtp0' has no dp coordinate"},
           {"dp0.pp1:1", "got pp1 in 'dp0.pp1', expected 0: pipeline"},
           {"dp0.cp2:1", "got cp2 in 'dp0.cp2', expected 0: context"},
           {"dp0:1;;dp1:0", "got ''"},
           {"dp0:1,1", "place dp0.gtp0:1 is named twice"},
           {"dp0:1;dp0.gtp0:1", "place dp0.gtp0:1 is named twice"}})
    EXPECT_THAT([&] { parse_slots(text, "--dead"); }, ThrowsMessage<InputError>(HasSubstr(words))) << text;
}

TEST(PlaceMaps, AreReadFromFiles) {
  const base::TempFolder folder;
  const auto read = [&](const std::string& content) {
    std::ofstream(folder / "map.json") << content;
    return read_slots(folder / "map.json", "--dead");
  };
  EXPECT_EQ(read(R"({"dp0.gtp1": [3, 0], "dp2": [1]})"), (PlaceMap{{{0, 1}, {0, 3}}, {{2, 0}, {1}}}));
  EXPECT_EQ(read("{}"), PlaceMap());
  for (const auto& [content, words] : std::initializer_list<std::pair<std::string, std::string>>{
           {"[1]", "expected an object"},
           {R"({"dp0": 1})", "'dp0' is 1, expected a list of tp slots"},
           {R"({"dp0": []})", "'dp0' is [], expected a list of tp slots"},
           {R"({"dp0": ["a"]})", R"('dp0' has the tp slot "a")"},
           {R"({"dp0": [-1]})", "'dp0' has the tp slot -1"},
           {R"({"dp0": [0.5]})", "'dp0' has the tp slot 0.5"},
           {R"({"dp0": [1], "gtp0.dp0": [1]})", "place dp0.gtp0:1 is named twice"},
           {"{", "--dead: "}})
    EXPECT_THAT([&] { read(content); }, ThrowsMessage<InputError>(HasSubstr(words))) << content;
  EXPECT_THAT([&] { read_slots(folder / "none.json", "--dead"); },
              ThrowsMessage<InputError>(AllOf(StartsWith("--dead: "), HasSubstr("none.json"))));
}

TEST(UniformSpares, AreTheGreatestCountAndTheHighestLiveSlots) {
  EXPECT_EQ(uniform_spares({{{0, 0}, {2, 5}}, {{1, 0}, {1}}}, 8),
            (Spares{.count = 2, .inactive = {{{0, 0}, {2, 5}}, {{1, 0}, {1, 7}}}}));
  EXPECT_EQ(uniform_spares({{{0, 0}, {7}}, {{0, 1}, {6, 7}}, {{3, 0}, {0}}}, 8),
            (Spares{.count = 2, .inactive = {{{0, 0}, {6, 7}}, {{0, 1}, {6, 7}}, {{3, 0}, {0, 7}}}}));
  EXPECT_EQ(uniform_spares({}, 8), Spares());
}

TEST(InactiveSlots, AreDeadIdleAndSpareOnes) {
  EXPECT_EQ(inactive_slots(mesh(4, 1, 2, "dp0:1")), (PlaceMap{{{0, 0}, {1}}}));
  EXPECT_EQ(inactive_slots(mesh(4, 1, 2, "dp0:1", "dp0:3;dp1:0")), (PlaceMap{{{0, 0}, {1, 3}}, {{1, 0}, {0}}}));
  EXPECT_EQ(inactive_slots(mesh(4, 1, 2, "dp0:1", "", "2")), (PlaceMap{{{0, 0}, {1, 3}}}));
  EXPECT_EQ(inactive_slots(mesh(4, 2, 2, "dp0:1;dp1.gtp1:2,3", "", "auto")),
            (PlaceMap{{{0, 0}, {1, 3}}, {{1, 1}, {2, 3}}}));
  EXPECT_EQ(inactive_slots(mesh(2, 1, 2, "", "dp1:0,1")), (PlaceMap{{{1, 0}, {0, 1}}}));
}

TEST(InactiveSlots, ThatDoNotFitAreRefused) {
  for (const auto& [refused, words] : std::initializer_list<std::pair<MeshSettings, std::string>>{
           {mesh(2, 1, 2, "dp2:0"), "--dead: place dp2.gtp0:0 is in replica 2, expected one below --dp 2"},
           {mesh(2, 1, 2, "dp0.gtp1:0"), "--dead: place dp0.gtp1:0 is of gtp rank 1, expected one below --gtp 1"},
           {mesh(2, 1, 2, "dp0:0,2"), "--dead: place dp0.gtp0:2 is tp slot 2, expected one below --tp 2"},
           {mesh(2, 1, 2, "", "dp0:2"), "--idle: place dp0.gtp0:2 is tp slot 2"},
           {mesh(2, 1, 2, "dp0:0", "dp0:0"), "--idle: place dp0.gtp0:0 is also named by --dead"},
           {mesh(2, 1, 1, "dp0:0,1"), "--dead: no place of tp 2 x gtp 1 x dp 1 is left"},
           {mesh(2, 1, 1, "dp0:0", "dp0:1"), "--dead and --idle: no place"},
           {mesh(2, 1, 2, "dp0:0;dp1:0", "", "2"), "--dead and --tp-spares: no place of tp 2 x gtp 1 x dp 2"},
           {mesh(1, 1, 2, "dp0:0", "", "auto"), ""},
           {mesh(2, 1, 2, "", "", "1"), "--tp-spares: got 1 without --dead"},
           {mesh(2, 1, 2, "dp0:0", "", "3"), "--tp-spares: got 3, expected auto or 1 to --tp 2"},
           {mesh(2, 1, 2, "dp0:0", "", "0"), "--tp-spares: got 0"},
           {mesh(2, 1, 2, "dp0:0", "", "x"), "--tp-spares: got x"},
           {mesh(4, 1, 2, "dp0:0,1", "", "1"),
            "--tp-spares: got 1, expected at least 2: --dead names 2 slots of dp0.gtp0"}}) {
    if (words.empty()) {
      EXPECT_EQ(count(inactive_slots(refused)), 1);
      continue;
    }
    EXPECT_THAT([&] { inactive_slots(refused); }, ThrowsMessage<InputError>(HasSubstr(words)));
  }
}

TEST(ActiveSlots, AreTheOthers) {
  const PlaceMap inactive{{{0, 1}, {0, 3}}};
  EXPECT_THAT(active_slots(inactive, {0, 1}, 4), ElementsAre(1, 2));
  EXPECT_THAT(active_slots(inactive, {0, 0}, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(active_slots({{{0, 0}, {0, 1}}}, {0, 0}, 2), IsEmpty());
}

// With a process for each place, those of unused places end, and the others are numbered in order.
TEST(StartedRanks, LeaveOutUnusedPlaces) {
  const MeshSettings places = mesh(2, 2, 0, "dp0:0,1", "dp1.gtp1:1");
  const auto started = [&](int rank, int processes) { return started_rank(places, rank, processes); };
  EXPECT_EQ(started(0, 8).text, "tessera: process 0 ends without work: place dp0.gtp0:0 is dead");
  EXPECT_EQ(started(7, 8).text, "tessera: process 7 ends without work: place dp1.gtp1:1 is not used");
  for (const auto& [process, rank] : std::initializer_list<std::pair<int, int>>{{2, 0}, {3, 1}, {4, 2}, {6, 4}}) {
    EXPECT_TRUE(started(process, 8).takes_part());
    EXPECT_EQ(started(process, 8).rank, rank);
    EXPECT_EQ(started(process, 8).size, 5);
  }
  EXPECT_TRUE(started(0, 5).takes_part()) << "a process for each active place";
  EXPECT_EQ(started(3, 5).rank, 3);
  EXPECT_EQ(started(3, 5).size, 5);
  EXPECT_EQ(replicas_of_processes(places, 8), 2);
  EXPECT_EQ(replicas_of_processes(places, 5), 0);
  EXPECT_EQ(replicas_of_processes(mesh(1, 1, 0, "dp1:0"), 3), 3);
  EXPECT_EQ(replicas_of_processes(mesh(2, 1, 0, "dp2:0,1"), 4), 0);  // 4 active places of 3 replicas
}

}  // namespace
}  // namespace tessera::settings
