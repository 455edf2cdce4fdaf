// Tests the file of a recorded step. It contains every transfer of the schedule once on every rank. The results are the
// same as without a recording.
#include "tessera/telemetry/step_timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "tests/train/training.h"

namespace tessera::telemetry {
namespace {

using nlohmann::ordered_json;
using train::testing::RunOptions;
using train::testing::RunResult;

// The transfers of the schedule of a rank's last step: category, weights, microbatch.
using Transfers = std::multiset<std::tuple<std::string, std::vector<std::string>, int>>;

Transfers scheduled(runtime::Runtime& runtime, int microbatches) {
  const schedule::Schedule& schedule = *runtime.schedule(schedule::StepKind::train, microbatches);
  const auto names = [&](const schedule::Unit& unit) {
    std::vector<std::string> names;
    for (const schedule::ParameterId id : unit) names.push_back(runtime.parameter(id).spec.name);
    return names;
  };
  Transfers transfers;
  for (const schedule::Residency& r : schedule.residencies)
    transfers.emplace("gather", names(schedule.gather_units[static_cast<std::size_t>(r.unit)]),
                      runtime.trace()[static_cast<std::size_t>(r.wait)].microbatch);
  for (const schedule::Reduction& r : schedule.reductions) {
    const std::vector<std::string> weights = names(schedule.reduce_units[static_cast<std::size_t>(r.unit)]);
    transfers.emplace("reduce", weights, r.microbatch);
    if (r.replicas && runtime.parallel().cuts().replicas > 1) transfers.emplace("replicas", weights, r.microbatch);
  }
  return transfers;
}

struct Recorded {
  ordered_json file;
  std::map<int, Transfers> expected;                             // index: rank
  std::map<int, std::pair<std::int64_t, std::int64_t>> traffic;  // index: rank; gathered and reduced bytes
};

TEST(StepTimeline, HoldsEveryTransferOnceAndChangesNoResult) {
  constexpr int traced = 2;  // the second step that follows the schedule
  RunOptions options{.model = train::testing::odd_model(), .gtp = 2, .dp = 2, .blocks = 8, .steps = 4};
  const RunResult plain = train::testing::run(options);
  const int microbatches = options.blocks / (options.gtp * options.dp);
  std::mutex mutex;
  Recorded recorded;
  options.before_step = [](train::Trainer& trainer, int step) {
    trainer.runtime().record_timeline(step >= traced - 1);
  };
  options.after_step = [&](train::Trainer& trainer, int step) {
    if (step != traced) return;
    runtime::Runtime& runtime = trainer.runtime();
    ordered_json file = gather_step_timeline(runtime);
    const std::lock_guard lock(mutex);
    const int rank = runtime.parallel().rank;
    if (rank == 0) recorded.file = std::move(file);
    recorded.expected[rank] = scheduled(runtime, microbatches);
    recorded.traffic[rank] = {runtime.statistics().gathered_bytes, runtime.statistics().reduced_bytes};
  };
  EXPECT_EQ(train::testing::run(options), plain);

  std::map<int, Transfers> found;
  std::map<int, std::pair<std::int64_t, std::int64_t>> traffic;
  std::map<int, std::pair<int, std::string>> rows;  // key: rank and name
  for (const ordered_json& event : recorded.file["traceEvents"]) {
    if (event["name"] == "thread_name") rows[event["tid"]] = {event["pid"], event["args"]["name"]};
    if (event["ph"] != "X") continue;
    const int rank = event["pid"];
    const std::string category = event["cat"];
    const std::string lane = category == "wait" ? "compute" : category == "publish" ? "replicas" : category;
    EXPECT_EQ(rows[event["tid"]], std::pair(rank, lane));
    EXPECT_GE(event["ts"], 0);
    EXPECT_GT(event["dur"], 0);
    if (category == "compute" || category == "wait" || event["args"]["weights"].empty()) continue;
    const std::int64_t bytes = event["args"]["bytes"];
    (category == "reduce" || category == "replicas" ? traffic[rank].second : traffic[rank].first) += bytes;
    if (category != "publish" && category != "program")
      found[rank].emplace(category, event["args"]["weights"].get<std::vector<std::string>>(),
                          event["args"]["microbatch"].get<int>());
  }
  EXPECT_EQ(found, recorded.expected);
  EXPECT_EQ(traffic, recorded.traffic);  // in the steady state, each step prefetches as much as the step before it
  ASSERT_EQ(found.size(), 4u);
}

}  // namespace
}  // namespace tessera::telemetry
