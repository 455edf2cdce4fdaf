#include "tessera/rendezvous/stop_requests.h"

#include <gtest/gtest.h>

namespace tessera::rendezvous {
namespace {

using namespace std::chrono_literals;

TEST(StopRequests, SignalsCloseTogetherAreOneRequest) {
  StopRequests requests;
  EXPECT_FALSE(requests.any());
  EXPECT_EQ(requests.add(SIGTERM, 7s), 1);
  EXPECT_TRUE(requests.any());
  EXPECT_EQ(requests.add(SIGTERM, 7s), 1);
  EXPECT_EQ(requests.add(SIGTERM, 7s + StopRequests::kSameRequest - 1ns), 1);
}

TEST(StopRequests, ALaterSignalIsTheSecondRequest) {
  StopRequests requests;
  EXPECT_EQ(requests.add(SIGTERM, 0s), 1);
  EXPECT_EQ(requests.add(SIGTERM, StopRequests::kSameRequest), 2);
  EXPECT_EQ(requests.add(SIGTERM, StopRequests::kSameRequest + 1ns), 2);
}

TEST(StopRequests, ALostTerminalIsAFirstRequestAndNeverASecondOne) {
  StopRequests requests;
  EXPECT_EQ(requests.add(SIGHUP, 0s), 1);
  EXPECT_EQ(requests.add(SIGHUP, 60s), 1);
  EXPECT_EQ(requests.add(SIGTERM, 60s), 2);
}

TEST(StopRequests, ASignalWithAnEarlierTimeIsTheSameRequest) {
  StopRequests requests;
  EXPECT_EQ(requests.add(SIGTERM, 5s), 1);
  EXPECT_EQ(requests.add(SIGTERM, 4s), 1);
}

}  // namespace
}  // namespace tessera::rendezvous
