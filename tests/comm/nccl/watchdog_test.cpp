// Tests the watchdog with a store that does not answer. Needs no device.
#include "tessera/comm/nccl/watchdog.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/rendezvous/silent_store.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST(NcclWatchdog, FailsAllGroupsInTimeIfTheStoreDoesNotAnswer) {
  const auto silence = std::make_shared<rendezvous::Silence>();
  const auto faults = std::make_shared<base::LaneFaults>(), other_faults = std::make_shared<base::LaneFaults>();
  const GroupIdentity group{.name = "gtp[0,1]", .rank = 1, .members = {0, 1}};
  const auto watch = std::make_shared<NcclWatch>(group, "0.0", base::Device{}, nullptr, faults);
  const auto other = std::make_shared<NcclWatch>(group, "1.0", base::Device{}, nullptr, other_faults);
  std::promise<void> aborted;
  watch->at_abort([&] { aborted.set_value(); });
  std::promise<std::string> failed;
  NcclWatchdog watchdog(std::make_shared<rendezvous::SilentStore>(rendezvous::make_memory_store(), silence), 1,
                        base::Device{}, seconds(60), [&](const std::string& error) { failed.set_value(error); });
  watchdog.add(watch);
  watchdog.add(other);
  silence->begin();
  std::this_thread::sleep_for(milliseconds(500));  // the watchdog reads failures of other ranks
  std::promise<void> done;
  std::thread speaker([&] {
    done.get_future().wait_for(seconds(8));
    silence->end();
  });
  const auto begin = steady_clock::now();
  watchdog.report(watch, "barrier #1 on gtp[0,1], rank 1", "time limit passed");
  EXPECT_TRUE(faults->broken());
  EXPECT_TRUE(other_faults->broken());
  EXPECT_NE(watchdog.failure(), nullptr);
  EXPECT_EQ(failed.get_future().get(), "barrier #1 on gtp[0,1], rank 1: time limit passed; the store does not answer");
  aborted.get_future().wait();
  EXPECT_LT(steady_clock::now() - begin, seconds(4));
  done.set_value();
  speaker.join();
}

// The watchdog's thread detects the failure; here another rank reports it.
TEST(NcclWatchdog, DetectsFailuresOfOtherRanks) {
  const auto store = rendezvous::make_memory_store();
  const auto faults = std::make_shared<base::LaneFaults>();
  const GroupIdentity group{.name = "gtp[0,1]", .rank = 1, .members = {0, 1}};
  const auto watch = std::make_shared<NcclWatch>(group, "0.0", base::Device{}, nullptr, faults);
  std::promise<std::string> failed;
  NcclWatchdog watchdog(store->connect(), 1, base::Device{}, seconds(60),
                        [&](const std::string& error) { failed.set_value(error); });
  watchdog.add(watch);
  store->set("failed", "a cause");
  EXPECT_EQ(failed.get_future().get(), "a cause");
  EXPECT_TRUE(faults->broken());
  EXPECT_EQ(store->find("state/0.0/1"), "no operation called");
}

}  // namespace
}  // namespace tessera::comm
