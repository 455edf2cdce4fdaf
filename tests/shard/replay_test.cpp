// Steps that follow a schedule give the bits of a dense reference: on every mesh, at every budget, with poisoned
// buffers and random delays, for ties, layers used twice, frozen weights, skipped branches, recomputation and
// evaluation.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/comm/local.h"
#include "tessera/shard/runtime.h"
#include "tests/shard/elements.h"

namespace tessera::shard {
namespace {

// The logical element i of parameter p after `updates` optimizer steps.
float weight_value(std::int64_t p, std::int64_t updates, std::int64_t i) {
  return static_cast<float>(p * 1000 + i) * 0.37f + static_cast<float>(updates) * 0.011f;
}
// What use `use` in block `block` contributes there; blocks are counted over the whole run, so steps differ.
float gradient_value(std::int64_t p, std::int64_t block, std::int64_t use, std::int64_t tp, std::int64_t i) {
  return 1.0f / static_cast<float>(1 + ((i * 31 + p * 17 + block * 7 + use * 5 + tp * 3) % 97)) -
         0.01f * static_cast<float>(block % 11);
}

struct Mesh {
  int tp = 1, gtp = 1, dp = 1;
  int ranks() const { return tp * gtp * dp; }
};

struct Flags {
  bool skip_branch = false;    // parameter "branch" takes no part in this step
  int rank_that_differs = -1;  // this rank consumes "stacked" once more
};

// A model that touches its parameters in every way there is, and checks each weight it sees.
class Model {
 public:
  Model(Parallel& parallel, const RuntimeOptions& options) : parallel_(parallel), runtime(parallel, {}, options) {
    const int tp = parallel.tp_size();
    const std::int64_t overlapping = std::int64_t{2} * tp + 3;
    std::vector<std::vector<layout::Range>> overlap;
    for (std::int64_t rank = 0; rank < tp; ++rank)
      overlap.push_back({{rank * 2, rank * 2 + 2}, {overlapping - 3, overlapping}});
    runtime.add({.name = "tied", .dims = {26, 11}, .compute = layout::cut_rows({26, 11}, {{"vocabulary", 26}}, tp)});
    runtime.add({.name = "stacked", .dims = {14, 5}, .compute = layout::cut_rows({14, 5}, {{"a", 7}, {"b", 7}}, tp)});
    runtime.add({.name = "columns", .dims = {6, 7}, .compute = layout::cut_cols({6, 7}, tp)});
    runtime.add(
        {.name = "overlap", .dims = {overlapping, 4}, .compute = layout::rows_by_rank({overlapping, 4}, overlap)});
    runtime.add({.name = "norm",
                 .dims = {9},
                 .compute = layout::replicated({1, 9}, tp),
                 .sharded = false,
                 .partial_gradient = true});
    runtime.add({.name = "frozen", .dims = {5, 3}, .compute = layout::replicated({5, 3}, tp), .trainable = false});
    runtime.add({.name = "branch", .dims = {3, 8}, .compute = layout::cut_cols({3, 8}, tp)});
    runtime.add({.name = "one row", .dims = {1, 6}, .compute = layout::replicated({1, 6}, tp)});
    updates_.assign(static_cast<std::size_t>(runtime.size()), 0);
    for (ParameterId id = 0; id < runtime.size(); ++id) {
      write(id);
      runtime.publish(id);
    }
  }

  void use(ParameterId id, Pass pass) {
    const WeightView view = runtime.consume(id, pass);
    const ShardedParameter& parameter = runtime.parameter(id);
    const auto* weight = static_cast<const float*>(view.rowwise);
    for_each_element(parameter.local_compute, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      ASSERT_EQ(weight[at], weight_value(id, updates_[static_cast<std::size_t>(id)], i))
          << parameter.spec.name << " element " << i;
    });
    runtime.release(id, pass);
  }

  void give(ParameterId id, int use) {
    const ShardedParameter& parameter = runtime.parameter(id);
    if (!parameter.spec.trainable) return;
    const GradientBuffer buffer = runtime.grad_buffer(id);
    EXPECT_EQ(buffer.accumulate, use > 0);
    auto* data = static_cast<float*>(buffer.data);
    for_each_element(parameter.local_compute, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      const float value = gradient_value(id, block_, use, parallel_.tp_rank(), i);
      data[at] = use > 0 ? data[at] + value : value;
    });
    runtime.produce(id);
  }

  void forward(Pass pass, const Flags& flags) {
    for (int turn = 0; turn < 2; ++turn) {  // the layers are used twice
      for (ParameterId id = 1; id < runtime.size(); ++id)
        if (!(flags.skip_branch && id == 6)) use(id, pass);
      runtime.comm("tp", "all_reduce", 64, pass);
    }
  }

  void train(int microbatches, const Flags& flags = {}) {
    const int gtp = parallel_.gtp_size();
    runtime.begin_step(StepKind::train, microbatches);
    starts_prepared = runtime.can_be_graph();
    for (int mb = 0; mb < microbatches; ++mb) {
      block_ = ((step_ * parallel_.dp_size() + parallel_.dp_rank()) * microbatches + mb) * gtp + parallel_.gtp_rank();
      runtime.begin_microbatch();
      use(0, Pass::forward);
      forward(Pass::forward, flags);
      if (parallel_.rank == flags.rank_that_differs) use(1, Pass::forward);
      use(0, Pass::forward);  // the output layer, tied
      use(0, Pass::backward);
      give(0, 0);
      forward(Pass::recompute, flags);
      for (int turn = 0; turn < 2; ++turn)
        for (ParameterId id = runtime.size() - 1; id >= 1; --id) {
          if (flags.skip_branch && id == 6) continue;
          use(id, Pass::backward);
          give(id, turn);
        }
      give(0, 1);
      runtime.end_microbatch();
    }
    runtime.end_step();
    check_gradients(microbatches, flags);
    ++step_;
  }

  void evaluate() {
    runtime.begin_step(StepKind::evaluate, 2);
    for (int mb = 0; mb < 2; ++mb) {
      runtime.begin_microbatch();
      use(0, Pass::forward);
      forward(Pass::forward, {});
      use(0, Pass::forward);
      runtime.end_microbatch();
    }
    runtime.end_step();
  }

  // The optimizer: other values everywhere, published in the order of first use.
  void update() {
    std::vector<ParameterId> bucket;
    for (const ParameterId id : runtime.by_first_use()) {
      if (write_update(id)) bucket.push_back(id);
      if (bucket.size() < 3) continue;
      runtime.publish(bucket);
      bucket.clear();
    }
    runtime.publish(bucket);
  }
  // A graph has updated them: written, and published by the step that it repeats.
  void write_updates() {
    runtime.settle();  // what was gathered for the step, and the graph would have waited for
    for (ParameterId id = 0; id < runtime.size(); ++id) write_update(id);
  }
  // Something outside the steps replaces a weight.
  void replace(ParameterId id) {
    updates_[static_cast<std::size_t>(id)] += 100;
    runtime.settle();
    write(id);
    runtime.publish(id);
  }

 private:
  bool write_update(ParameterId id) {  // of a trainable one
    if (!runtime.parameter(id).spec.trainable) return false;
    ++updates_[static_cast<std::size_t>(id)];
    write(id);
    return true;
  }
  // What this rank updates; the rest comes from the other replicas.
  void write(ParameterId id) {
    ShardedParameter& parameter = runtime.parameter(id);
    auto* data = reinterpret_cast<float*>(parameter.state_weight());
    for_each_element(parameter.local_state, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      data[at] = weight_value(id, updates_[static_cast<std::size_t>(id)], i);
    });
  }

  std::vector<int> holders(const ShardedParameter& parameter, std::int64_t index) const {
    std::vector<int> found;
    for (int rank = 0; rank < parameter.spec.compute.size(); ++rank)
      for_each_element(parameter.spec.compute.ranks[static_cast<std::size_t>(rank)], parameter.storage.shape.cols,
                       [&](std::int64_t, std::int64_t at) {
                         if (at == index) found.push_back(rank);
                       });
    return found;
  }

  // As one process would compute it: uses add up in a block, tp parts in rank order, blocks in order, then replicas.
  float expected(ParameterId id, int microbatches, std::int64_t i) {
    const ShardedParameter& parameter = runtime.parameter(id);
    std::vector<int> parts = holders(parameter, i);
    const int gtp = parallel_.gtp_size();
    // Replicated and sharded over gtp alone: every tp rank gives the whole gradient, of which the home rank's counts.
    float sum = 0;
    for (int replica = 0; replica < parallel_.dp_size(); ++replica) {
      float replica_sum = 0;
      for (int b = 0; b < microbatches * gtp; ++b) {
        const std::int64_t block = (step_ * parallel_.dp_size() + replica) * microbatches * gtp + b;
        float whole = 0;
        for (std::size_t part = 0; part < parts.size(); ++part) {
          const float first = gradient_value(id, block, 0, parts[part], i);
          const float value = first + gradient_value(id, block, 1, parts[part], i);
          whole = part == 0 ? value : whole + value;
        }
        replica_sum = b == 0 ? whole : replica_sum + whole;
      }
      sum = replica == 0 ? replica_sum : sum + replica_sum;
    }
    return sum;
  }

  void check_gradients(int microbatches, const Flags& flags) {
    for (ParameterId id = 0; id < runtime.size(); ++id) {
      ShardedParameter& parameter = runtime.parameter(id);
      if (!parameter.spec.trainable) continue;
      const auto* data = reinterpret_cast<const float*>(parameter.state_gradient());
      for_each_element(parameter.local_state, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
        const float value = flags.skip_branch && id == 6 ? 0 : expected(id, microbatches, i);
        ASSERT_EQ(data[at], value) << parameter.spec.name << " element " << i;
      });
    }
  }

  Parallel& parallel_;
  std::int64_t step_ = 0, block_ = 0;
  std::vector<std::int64_t> updates_;

 public:
  bool starts_prepared = false;  // the last training step
  Runtime runtime;               // last: it refers to nothing above
};

// sums_apart: arrived gradients are added on a lane of their own, as on GPUs.
void run(const Mesh& mesh, const RuntimeOptions& options, const std::function<void(Model&)>& body,
         bool sums_apart = false) {
  comm::run_local(mesh.ranks(), {}, [&](comm::World& world) {
    Parallel parallel = make_parallel(world, mesh.tp, mesh.gtp, mesh.dp);
    if (sums_apart) parallel.sums = base::make_thread_lane("sums", parallel.clock);
    Model model(parallel, options);
    body(model);
  });
}

class ReplayOnMesh : public ::testing::TestWithParam<Mesh> {};

TEST_P(ReplayOnMesh, EveryBudgetGivesTheBitsOfTheReference) {
  for (const auto& [coalesce, sums_apart] : {std::pair{0, false}, {0, true}, {2048, true}, {2048, false}}) {
    for (const std::int64_t more : {std::int64_t{0}, std::int64_t{256}, std::int64_t{1500}, kUnlimited}) {
      RuntimeOptions options;
      options.gather_budget = options.reduce_budget = more;
      options.coalesce_bytes = coalesce;
      options.zero = more != 256;
      options.replay = {.poison = true, .delay_seed = 3, .longest_delay = 0.0003};
      if (more != 0 && more != kUnlimited) {  // a little above the smallest
        run(GetParam(), {.gather_budget = 0, .reduce_budget = 0, .coalesce_bytes = coalesce}, [&](Model& model) {
          model.train(2);
          model.update();
          model.train(2);
          const Schedule& schedule = *model.runtime.schedule(StepKind::train, 2);
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
            const Schedule& schedule = *model.runtime.schedule(StepKind::train, 2);
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
      model.train(1);                 // other microbatches, another schedule
      if (step != 1) model.update();  // an optimizer step that is skipped
    }
    EXPECT_EQ(model.runtime.schedule_statistics().departed_steps, 0);
    EXPECT_EQ(model.runtime.schedule_statistics().planned, 3);
  });
}

// Of the sum of all microbatches, once a step; what is not added up by one last sum gives none.
TEST_P(ReplayOnMesh, TheLastSumGivesTheSquaresOfItsRows) {
  run(GetParam(), {.replay = {.poison = true}}, [](Model& model) {
    Runtime& runtime = model.runtime;
    const int dp = runtime.parallel().dp_size();
    std::vector<std::vector<double>> squares(static_cast<std::size_t>(runtime.size()));
    int giving = 0;
    for (ParameterId id = 0; id < runtime.size(); ++id) {
      ShardedParameter& parameter = runtime.parameter(id);
      const std::int64_t columns = parameter.columns_of_sum(dp);
      EXPECT_TRUE(columns == 0 || columns == parameter.local_storage.pieces.front().box.cols);
      if (columns == 0) continue;
      ++giving;
      auto& own = squares[static_cast<std::size_t>(id)];
      own.assign(static_cast<std::size_t>(parameter.local_storage.size / columns), -1);
      parameter.row_squares = own.data();
    }
    if (dp > 1) {
      EXPECT_EQ(giving, 0);
    } else if (runtime.parallel().gtp_size() < 8) {  // else some ranks hold nothing
      EXPECT_GT(giving, 0);
    }
    for (int step = 0; step < 3; ++step) {
      const Flags flags{.skip_branch = step == 2};
      model.train(2, flags);
      for (ParameterId id = 0; id < runtime.size(); ++id) {
        ShardedParameter& parameter = runtime.parameter(id);
        const auto& own = squares[static_cast<std::size_t>(id)];
        const bool written = step == 1 && !own.empty();  // by a schedule, all of it
        if (step < 2) {
          EXPECT_EQ(parameter.row_squares_written, written) << parameter.spec.name;
        }
        if (!parameter.row_squares_written) continue;
        std::vector<double> expected(own.size());
        const std::int64_t columns = parameter.columns_of_sum(dp);
        comm::host_kernels().ordered_sum_squares(parameter.main_grad.data(), base::DType::fp32, true, {},
                                                 base::DType::fp32, parameter.local_storage.size / columns, columns,
                                                 expected.data());
        EXPECT_EQ(own, expected) << parameter.spec.name << ", step " << step;
      }
      model.update();
    }
  });
}

// A graph's step, here one that only writes weights. The step behind compares them, gathered outside of the graph.
TEST_P(ReplayOnMesh, RepeatedStepsCountVersionsAndKeepWhatIsGatheredAhead) {
  run(GetParam(), {.coalesce_bytes = 1024}, [](Model& model) {
    Runtime& runtime = model.runtime;
    const bool gathers = runtime.parallel().gtp_size() * runtime.parallel().tp_size() > 1;
    const auto repeat = [&](std::int64_t in_graph = 0) {  // returns what was gathered, for the next step too
      runtime.begin_step(StepKind::train, 2);
      EXPECT_TRUE(runtime.can_be_graph());
      runtime.repeat_step();
      model.write_updates();
      runtime.launched({}, {.gathered_bytes = in_graph});
      return runtime.finish(runtime.pending()).gathered_bytes;
    };
    for (int step = 0; step < 3; ++step) {
      model.train(2);
      EXPECT_EQ(model.starts_prepared, step == 2 || (step == 1 && !gathers)) << "step " << step;
      model.update();
    }
    const std::vector<Event> events = runtime.trace();
    std::vector<std::int64_t> versions;
    for (ParameterId id = 0; id < runtime.size(); ++id) versions.push_back(runtime.parameter(id).version);
    const std::int64_t ahead = repeat();
    EXPECT_TRUE(ahead > 0 || runtime.parallel().gtp_size() == 1);  // over tp alone some ranks receive nothing
    EXPECT_EQ(repeat(17), 17 + ahead);
    EXPECT_TRUE(std::ranges::equal(runtime.trace(), events, is_same));
    for (ParameterId id = 0; id < runtime.size(); ++id)
      EXPECT_EQ(runtime.parameter(id).version,
                versions[static_cast<std::size_t>(id)] + (runtime.parameter(id).spec.trainable ? 2 : 0));
    model.train(2);
    EXPECT_TRUE(model.starts_prepared);
    model.update();
    model.replace(3);  // "overlap", which is gathered over tp too
    model.train(2);
    EXPECT_EQ(model.starts_prepared, !gathers);
    model.update();
    model.evaluate();
    model.train(2);
    EXPECT_EQ(model.starts_prepared, !gathers);
    model.update();
    repeat();  // directly behind a step that has gathers for it under way
    model.train(2);
    EXPECT_EQ(runtime.schedule_statistics().departed_steps, 0);
  });
}

TEST(Replay, ARepeatedStepThatWouldUseAnotherVersionIsAnError) {
  run({.gtp = 2}, {}, [](Model& model) {
    for (int step = 0; step < 3; ++step) {
      model.train(2);
      model.update();
    }
    model.runtime.begin_step(StepKind::train, 2);
    ++model.runtime.parameter(1).version;
    try {
      model.runtime.repeat_step();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("'stacked' was gathered in another version"), std::string::npos)
          << error.what();
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
    step(true);  // leaves it
    EXPECT_TRUE(model.runtime.statistics().departed);
    EXPECT_EQ(model.runtime.statistics().unproduced, 1);
    step(false);  // is back
    EXPECT_FALSE(model.runtime.statistics().departed);
    EXPECT_EQ(model.runtime.statistics().demand_gathers, 0);
    for (int i = 0; i < 3; ++i) step(true);
    EXPECT_EQ(model.runtime.schedule_statistics().planned, 1);
    step(true);  // the third in a row made a new schedule
    EXPECT_EQ(model.runtime.schedule_statistics().planned, 2);
    EXPECT_FALSE(model.runtime.statistics().departed);
    step(false);  // which this one leaves
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

TEST(Replay, TwoModelsTrainInOneProcess) {
  comm::run_local(4, {}, [](comm::World& world) {
    Parallel a = make_parallel(world, 2, 2, 1), b = make_parallel(world, 1, 4, 1);
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
    EXPECT_NE(std::string(error.what()).find("100 bytes; the smallest that can run is"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace tessera::shard
