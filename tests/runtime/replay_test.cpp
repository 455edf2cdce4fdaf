// Checks that steps with a schedule have the bits of a dense reference, on every mesh and with every budget. Buffers
// are poisoned, communication is delayed at random, and evaluations run between the steps.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "tessera/base/error.h"
#include "tests/runtime/replay_model.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime::replay_model {

TEST_P(ReplayOnMesh, EveryBudgetGivesTheBitsOfTheReference) {
  // The cases contain each pair of a budget and a unit size once, and each pair of a budget and a value of sums_apart.
  for (const auto& [coalesce, sums_apart] : {std::pair{0, false}, {0, true}, {2048, true}, {2048, false}}) {
    const bool with_smallest = (coalesce == 0) != sums_apart;
    for (const std::int64_t more :
         {with_smallest ? std::int64_t{0} : 256, with_smallest ? std::int64_t{1500} : schedule::kUnlimited}) {
      RuntimeOptions options;
      options.gather_budget = options.reduce_budget = more;
      options.coalesce_bytes = coalesce;
      options.zero = more != 256;
      options.replay = {.poison = true, .delay_seed = 3, .longest_delay = 0.0003};
      if (more != 0 && more != schedule::kUnlimited) {  // a budget that is a little larger than the smallest one
        run(GetParam(), {.gather_budget = 0, .reduce_budget = 0, .coalesce_bytes = coalesce}, [&](Model& model) {
          model.train(2);
          model.update();
          model.train(2);
          const schedule::Schedule& schedule = *model.runtime.schedule(schedule::StepKind::train, 2);
          if (model.runtime.parallel().rank > 0) return;
          options.gather_budget = schedule.gather_arena + more;
          options.reduce_budget = schedule.reduce_arena + schedule.scratch + more;
        });
      }
      run(
          GetParam(), options,
          [](Model& model) {
            for (int step = 0; step < 4; ++step) {
              model.train(2);
              EXPECT_EQ(model.runtime.statistics().recorded, step == 0);
              EXPECT_FALSE(model.runtime.statistics().departed);
              if (step > 0) {
                EXPECT_EQ(model.runtime.statistics().demand_gathers, 0);
              }
              model.update();
            }
            const schedule::Schedule& schedule = *model.runtime.schedule(schedule::StepKind::train, 2);
            const ScheduleStatistics statistics = model.runtime.schedule_statistics();
            EXPECT_EQ(statistics.gather_arena_bytes, schedule.gather_arena);
            EXPECT_EQ(statistics.gather_peak_bytes, schedule.gather_arena);
            EXPECT_EQ(statistics.reduce_arena_bytes, schedule.reduce_arena);
            EXPECT_EQ(statistics.reduce_peak_bytes, schedule.reduce_arena);
            EXPECT_EQ(statistics.planned, 1);
          },
          sums_apart);
    }
  }
}

// An evaluation uses the same arenas, and its schedule may be larger than that of a training step.
TEST_P(ReplayOnMesh, TheArenasOfTrainingStepsAreCountedAlone) {
  run(GetParam(), {.gather_budget = schedule::kUnlimited}, [](Model& model) {
    EXPECT_EQ(model.runtime.schedule_statistics().train_arenas.has_value(), false);
    for (int step = 0; step < 3; ++step) {
      model.train(2);
      model.update();
      model.evaluate();
    }
    const schedule::Schedule& train = *model.runtime.schedule(schedule::StepKind::train, 2);
    const ScheduleStatistics statistics = model.runtime.schedule_statistics();
    ASSERT_TRUE(statistics.train_arenas.has_value());
    EXPECT_EQ(statistics.train_arenas->gather, train.gather_arena);
    EXPECT_EQ(statistics.train_arenas->reduce, train.reduce_arena);
    EXPECT_EQ(statistics.train_arenas->scratch, train.scratch);
  });
}

TEST_P(ReplayOnMesh, EvaluationsAndOtherStepsMayComeBetween) {
  RuntimeOptions options;
  options.coalesce_bytes = 1024;
  options.zero = true;
  options.replay.poison = true;
  run(GetParam(), options, [](Model& model) {
    for (int step = 0; step < 3; ++step) {
      model.train(3);
      model.update();
      model.evaluate();
      if (step == 1) model.replace(1);  // a checkpoint is loaded: prefetched weights are stale
      if (step == 2) model.evaluate();
      model.train(1);                 // another number of microbatches has another schedule
      if (step != 1) model.update();  // step 1 has no update
    }
    EXPECT_EQ(model.runtime.schedule_statistics().departed_steps, 0);
    EXPECT_EQ(model.runtime.schedule_statistics().planned, 3);
  });
}

// The squares are computed once in a step, from the sum of all microbatches. If no single last sum computes a gradient,
// it has no squares.
TEST_P(ReplayOnMesh, TheLastSumGivesTheSquaresOfItsRows) {
  run(GetParam(), {.replay = {.poison = true}}, [](Model& model) {
    Runtime& runtime = model.runtime;
    const int dp = runtime.parallel().cuts().replicas;
    std::vector<std::vector<double>> squares(static_cast<std::size_t>(runtime.parameters().size()));
    int giving = 0;
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
      shard::ShardedParameter& parameter = runtime.parameter(id);
      const std::int64_t columns = parameter.columns_of_sum(dp);
      EXPECT_TRUE(columns == 0 || columns == parameter.local_storage.pieces.front().box.cols);
      if (columns == 0) continue;
      ++giving;
      auto& own = squares[static_cast<std::size_t>(id)];
      own.assign(static_cast<std::size_t>(parameter.local_storage.size / columns), -1);
      parameter.write_row_squares(own.data());
    }
    if (dp > 1) {
      EXPECT_EQ(giving, 0);
    } else if (runtime.parallel().cuts().parts < 8) {  // with more parts, some ranks store no rows
      EXPECT_GT(giving, 0);
    }
    for (int step = 0; step < 3; ++step) {
      const Flags flags{.skip_branch = step == 2};
      model.train(2, flags);
      for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
        shard::ShardedParameter& parameter = runtime.parameter(id);
        const auto& own = squares[static_cast<std::size_t>(id)];
        // Only step 1 follows its schedule to the end.
        const bool written = step == 1 && !own.empty();
        if (step < 2) {
          EXPECT_EQ(parameter.row_squares_written(), written) << parameter.spec.name;
        }
        if (!parameter.row_squares_written()) continue;
        std::vector<double> expected(own.size());
        const std::int64_t columns = parameter.columns_of_sum(dp);
        quant::host_kernels().ordered_sum_squares(parameter.main_grad.data(), quant::DType::fp32, true, {},
                                                  quant::DType::fp32, parameter.local_storage.size / columns, columns,
                                                  expected.data());
        EXPECT_EQ(own, expected) << parameter.spec.name << ", step " << step;
      }
      model.update();
    }
  });
}

TEST_P(ReplayOnMesh, AStepThatLeavesItsScheduleIsServedOnDemandAndCounted) {
  RuntimeOptions options;
  options.replay.poison = true;
  run(GetParam(), options, [](Model& model) {
    auto step = [&](bool skip) {
      model.train(2, {.skip_branch = skip});
      model.update();
    };
    step(false);
    step(false);
    step(true);  // this step departs from its schedule
    EXPECT_TRUE(model.runtime.statistics().departed);
    EXPECT_EQ(model.runtime.statistics().unproduced, 1);
    step(false);  // this step follows its schedule again
    EXPECT_FALSE(model.runtime.statistics().departed);
    EXPECT_EQ(model.runtime.statistics().demand_gathers, 0);
    for (int i = 0; i < 3; ++i) step(true);
    EXPECT_EQ(model.runtime.schedule_statistics().planned, 1);
    step(true);  // after the third departed step in a row, a new schedule was made
    EXPECT_EQ(model.runtime.schedule_statistics().planned, 2);
    EXPECT_FALSE(model.runtime.statistics().departed);
    step(false);  // this step departs from the new schedule
    EXPECT_TRUE(model.runtime.statistics().departed);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, ReplayOnMesh,
                         ::testing::Values(Mesh{1, 1, 1}, Mesh{1, 3, 1}, Mesh{2, 1, 1}, Mesh{2, 2, 1}, Mesh{3, 2, 1},
                                           Mesh{1, 2, 2}, Mesh{1, 8, 1}, Mesh{2, 1, 2}),
                         [](const auto& info) {
                           return "tp" + std::to_string(info.param.tp) + "gtp" + std::to_string(info.param.gtp) + "dp" +
                                  std::to_string(info.param.dp);
                         });

TEST(Replay, ARankThatDiffersAloneEndsTheRunWithTheFirstDifferingEvent) {
  for (const int step_of_difference : {0, 2}) {
    const auto start = std::chrono::steady_clock::now();
    try {
      run({1, 3, 1}, {}, [&](Model& model) {
        for (int step = 0; step < 3; ++step) {
          model.train(2, {.rank_that_differs = step == step_of_difference ? 1 : -1});
          model.update();
        }
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("consume stacked"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

// Every plane and every gradient has the same address in each step, for every use.
TEST(Replay, BuffersKeepTheirAddressesOver100Steps) {
  run({1, 2, 2}, {.gather_budget = schedule::kMinimum}, [](Model& model) {
    const auto step = [&] {
      model.train(2);
      model.update();
      return model.addresses;
    };
    step();
    const std::vector<const void*> planned = step();
    EXPECT_GT(planned.size(), 100u);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(step(), planned) << i;
  });
}

// The message of the amaxes of a bucket is an event before the publish events of the bucket. A step with a schedule
// follows this event like other events.
TEST(Replay, AmaxesOfBucketsAreEventsOfTheSchedule) {
  run({1, 2, 1}, {}, [](Model& model) {
    for (int step = 0; step < 4; ++step) {
      model.train(2);
      model.update();
      std::vector<std::string> behind;
      for (const schedule::Event& event : model.runtime.trace())
        if (event.microbatch < 0) behind.push_back(to_string(event));
      ASSERT_EQ(behind.size(), 10u + 4u);
      for (std::size_t bucket = 0; bucket < 4; ++bucket)
        EXPECT_EQ(behind[4 * bucket], "train comm casts all_reduce max 8 bytes");
    }
    EXPECT_EQ(model.runtime.schedule_statistics().departed_steps, 0);
    const schedule::Schedule& schedule = *model.runtime.schedule(schedule::StepKind::train, 2);
    EXPECT_EQ(schedule.optimizer_events(), 14);
    model.train(2);
    EXPECT_FALSE(model.runtime.statistics().recorded);
    EXPECT_TRUE(model.starts_prepared);
  });
}

TEST(Replay, ARankWithoutAmaxesEndsTheRunWithTheFirstDifferingEvent) {
  try {
    run({1, 3, 1}, {}, [&](Model& model) {
      for (int step = 0; step < 4; ++step) {
        model.train(2);
        model.update(/*with_amaxes=*/step != 2 || model.runtime.parallel().rank != 1);
      }
    });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("casts all_reduce max"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  }
}

TEST(Replay, TwoModelsTrainInOneProcess) {
  comm::run_local(4, {}, [](comm::World& world) {
    shard::ParallelGroups a = shard::dense_parallel(world, 2, 2, 1, true),
                          b = shard::dense_parallel(world, 1, 4, 1, true);
    Model first(a, {}), second(b, {});
    for (int step = 0; step < 3; ++step) {
      first.train(2);
      second.train(1);
      first.update();
      second.update();
    }
  });
}

TEST(Replay, ABudgetBelowTheSmallestIsRefusedWithBothNumbers) {
  try {
    run({1, 2, 1}, {.gather_budget = 100}, [](Model& model) {
      model.train(1);
      model.update();
      model.train(1);
    });
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("100 bytes; the smallest budget that can run is"), std::string::npos)
        << error.what();
  }
}
}  // namespace tessera::runtime::replay_model
