#include "tessera/runtime/watch/host_pace.h"

#include <gtest/gtest.h>

#include <future>

namespace tessera::runtime {
namespace {

// Calls passed() at `events` events, a second apart, after `before` each. Returns the seconds of waits.
double seconds_waited(
    HostPace& pace, base::Lane& compute, int events, const std::function<void()>& before = [] {}) {
  double waited = 0;
  for (int event = 0; event < events; ++event) {
    before();
    waited += pace.passed(compute, event);
  }
  return waited;
}

TEST(HostPace, CountsTheTimeInWhichComputeHasFinishedItsWork) {
  const auto compute = base::make_thread_lane("compute");
  HostPace pace;
  pace.begin_step(true);
  const auto work = [&] {
    compute->run([] {});
    compute->record().synchronize();
  };
  EXPECT_EQ(seconds_waited(pace, *compute, 2 * HostPace::kEvents + 1, work), 2 * HostPace::kEvents);
  pace.begin_step(true);  // the time between two steps does not count
  EXPECT_EQ(seconds_waited(pace, *compute, HostPace::kEvents, work), 0);
}

TEST(HostPace, DoesNotCountTheTimeInWhichComputeIsBehind) {
  const auto compute = base::make_thread_lane("compute");
  HostPace pace;
  pace.begin_step(true);
  std::promise<void> end;
  compute->run([ended = end.get_future().share()] { ended.wait(); });
  EXPECT_EQ(seconds_waited(pace, *compute, 3 * HostPace::kEvents), 0);
  end.set_value();
  compute->record().synchronize();
  EXPECT_EQ(pace.passed(*compute, 3 * HostPace::kEvents), HostPace::kEvents);
}

}  // namespace
}  // namespace tessera::runtime
