// Tests mismatched calls and failing ranks on `local`: every rank gets an error in time, and mismatches name both
// sides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <csignal>
#include <future>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tests/base/stopped_process.h"
#include "tests/comm/ranks.h"
#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

using quant::DType;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using ::testing::ThrowsMessage;

// Returns the error of each rank's body; empty if the body succeeded.
std::vector<std::string> errors_of(int ranks, const LocalOptions& options, const std::function<void(World&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_local(ranks, options, [&](World& world) {
    try {
      body(world);
    } catch (const std::exception& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  return errors;
}

std::string error_of_run(int ranks, const LocalOptions& options, const std::function<void(World&)>& body) {
  try {
    run_local(ranks, options, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

LocalOptions limit(milliseconds timeout) {
  LocalOptions options;
  options.timeout = timeout;
  return options;
}

// The calls of the ranks differ in one argument.
struct Mismatch {
  const char* name;
  std::function<base::Fence(Communicator&, float*)> call;
  std::vector<std::string> named;  // texts that the error messages contain
};

void PrintTo(const Mismatch& mismatch, std::ostream* out) {
  *out << mismatch.name;
}

class MismatchedCalls : public testing::TestWithParam<Mismatch> {};

TEST_P(MismatchedCalls, FailOnEveryRankAndNameBothSides) {
  const auto begin = steady_clock::now();
  const auto errors = errors_of(3, limit(milliseconds(60000)), [](World& world) {
    const auto group = make_whole_group(world, 3);
    std::vector<float> data(100);
    GetParam().call(*group, data.data()).synchronize();
  });
  EXPECT_LT(steady_clock::now() - begin, milliseconds(30000));
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("the calls do not match"), HasSubstr("test[0-2]")));
    for (const std::string& name : GetParam().named) EXPECT_THAT(error, HasSubstr(name));
  }
}

const std::vector<std::int64_t> kOnes{1, 1, 1};
INSTANTIATE_TEST_SUITE_P(
    Kinds, MismatchedCalls,
    testing::Values(
        Mismatch{"Operation",
                 [](Communicator& g, float* data) {
                   return g.rank() == 1 ? g.all_reduce(data, 5, DType::fp32) : g.broadcast(data, 5, DType::fp32, 0);
                 },
                 {"rank 1 called all_reduce(sum, fp32, count 5)", "called broadcast(fp32, count 5, root 0)"}},
        Mismatch{"Count",
                 [](Communicator& g, float* data) { return g.all_reduce(data, 5 + g.rank() / 2, DType::fp32); },
                 {"rank 2 called all_reduce(sum, fp32, count 6)", "called all_reduce(sum, fp32, count 5)"}},
        Mismatch{"Counts",
                 [](Communicator& g, float* data) {
                   const std::vector<std::int64_t> counts{1, 2, g.rank() == 0 ? 3 : 4};
                   return g.all_gather(data, data + 50, counts, DType::fp32);
                 },
                 {"rank 0 called all_gather(fp32, counts [1, 2, 3])", "called all_gather(fp32, counts [1, 2, 4])"}},
        Mismatch{"Type",
                 [](Communicator& g, float* data) {
                   return g.broadcast(data, 4, g.rank() == 0 ? DType::i32 : DType::fp32, 0);
                 },
                 {"rank 0 called broadcast(i32", "called broadcast(fp32"}},
        Mismatch{"Root",
                 [](Communicator& g, float* data) { return g.broadcast(data, 4, DType::fp32, g.rank() / 2); },
                 {"root 0", "root 1"}},
        Mismatch{"Reduction",
                 [](Communicator& g, float* data) {
                   const auto op = g.rank() == 0 ? ReduceOp::max : ReduceOp::sum;
                   return g.reduce_scatter(data, data + 50, kOnes, DType::fp32, op);
                 },
                 {"rank 0 called reduce_scatter(max", "called reduce_scatter(sum"}},
        Mismatch{"AllToAllPair",
                 [](Communicator& g, float* data) {
                   const std::vector<std::int64_t> sent{1, 1, g.rank() == 0 ? 2 : 1};
                   return g.all_to_all(data, sent, data + 50, kOnes, DType::fp32);
                 },
                 {"rank 0 sends 2 elements of fp32 to rank 2, which expects 1"}},
        Mismatch{"Message",
                 [](Communicator& g, float* data) {
                   if (g.rank() == 1) return g.exchange({{.peer = 2, .data = data, .bytes = 8}}, {});
                   if (g.rank() == 0) return g.exchange({}, {});
                   return g.exchange({}, {{.peer = 1, .data = data, .bytes = 12}});
                 },
                 {"rank 1 sends messages of [8] bytes to rank 2, which expects [12]"}},
        Mismatch{"MessageNobodySends",
                 [](Communicator& g, float* data) {
                   if (g.rank() != 2) return g.exchange({}, {});
                   return g.exchange({}, {{.peer = 0, .data = data, .bytes = 12}});
                 },
                 {"rank 0 sends messages of [] bytes to rank 2, which expects [12]"}}),
    [](const auto& info) { return info.param.name; });

TEST(LocalArguments, AreRefusedOnTheCallingRank) {
  run_local(1, {}, [](World& world) {
    const auto group = make_whole_group(world, 1);
    float data = 0;
    const std::vector<std::int64_t> two{1, 1}, negative{-1}, huge{std::int64_t{1} << 62};
    const auto refused = [&](auto call, const char* text) {
      try {
        call();
        ADD_FAILURE() << "not refused: " << text;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr(text), HasSubstr("test[0], rank 0")));
      }
    };
    refused([&] { group->all_gather(&data, &data, two, DType::fp32); }, "expected 1 counts to receive, got 2");
    refused([&] { group->reduce_scatter(&data, &data, negative, DType::fp32); }, "of at least 0, got -1");
    refused([&] { group->all_gather(&data, &data, huge, DType::fp32); }, "more bytes than fit in 64 bits");
    refused([&] { group->broadcast(&data, 1, DType::fp32, 1); }, "expected a root in [0, 1), got 1");
    refused([&] { group->all_reduce(nullptr, 1, DType::fp32); }, "recv is null");
    refused([&] { group->exchange({{.peer = 3, .data = &data, .bytes = 4}}, {}); }, "expected a peer in [0, 1), got 3");
    EXPECT_THAT([&] { group->all_reduce(&data, 1, DType::u8); },
                ThrowsMessage<Error>(HasSubstr("all_reduce: u8 has no sum; expected i32, i64, bf16, fp32 or fp64")));
    data = 3;
    group->all_reduce(&data, 1, DType::fp32).synchronize();  // a refused call does not change the group
    EXPECT_EQ(data, 3);
  });
}

TEST(LocalGroups, ArgumentsMustBeEqualOnAllRanks) {
  const auto error = error_of_run(2, {}, [](World& world) {
    world.make_group(world.rank() == 0 ? "tp" : "dp", {{0, 1}});
    make_whole_group(world, 2)->barrier().synchronize();
  });
  EXPECT_THAT(error, AllOf(HasSubstr("make_group"), HasSubstr("tp"), HasSubstr("dp")));
  using Groups = std::vector<std::vector<int>>;
  for (const auto& [groups, refusal] : {std::pair{Groups{{0, 1}, {1}}, "rank 1 is given twice"},
                                        {Groups{{0, 2}}, "expected ranks in [0, 2), got 2"},
                                        {Groups{{}}, "group 0 is empty"},
                                        {Groups{{-1}}, "expected ranks in [0, 2), got -1"}}) {
    const auto ask = [&](World& world) { world.make_group("x", groups); };
    EXPECT_THAT([&] { run_local(2, {}, ask); },
                ThrowsMessage<Error>(HasSubstr(std::string("make_group x: ") + refusal)));
  }
}

TEST(LocalGroups, ARankOutsideEveryGroupGetsNull) {
  run_local(3, {}, [](World& world) {
    const auto group = world.make_group("pair", {{2, 0}});
    ASSERT_EQ(group == nullptr, world.rank() == 1);
    if (group == nullptr) return;
    EXPECT_EQ(group->rank(), world.rank() == 2 ? 0 : 1);
    EXPECT_EQ(group->name(), "pair[2,0]");
    group->barrier().synchronize();
  });
}

TEST(LocalFailure, AThrowingBodyFailsAllPendingAndLaterOperations) {
  const auto begin = steady_clock::now();
  std::vector<std::string> errors(4);
  const auto first = error_of_run(4, {}, [&](World& world) {
    const auto group = make_whole_group(world, 4);
    if (world.rank() == 2) throw InputError("file not found");
    const base::Fence fence = group->barrier();
    try {
      fence.synchronize();
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(world.rank())] = error.what();
    }
    EXPECT_THAT([&] { group->barrier().synchronize(); },
                ThrowsMessage<Error>(HasSubstr("rank 2 failed: file not found")));
    const auto later = make_whole_group(world, 4);
    EXPECT_THAT([&] { later->barrier().synchronize(); },
                ThrowsMessage<Error>(HasSubstr("rank 2 failed: file not found")));
  });
  EXPECT_EQ(first, "file not found");
  for (const int rank : {0, 1, 3})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("barrier #0 on test[0-3]"), HasSubstr("rank 2 failed: file not found")));
  EXPECT_LT(steady_clock::now() - begin, milliseconds(30000));
  EXPECT_THAT([&] { run_local(2, {}, [](World&) { throw InputError("kept"); }); },
              ThrowsMessage<InputError>(HasSubstr("kept")));
}

TEST(LocalFailure, InjectedThrowNamesRankOperationAndCause) {
  LocalOptions options;
  options.inject = [](int rank, const std::string& group, const std::string& op, std::int64_t sequence) {
    if (rank == 1 && group == "test[0-2]" && op == "all_reduce" && sequence == 3) throw std::runtime_error("boom");
  };
  std::atomic<int> done{0};
  const auto body = [&](World& world) {
    const auto group = make_whole_group(world, 3);
    std::vector<std::int64_t> data(10, 1);
    std::vector<base::Fence> fences;
    for (int i = 0; i < 8; ++i) fences.push_back(group->all_reduce(data.data(), 10, DType::i64));
    for (const base::Fence& fence : fences) {
      fence.synchronize();
      ++done;
    }
  };
  EXPECT_EQ(error_of_run(3, options, body), "all_reduce #3 on test[0-2], rank 1: boom");
  EXPECT_EQ(done, 9);
  const auto errors = errors_of(3, options, body);
  EXPECT_THAT(errors[0], HasSubstr("rank 1 failed: all_reduce #3 on test[0-2], rank 1: boom"));
  EXPECT_THAT(errors[2], HasSubstr("rank 1 failed: all_reduce #3 on test[0-2], rank 1: boom"));
}

TEST(LocalFailure, StoppedRankIsNamedWithinTheTimeLimit) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  LocalOptions options = limit(milliseconds(200));
  options.inject = [released](int rank, const std::string&, const std::string&, std::int64_t sequence) {
    if (rank == 1 && sequence == 2) released.wait();
  };
  std::atomic<int> ended{0};
  const auto begin = steady_clock::now();
  const auto errors = errors_of(3, options, [&](World& world) {
    const auto group = make_whole_group(world, 3);
    group->barrier();
    group->barrier();
    const base::Fence fence = group->barrier();
    try {
      fence.synchronize();
    } catch (...) {
      // The other two ranks end while rank 1 is still stopped.
      if (++ended == 2) {
        EXPECT_LT(steady_clock::now() - begin, milliseconds(20000));
        release.set_value();
      }
      throw;
    }
  });
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("barrier #2"), HasSubstr("time limit of 200 ms passed waiting for rank 1"))));
}

TEST(LocalFailure, TimeLimitNamesAllMissingRanks) {
  const auto error = error_of_run(4, limit(milliseconds(1000)), [](World& world) {
    const auto group = make_whole_group(world, 4);
    const auto other = world.make_group("other", {{0, 1, 2, 3}});
    if (world.rank() % 2 == 0)
      group->barrier().synchronize();
    else
      other->barrier().synchronize();  // calls in the wrong order: a deadlock without time limits
  });
  EXPECT_THAT(error, AnyOf(HasSubstr("waiting for ranks 1, 3"), HasSubstr("waiting for ranks 0, 2")));
}

TEST(LocalFailure, LeavingTheGroupIsAnErrorAtOnce) {
  const auto begin = steady_clock::now();
  const auto errors = errors_of(2, {}, [](World& world) {
    auto group = make_whole_group(world, 2);
    group->barrier().synchronize();
    if (world.rank() == 0) return;
    group->barrier().synchronize();
  });
  EXPECT_THAT(errors[1], HasSubstr("rank 0 has left the group"));
  EXPECT_LT(steady_clock::now() - begin, milliseconds(30000));
}

TEST(LocalFailure, UnwindingWithPendingOperationsDoesNotWaitForThem) {
  const auto begin = steady_clock::now();
  const auto error = error_of_run(3, {}, [](World& world) {
    const auto a = make_whole_group(world, 3);
    const auto b = make_whole_group(world, 3);
    std::vector<float> data(1000);
    if (world.rank() == 0) {
      a->all_reduce(data.data(), 1000, DType::fp32);
      b->all_reduce(data.data(), 10, DType::fp32);
      throw std::runtime_error("rank 0 stops here");
    }
    b->barrier().synchronize();
  });
  EXPECT_THAT(error, AnyOf(HasSubstr("rank 0 stops here"), HasSubstr("the calls do not match")));
  EXPECT_LT(steady_clock::now() - begin, milliseconds(30000));
}

TEST(LocalFailure, GroupsAreDestroyedInAnyOrder) {
  for (int round = 0; round < 20; ++round)
    run_local(4, {}, [&](World& world) {
      std::array<std::int64_t, 3> sums{};
      sums.fill(world.rank() + 1);
      std::vector<std::unique_ptr<Communicator>> groups;
      for (int i = 0; i < 3; ++i) groups.push_back(make_whole_group(world, 4));
      for (std::size_t i = 0; i < 3; ++i) groups[i]->all_reduce(&sums[i], 1, DType::i64);
      for (int i = 0; i < 3; ++i) groups[static_cast<std::size_t>((i + world.rank()) % 3)].reset();
      EXPECT_THAT(sums, Each(1 + 2 + 3 + 4));  // a destroyed group has finished its operations
    });
}

TEST(LocalDelays, DoNotChangeResults) {
  const auto result = [](const LocalOptions& options) {
    std::mutex mutex;
    std::vector<float> of_rank_0;
    run_local(4, options, [&](World& world) {
      const auto group = make_whole_group(world, 4);
      const auto other = world.make_group("other", {{0, 2}, {1, 3}});
      auto data = values_of<float>(world.rank(), 0, 20000);
      std::vector<float> part(5000);
      for (int i = 0; i < 5; ++i) {
        group->all_reduce(data.data(), 20000, DType::fp32);
        other->lane().wait(group->lane().record());
        other->all_reduce(data.data(), 100, DType::fp32);
        group->lane().wait(other->lane().record());
        group->reduce_scatter(data.data(), part.data(), equal_counts(4, 5000), DType::fp32);
        group->all_gather(part.data(), data.data(), equal_counts(4, 5000), DType::fp32);
      }
      group->lane().synchronize();
      std::lock_guard lock(mutex);
      if (of_rank_0.empty() || world.rank() == 0) of_rank_0 = data;
    });
    return of_rank_0;
  };
  LocalOptions delayed;
  delayed.inject = [](int rank, const std::string& group, const std::string&, std::int64_t sequence) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(700) *
        ((std::int64_t{7} * rank + 3 * sequence + static_cast<std::int64_t>(group.size())) % 5));
  };
  EXPECT_TRUE(same_bits(result(delayed), result({})));
}

TEST(LocalRanks, OneThreadEach) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  run_local(5, {}, [&](World& world) {
    EXPECT_EQ(world.size(), 5);
    EXPECT_EQ(world.backend(), "local");
    std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 5u);
  EXPECT_THAT([&] { run_local(0, {}, [](World&) {}); },
              ThrowsMessage<InputError>(HasSubstr("local backend: expected at least 1 rank, got 0")));
}

// The whole process is stopped for longer than the limit while rank 0 waits for rank 1, as after Ctrl-Z.
TEST(TimeLimit, DoesNotCountTheTimeInWhichTheProcessIsStopped) {
  const int code = base::run_with_stop(milliseconds(3000), [] {
    const std::string error = error_of_run(2, limit(milliseconds(2000)), [](World& world) {
      const auto group = make_whole_group(world, 2);
      group->barrier().synchronize();
      if (world.rank() == 1) raise(SIGSTOP);
      group->barrier().synchronize();
    });
    return error.empty() ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace tessera::comm
