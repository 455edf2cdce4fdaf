#include "tessera/settings/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/settings/places.h"

namespace tessera::settings {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TrainConfig mesh(std::int64_t tp, std::int64_t gtp, std::int64_t dp, std::string dead, std::int64_t batch,
                 std::string reduced = "") {
  TrainConfig config;
  config.mesh = {.tp = tp, .gtp = gtp, .dp = dp};
  config.mesh.unused = {.dead = parse_slots(dead, "--dead"), .reduced_batch = std::move(reduced)};
  config.global_batch = batch;
  return config;
}

std::vector<std::int64_t> shares(const TrainConfig& config, const TpUnits& units = {.heads = 8, .ffn = 80}) {
  std::vector<std::int64_t> sequences;
  for (const data::ReplicaShare& replica : batch_shape(config, units).replicas) sequences.push_back(replica.sequences);
  return sequences;
}

TEST(Shares, AreEqualByDefault) {
  EXPECT_THAT(shares(mesh(1, 2, 3, "", 12)), ElementsAre(4, 4, 4));
  EXPECT_THAT(shares(mesh(1, 2, 3, "dp0.gtp1:0", 14)), ElementsAre(5, 5, 4));
  const auto shape = batch_shape(mesh(2, 2, 3, "dp0.gtp1:0,1;dp1.gtp0:0,1;dp1.gtp1:0,1;dp2.gtp0:1", 12), {});
  ASSERT_EQ(shape.replicas.size(), 2U) << "a replica without a rank has no share";
  EXPECT_EQ(shape.replicas[0].readers, 1);
  EXPECT_EQ(shape.replicas[1].readers, 2) << "a group reads while it has a rank";
}

TEST(Shares, OfReducedReplicasCanBeGiven) {
  EXPECT_THAT(shares(mesh(2, 1, 3, "dp1:0", 12, "2")), ElementsAre(5, 2, 5));
  EXPECT_THAT(shares(mesh(2, 1, 3, "dp1:0", 13, "2")), ElementsAre(6, 2, 5));
  EXPECT_THAT(shares(mesh(2, 1, 3, "dp1:0", 12, "0")), ElementsAre(6, 0, 6));
  EXPECT_THAT(shares(mesh(2, 1, 2, "dp0:0;dp1:1", 12, "6")), ElementsAre(6, 6));
  for (const std::string reduced : {"13", "-1", "x", "1.5"})
    EXPECT_THAT([&] { shares(mesh(2, 1, 3, "dp1:0", 12, reduced)); },
                ThrowsMessage<InputError>(HasSubstr("--reduced-batch: got " + reduced)));
  EXPECT_THAT([&] { shares(mesh(2, 1, 2, "dp0:0;dp1:1", 12, "5")); },
              ThrowsMessage<InputError>(HasSubstr(
                  "2 reduced replicas of 2, which leaves 2 of --global-batch 12: no other replica reads them (expected "
                  "--global-batch 10, or auto)")));
  EXPECT_THAT([&] { shares(mesh(2, 1, 2, "dp0:0;dp1:1", 12, "7")); },
              ThrowsMessage<InputError>(HasSubstr("which is 14 sequences, expected at most --global-batch 12")));
  // In 64 bits, 2 x (2^63 - 1) is -2, and 4 x 2^62 is 0.
  for (const std::string reduced : {"9223372036854775807", "9223372036854775808"})
    EXPECT_THAT([&] { shares(mesh(2, 1, 3, "dp0:0;dp1:0", 10, reduced)); },
                ThrowsMessage<InputError>(HasSubstr("--reduced-batch: got " + reduced)));
  EXPECT_THAT([&] { shares(mesh(2, 1, 5, "dp0:0;dp1:0;dp2:0;dp3:0", 10, "4611686018427387904")); },
              ThrowsMessage<InputError>(HasSubstr("expected at most --global-batch 10")));
}

// A reduced replica with a small share needs fewer microbatches, although it has as many readers.
TEST(Shares, OfReducedReplicasHaveTheirOwnNumberOfMicrobatches) {
  const data::BatchShape shape = batch_shape(mesh(2, 1, 4, "dp1:0;dp2:1", 12, "2"), {});
  const auto microbatches = [&](std::int64_t replica) { return data::microbatches_per_step(shape, replica); };
  EXPECT_EQ(microbatches(0), 4);
  EXPECT_EQ(microbatches(1), 2);
  EXPECT_EQ(microbatches(2), 2);
  EXPECT_EQ(microbatches(3), 4);
  EXPECT_EQ(shape.replicas[0].schedule, shape.replicas[3].schedule);
  EXPECT_NE(shape.replicas[1].schedule, shape.replicas[2].schedule) << "other slots live";
}

// 8 heads over 4 slots are 2 each; over 3 slots the busiest rank has 3.
TEST(Shares, FollowTheSpeedOfReplicas) {
  EXPECT_THAT(shares(mesh(4, 1, 2, "dp0:1", 10, "auto")), ElementsAre(4, 6));
  EXPECT_THAT(shares(mesh(4, 1, 2, "dp0:1", 10, "auto"), {.heads = 12, .ffn = 12}), ElementsAre(4, 6));
  EXPECT_THAT(shares(mesh(1, 4, 2, "dp1.gtp0:0", 14, "auto")), ElementsAre(8, 6));
  EXPECT_THAT(shares(mesh(2, 1, 3, "dp0:0", 10, "auto")), ElementsAre(2, 4, 4));
}

}  // namespace
}  // namespace tessera::settings
