// Tests the first lines of `tessera plan`.
#include "tessera/plan/plan_head.h"

#include <gmock/gmock.h>

#include <sstream>

#include "tessera/plan/plan_report.h"
#include "tests/plan/plan_testing.h"

namespace tessera::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream input(text);
  for (std::string line; std::getline(input, line);) lines.push_back(line);
  return lines;
}

// A request for a processor with 1 GB of memory.
StepPlanRequest with_memory(const std::map<std::string, std::string>& settings) {
  StepPlanRequest request = request_of(settings);
  request.machine.memory_bytes = 1'000'000'000;
  return request;
}

MemoryUse use_of(std::int64_t bytes) {
  return {.activations = bytes};
}

TEST(PlanHead, HasMeshBatchMemoryStepAndRate) {
  const StepPlanRequest request = with_memory({{"model", "even"}, {"tp", "2"}, {"dp", "2"}, {"global_batch", "8"}});
  const PlanFigures figures{.memory = use_of(900'000'000), .seconds = 0.012, .mfu = 0.5, .microbatches = 4};
  EXPECT_THAT(lines_of(head_text(request, figures)),
              ElementsAre("mesh: 4 ranks (tp 2 x gtp 1 x dp 2) of machine even; even, 0.00 M parameters, fp32",
                          "batch: 8 sequences of 6 tokens, 4 microbatches of 1 x 6",
                          "memory: fits: a rank needs 900.00 MB and may use 970.00 MB (1.00 GB without the 3 % of "
                          "--memory-margin)",
                          "step: 12.000 ms", "tokens/s: 4000, mfu 0.500",
                          "formats: 100.0 % fp32 in the wire, the backward wire and products"));
  const StepPlan step = plan_step(request);
  const std::vector<std::string> lines = lines_of(plan_head(request, step) + plan_details(request, step, 0));
  EXPECT_THAT(lines[0], StartsWith("mesh: "));
  EXPECT_THAT(lines[2], StartsWith("memory: fits"));
  EXPECT_EQ(lines[3], fmt::format("step: {:.3f} ms", step.prediction.step_seconds * 1e3));
  EXPECT_THAT(lines[5], StartsWith("formats: "));
  EXPECT_EQ(lines[6], "");
}

TEST(PlanHead, StatesTheMissingBytesBeyondTheMargin) {
  StepPlanRequest request = with_memory({});
  const auto memory_line = [&](std::int64_t bytes) {
    return lines_of(head_text(request, {.memory = use_of(bytes), .seconds = 1}))[2];
  };
  EXPECT_EQ(memory_line(970'000'001),
            "memory: does not fit: a rank needs 970.00 MB and may use 970.00 MB (1.00 GB without the 3 % of "
            "--memory-margin); 1 B are missing");
  request.memory_margin = 0;
  EXPECT_EQ(memory_line(970'000'001), "memory: fits: a rank needs 970.00 MB and may use 1.00 GB");
  EXPECT_EQ(memory_line(1'200'000'000),
            "memory: does not fit: a rank needs 1.20 GB and may use 1.00 GB; 200.00 MB are missing");
  request.machine.memory_bytes = 0;
  EXPECT_EQ(memory_line(1),
            "memory: a rank needs 1 B; the file of machine even does not state the memory, so every "
            "plan fits");
}

TEST(PlanHead, NamesABatchThatNoFlagSets) {
  StepPlanRequest request = with_memory({{"tp", "4"}, {"global_batch", "4"}});
  request.has_given_batch = false;
  EXPECT_THAT(head_text(request, {.seconds = 1, .microbatches = 4}),
              HasSubstr("batch: 4 sequences of 6 tokens, 4 microbatches of 1 x 6; --global-batch is not given, so the "
                        "plan takes 1 sequence for each rank\n"));
  EXPECT_THAT(head_text(request, {.seconds = 1, .microbatches = 1}), HasSubstr("so the plan takes one microbatch\n"));
}

TEST(PlanHead, MarksRatesThatNobodyMeasured) {
  StepPlanRequest request = with_memory({{"gtp", "4"}});
  request.machine.unmeasured = {"links.between_nodes", "links.collectives"};
  EXPECT_EQ(unmeasured_text(request), "") << "4 ranks are one node";
  request = with_memory({{"gtp", "8"}});
  request.machine.unmeasured = {"links.between_nodes", "flops", "links.collectives"};
  request.machine.between_nodes.bytes_per_second = 50e9;
  EXPECT_THAT(head_text(request, {.seconds = 1}),
              HasSubstr("step: 1000.000 ms, predicted with rates that nobody measured: links.between_nodes (50 GB/s), "
                        "flops\n"));
  EXPECT_EQ(plan_json(request, plan_step(request))["unmeasured"],
            (nlohmann::ordered_json{"links.between_nodes", "flops"}));
  request = with_memory({{"tp", "4"}});
  request.machine.unmeasured = {"links.between_nodes", "links.collectives"};
  EXPECT_EQ(unmeasured_text(request), ", predicted with rates that nobody measured: links.collectives");
}

TEST(PlanMemory, ALargerMarginShrinksAutomaticArenas) {
  StepPlanRequest request = request_of({{"gtp", "4"}, {"global_batch", "16"}});
  const MemoryUse most = plan_step(request).memory;
  // Less than the automatic arenas take, and 6 % of it are about a third of the arenas.
  request.machine.memory_bytes = most.total() * 100 / 94;
  const StepPlan narrow = plan_step(request);
  request.memory_margin = 0.2;
  const StepPlan narrower = plan_step(request);
  EXPECT_LE(narrow.memory.total(), request.machine.memory_bytes - request.machine.memory_bytes / 20);
  EXPECT_LT(narrower.memory.total(), narrow.memory.total());
}

TEST(PlanMemory, APlanThatDoesNotFitRecommendsNothing) {
  StepPlanRequest request = request_of({{"gtp", "4"}, {"ep", "2"}, {"egtp", "2"}}, sparse_model());
  const StepPlan step = plan_step(request);
  EXPECT_THAT(plan_details(request, step, 0), HasSubstr("\nrecommended --ep "));
  EXPECT_TRUE(plan_json(request, step)["experts"]["recommended"].is_object());
  request.machine.memory_bytes = step.memory.total();  // the margin is missing
  EXPECT_THAT(plan_details(request, step, 0), Not(HasSubstr("recommended")));
  EXPECT_TRUE(plan_json(request, step)["experts"]["recommended"].is_null());
  EXPECT_EQ(plan_json(request, step)["fits"], false);
}

}  // namespace
}  // namespace tessera::plan
