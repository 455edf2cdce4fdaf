// Tests the bookkeeping of the runtime for steps that a graph executes. The test has no graph, so no operation of the
// graph is executed.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tessera/base/error.h"
#include "tests/runtime/replay_model.h"

namespace tessera::runtime::replay_model {

// The runtime counts versions as in the captured step. The repeated step only writes weights. The next step gathers the
// weights outside of the graph and compares their versions.
TEST_P(ReplayOnMesh, RepeatedStepsCountVersionsAndKeepWhatIsGatheredAhead) {
  for (const bool zero : {false, true}) {
    run(GetParam(), {.zero = zero, .coalesce_bytes = 1024}, [zero](Model& model) {
      Runtime& runtime = model.runtime;
      const bool gathers = runtime.parallel().cuts().parts * runtime.parallel().program().size() > 1;
      // Repeats a step and returns the gathered bytes, including those for the next step. In a real graph, replicas
      // would also exchange weights.
      const auto repeat = [&](std::int64_t in_graph = 0) {
        runtime.program().begin_step(schedule::StepKind::train, 2);
        EXPECT_TRUE(runtime.graph().can_be_graph());
        runtime.graph().repeat_step();
        runtime.wait_until_idle();  // a graph waits for the gathers that were issued ahead of it
        if (!zero) model.write_updates();
        runtime.graph().launched({}, {.gathered_bytes = in_graph});
        return runtime.finish(runtime.pending()).gathered_bytes;
      };
      for (int step = 0; step < 3; ++step) {
        model.train(2);
        EXPECT_EQ(model.starts_prepared, step == 2 || (step == 1 && !gathers)) << "step " << step;
        model.update();
      }
      const std::vector<schedule::Event> events = runtime.trace();
      std::vector<std::int64_t> versions;
      for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id)
        versions.push_back(runtime.parameter(id).version());
      const std::int64_t ahead = repeat();
      EXPECT_TRUE(ahead > 0 || runtime.parallel().cuts().parts == 1);  // without gtp, some ranks receive no bytes
      EXPECT_EQ(repeat(17), 17 + ahead);
      EXPECT_TRUE(std::ranges::equal(runtime.trace(), events, schedule::is_same));
      for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id)
        EXPECT_EQ(runtime.parameter(id).version(),
                  versions[static_cast<std::size_t>(id)] + (runtime.parameter(id).spec.trainable ? 2 : 0));
      model.train(2);
      EXPECT_TRUE(model.starts_prepared);
      model.update();
      model.replace(3);  // the parameter "overlap", which is also gathered over tp
      model.train(2);
      EXPECT_EQ(model.starts_prepared, !gathers);
      model.update();
      model.evaluate();
      model.train(2);
      EXPECT_EQ(model.starts_prepared, !gathers);
      model.update();
      repeat();  // the gathers that the previous step issued for this one are in flight
      model.train(2);
      EXPECT_EQ(runtime.schedule_statistics().departed_steps, 0);
    });
  }
}

TEST(Replay, ARepeatedStepThatWouldUseAnotherVersionIsAnError) {
  run({.gtp = 2}, {}, [](Model& model) {
    for (int step = 0; step < 3; ++step) {
      model.train(2);
      model.update();
    }
    model.runtime.program().begin_step(schedule::StepKind::train, 2);
    model.runtime.parameter(1).make_version();
    try {
      model.runtime.graph().repeat_step();
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("'stacked' was gathered in another version"), std::string::npos)
          << error.what();
    }
  });
}

}  // namespace tessera::runtime::replay_model
