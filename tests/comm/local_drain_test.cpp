// After any failure every lane finishes, so that an owner can wait for its pending work before it frees memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tests/comm/ranks.h"

namespace tessera::comm {
namespace {

using testing::HasSubstr;

std::string text_of(const std::exception_ptr& error) {
  if (error == nullptr) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  }
}

// Enqueues a chain over three lanes after a collective. Returns the error at the end of the chain.
std::string drained_error(World& world, Communicator& group) {
  const auto inner = base::make_thread_lane("inner"), outer = base::make_thread_lane("outer");
  float value = 1;
  bool ran = false;
  group.all_reduce(&value, 1, quant::DType::fp32);
  group.barrier();
  inner->wait(group.lane().record());
  inner->run([&] { ran = true; });
  outer->wait(inner->record());
  outer->delay(1000);
  const base::Fence end = outer->record();
  EXPECT_TRUE(end.wait_for(std::chrono::seconds(60))) << "rank " << world.rank();
  EXPECT_FALSE(ran);
  return text_of(end.error());
}

TEST(LocalDrain, FinishesIfAPeersBodyThrows) {
  EXPECT_THROW(run_local(3, {},
                         [](World& world) {
                           const auto group = make_whole_group(world, 3);
                           if (world.rank() == 1) throw InputError("file not found");
                           EXPECT_THAT(drained_error(world, *group), HasSubstr("rank 1 failed: file not found"));
                         }),
               InputError);
}

TEST(LocalDrain, FinishesWithinTheTimeLimitIfAPeerStops) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  LocalOptions options;
  options.timeout = std::chrono::milliseconds(200);
  std::atomic<int> ended{0};
  run_local(3, options, [&](World& world) {
    const auto group = make_whole_group(world, 3);
    if (world.rank() == 1) return released.wait();
    EXPECT_THAT(drained_error(world, *group), HasSubstr("time limit of 200 ms passed waiting for rank 1"));
    if (++ended == 2) release.set_value();
  });
  EXPECT_EQ(ended, 2);
}

TEST(LocalDrain, FinishesOnTheRankWhoseWorkThrows) {
  LocalOptions options;
  options.timeout = std::chrono::milliseconds(200);
  run_local(2, options, [](World& world) {
    const auto group = make_whole_group(world, 2);
    if (world.rank() == 0) group->lane().run([] { throw std::runtime_error("own work"); });
    const std::string error = drained_error(world, *group);
    EXPECT_THAT(error, HasSubstr(world.rank() == 0 ? "own work" : "rank 0"));
  });
}

}  // namespace
}  // namespace tessera::comm
