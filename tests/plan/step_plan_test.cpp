// Compares plans of `tessera plan` with numbers derived by hand.
#include "tessera/plan/step_plan.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/plan/plan_report.h"
#include "tessera/plan/predicted_timeline.h"
#include "tessera/predict/recompute_choice.h"
#include "tessera/settings/trainer_options.h"
#include "tests/plan/plan_testing.h"
#include "tests/plan/planned_run.h"

namespace tessera::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A rank of two holds half of each matrix and receives the other half in fp32. With the least memory, forward and
// backward each gather the weights of every block; the output layer is needed twice in a row and the embedding once.
TEST(PlanTraffic, TwoGathersWithLeastMemoryOneWithEnough) {
  StepPlanRequest request = request_of({{"gtp", "2"}, {"global_batch", "6"}});  // 3 microbatches
  request.gather_budget = schedule::kMinimum;
  request.reduce_budget = schedule::kMinimum;
  const StepPlan least = plan_step(request);
  EXPECT_EQ(least.busiest_rank.gathered, 3 * (2 * 960 + 2 * 128) * 4 / 2);
  request.gather_budget = request.reduce_budget = schedule::kUnlimited;
  const StepPlan most = plan_step(request);
  EXPECT_EQ(most.busiest_rank.gathered, 1216 * 4 / 2);
  // The gradient of a microbatch is exchanged once. For a norm, each rank receives the other rank's whole gradient.
  for (const StepPlan* step : {&least, &most}) {
    EXPECT_EQ(step->busiest_rank.reduced, 3 * (1216 / 2 + 5 * 8) * 4);
    EXPECT_EQ(step->all_ranks.gathered, 2 * step->busiest_rank.gathered);
    EXPECT_EQ(step->all_ranks.reduced, 2 * step->busiest_rank.reduced);
  }
  EXPECT_LT(least.memory.gathered, most.memory.gathered);
  EXPECT_EQ(most.memory.gathered, most.schedule.gather_arena);
}

TEST(PlanTraffic, ReplicasAreSummedOnceAStep) {
  const StepPlan step =
      plan_step(request_of({{"gtp", "2"}, {"dp", "3"}, {"global_batch", "12"}, {"dtype", "bf16"}, {"zero", "off"}}));
  const std::int64_t shard = 1216 / 2 + 5 * 8;
  // Two microbatches in bf16, then an all_reduce of the fp32 sums: 2 (dp - 1) / dp of their bytes, rounded to whole
  // bytes for each parameter.
  EXPECT_NEAR(step.busiest_rank.reduced, 2 * shard * 2 + 2.0 * 2 * shard * 4 / 3, step.parameters.size());
}

// Each of the three replicas updates a third of the rows of a shard. A rank receives the gradients of its third from
// the two other replicas, and sends them the new weights.
TEST(PlanTraffic, SplitStatesAreSummedToTheirOwnersAndGathered) {
  const auto planned = [](const char* zero) {
    StepPlanRequest request =
        request_of({{"gtp", "2"}, {"dp", "3"}, {"global_batch", "12"}, {"dtype", "bf16"}, {"zero", zero}});
    request.gather_budget = request.reduce_budget = schedule::kUnlimited;
    return plan_step(request);
  };
  const StepPlan split = planned("on"), whole = planned("off");
  const double matrices = 1216 / 2.0, norms = 5 * 8;
  const double rows = 24;  // largest number of elements; the last replica may have fewer rows
  EXPECT_NEAR(split.busiest_rank.reduced, 2 * (matrices + norms) * 2 + (2 * matrices / 3 + 4 * norms / 3) * 4,
              split.parameters.size() * 2 * rows * 4);
  EXPECT_NEAR(split.busiest_rank.gathered - whole.busiest_rank.gathered, 2 * matrices / 3 * 2,
              split.parameters.size() * rows * 2);
  EXPECT_EQ(split.all_ranks.gathered - whole.all_ranks.gathered, 2 * 1216 * 2);
  // For a sum of a whole parameter, the bytes that each of the 6 ranks receives are rounded down.
  EXPECT_LE(whole.all_ranks.reduced - split.all_ranks.reduced, 2 * 1216 * 4);
  EXPECT_NEAR(whole.all_ranks.reduced - split.all_ranks.reduced, 2 * 1216 * 4, 6 * split.parameters.size());
  EXPECT_LT(split.memory.optimizer, whole.memory.optimizer / 2);
  EXPECT_EQ(split.memory.weights, whole.memory.weights);
}

TEST(PlanTraffic, RowsThatDivideUnevenlyCountByTheirPlacement) {
  const shard::ParameterSpec spec{.name = "w", .dims = {7, 5}, .compute = layout::replicated({7, 5}, 1)};
  const predict::PlannedParameter planned = predict::planned_parameter(
      spec, {.model = quant::DType::bf16, .wire = quant::DType::bf16}, {.parts = 3, .replicas = 2});
  EXPECT_EQ(planned.shard_elements, 3 * 5);  // the ranks store 3, 3 and 1 rows
  // Two replicas; each row is sent to the two ranks that do not store it.
  EXPECT_EQ(planned.gather_total, 2 * 2 * 35 * 2);
  EXPECT_EQ(planned.reduce_total, 2 * 2 * 35 * 2);  // each row is received from two ranks
  EXPECT_EQ(planned.replica_total, 2 * (2 - 1) * 35 * 4);
  EXPECT_EQ(total_bytes(planned.size.gather), (7 - 1) * 5 * 2);  // bytes of the rank with one row
}

// For 6 tokens, a rank of two receives 6 rows of 32 bytes and their indices in both directions: 2 * 6 * (32 + 8) = 480
// bytes. Half a table of 16 rows and its gradients have 512 bytes. For 7 tokens the rows would have 560 bytes.
TEST(PlanTraffic, RowsOfTheEmbeddingAreSentIfTheyHaveFewerBytes) {
  for (const char* recompute : {"none", "full"}) {
    StepPlanRequest request = request_of({{"gtp", "2"}, {"global_batch", "2"}, {"recompute", recompute}});
    request.gather_budget = request.reduce_budget = schedule::kMinimum;
    const StepPlan gathered = plan_step(request);
    request.run = request.run.with_lookup(settings::Lookup::automatic);
    const StepPlan rows = plan_step(request);
    EXPECT_EQ(gathered.busiest_rank.gathered - rows.busiest_rank.gathered, 256 - 240);
    EXPECT_EQ(gathered.busiest_rank.reduced - rows.busiest_rank.reduced, 256 - 240);
    EXPECT_EQ(gathered.all_ranks.gathered - rows.all_ranks.gathered, 2 * (256 - 240));
    EXPECT_EQ(gathered.all_ranks.reduced - rows.all_ranks.reduced, 2 * (256 - 240));
    EXPECT_EQ(rows.memory.gathered, rows.schedule.gather_arena + std::int64_t{2} * 6 * (8 + 32));
    const auto reads = std::ranges::find(rows.trace, schedule::EventKind::comm, &schedule::Event::kind);
    ASSERT_NE(reads, rows.trace.end());
    EXPECT_EQ(to_string(*reads, rows.names()), "train mb 0 forward comm rows gather_rows embedding.weight 240 bytes");
    const auto at = static_cast<std::size_t>(reads - rows.trace.begin());
    EXPECT_DOUBLE_EQ(rows.costs.costs.comm_seconds[at], 240 / 1e6);

    models::DecoderConfig longer = even_model();
    longer.max_position_embeddings = 7;
    request =
        request_of({{"gtp", "2"}, {"global_batch", "2"}, {"recompute", recompute}, {"embedding", "auto"}}, longer);
    EXPECT_EQ(plan_step(request).trace.front().kind, schedule::EventKind::consume);
    request.run = request.run.with_lookup(settings::Lookup::rows);
    EXPECT_EQ(plan_step(request).trace.front().kind, schedule::EventKind::comm);
  }
}

TEST(PlanTraffic, RowsOfATiedTableAreNotSent) {
  models::DecoderConfig model = even_model();
  model.tie_word_embeddings = true;
  EXPECT_EQ(plan_step(request_of({{"gtp", "2"}, {"embedding", "auto"}}, model)).trace.front().kind,
            schedule::EventKind::consume);
  EXPECT_THAT(
      [&] {
        request_of({{"gtp", "2"}, {"embedding", "rows"}}, model);
      },
      ThrowsMessage<InputError>(HasSubstr("--embedding: got rows, expected auto or gather")));
}

TEST(PlanMemory, EqualsTheSizeOfTheBuffers) {
  const StepPlanRequest request = request_of({{"gtp", "2"}});
  const StepPlan step = plan_step(request);
  const std::int64_t shard = (std::int64_t{1216} / 2 + 40) * 4;
  EXPECT_EQ(step.memory.weights, shard);
  EXPECT_EQ(step.memory.gradients, shard + step.schedule.reduce_arena + step.schedule.scratch);
  EXPECT_EQ(step.memory.optimizer, 2 * shard);
  // For each token, a block keeps 2 x (8 + 8 + 1) values for its norms, 16 + 4 for attention, 8 before its output layer
  // and 24 + 12 for SwiGLU. The last norm keeps 8 + 1 values and the loss 16 + 8. There are six tokens of fp32 values.
  EXPECT_EQ(step.memory.activations, (2 * (34 + 20 + 8 + 36) + 9 + 24) * 6 * 4);
  const StepPlan bf16 = plan_step(request_of({{"gtp", "2"}, {"dtype", "bf16"}}));
  EXPECT_EQ(bf16.memory.weights, shard / 2);
  EXPECT_EQ(bf16.memory.optimizer, 2 * shard + shard / 2);  // each weight also has half a master
  StepPlanRequest evaluation = request;
  evaluation.kind = schedule::StepKind::evaluate;
  EXPECT_EQ(plan_step(evaluation).memory.activations, 0);
}

// With 5 tp ranks of 3 query heads each, two ranks read 2 of the 3 key/value heads, and the last rank reads 1.
TEST(PlanMemory, ActivationsAreThoseOfTheRankThatKeepsMost) {
  models::DecoderConfig model = even_model();
  model.num_heads = 15;
  model.num_kv_heads = 3;
  const StepPlanRequest request = request_of({{"tp", "5"}, {"sequence_parallel", "off"}}, model);
  predict::DryOptions options = settings::dry_options(request.run, {});
  std::vector<std::int64_t> kept;
  for (options.rank = 0; options.rank < 5; ++options.rank) kept.push_back(peak_stashed(dry_step(options).microbatch));
  ASSERT_LT(kept.back(), kept[1]);
  EXPECT_EQ(plan_step(request).memory.activations, *std::ranges::max_element(kept));
}

// With 4096 bytes per microsecond all communication is hidden and the smallest arenas are enough. With the slow links
// of even_machine() every byte is exposed, and more memory saves the second gather.
TEST(PlanMemory, AutomaticBudgetsAreAsSmallAsTimeAllows) {
  StepPlanRequest request = request_of({{"gtp", "2"}, {"global_batch", "6"}});
  const StepPlan slow = plan_step(request);
  request.machine.within_node.bytes_per_second = 4096e6;
  request.machine.flops[quant::DType::fp32] = 1e6;
  const StepPlan fast = plan_step(request);
  EXPECT_LT(fast.memory.gathered, slow.memory.gathered);
  request.gather_budget = request.reduce_budget = schedule::kMinimum;
  EXPECT_EQ(fast.schedule, plan_step(request).schedule);
}

TEST(PlanMemory, ABudgetThatIsTooSmallIsNamedByItsFlag) {
  const auto message = [](const settings::Budget& gather, const settings::Budget& reduce) -> std::string {
    StepPlanRequest request = request_of({{"gtp", "2"}});
    request.gather_budget = gather;
    request.reduce_budget = reduce;
    try {
      plan_step(request);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message(1, {}), ::testing::StartsWith("--gather-budget: "));
  EXPECT_THAT(message({}, 1), ::testing::StartsWith("--reduce-budget: "));
  EXPECT_EQ(message(schedule::kMinimum, schedule::kMinimum), "no error");
}

// Transfers on separate links overlap. On a shared link, one transfer runs at a time, and no transfer takes longer.
TEST(PlanTime, TransfersOfASharedLinkRunOneAtATime) {
  const auto overlaps = [](const StepPlan& step) {
    std::vector<schedule::Span> transfers;
    for (const schedule::Span& span : step.prediction.spans)
      if (span.hop) transfers.push_back(span);
    std::ranges::sort(transfers, {}, &schedule::Span::begin);
    int found = 0;
    for (std::size_t i = 1; i < transfers.size(); ++i) found += transfers[i].begin < transfers[i - 1].end - 1e-12;
    return found;
  };
  const auto moving = [](const StepPlan& step) {
    double seconds = 0;
    for (const schedule::Span& span : step.prediction.spans)
      if (span.hop) seconds += span.end - span.begin;
    return seconds;
  };
  for (const char* tp : {"1", "2"}) {
    StepPlanRequest request = request_of({{"tp", tp}, {"gtp", "2"}, {"dp", "2"}, {"global_batch", "12"}});
    request.gather_budget = request.reduce_budget = schedule::kMinimum;
    const StepPlan own = plan_step(request);
    request.machine.shared_link = true;
    const StepPlan shared = plan_step(request);
    EXPECT_GT(overlaps(own), 0);
    EXPECT_EQ(overlaps(shared), 0);
    EXPECT_NEAR(moving(shared), moving(own), 1e-9);
    EXPECT_GT(shared.prediction.step_seconds, own.prediction.step_seconds);
  }
}

// The remaining memory limits automatic budgets. Explicit budgets and the smallest possible budgets are not reduced.
TEST(PlanMemory, AutomaticBudgetsLeaveRoomForTheRest) {
  StepPlanRequest request = request_of({{"gtp", "2"}, {"global_batch", "6"}});
  const StepPlan roomy = plan_step(request);
  const auto arenas = [](const StepPlan& step) {
    return step.schedule.gather_arena + step.schedule.reduce_arena + step.schedule.scratch;
  };
  const std::int64_t rest = roomy.memory.total() - arenas(roomy);
  request.gather_budget = request.reduce_budget = schedule::kMinimum;
  const std::int64_t smallest = arenas(plan_step(request));
  request.gather_budget = request.reduce_budget = {};
  ASSERT_GT(arenas(roomy), smallest + 256);
  int narrower = 0;
  for (std::int64_t room = 0; room < arenas(roomy) + 512; room += 128) {
    request.machine.memory_bytes = (rest + room) * 20 / 19 + 1;
    const StepPlan step = plan_step(request);
    EXPECT_LE(arenas(step), std::max(smallest, room + 1)) << room;
    narrower += arenas(step) < arenas(roomy);
  }
  EXPECT_GT(narrower, 3);
  EXPECT_EQ(plan_step(request).schedule, roomy.schedule);
  request.machine.memory_bytes = rest;
  request.gather_budget = schedule::kUnlimited;
  EXPECT_EQ(plan_step(request).schedule.gather_arena, roomy.schedule.gather_arena);
}

// 6 tokens and one rank: no communication. Every product takes 2 * 6 * elements flops at 1e9 flops per second, once in
// forward and twice in backward.
TEST(PlanTime, OneRankComputesOnly) {
  const StepPlan step = plan_step(request_of({}));
  const double products = 3 * 2 * 6 * (2 * 480 + 128) / 1e9;
  // The gradients of the embedding and of the first norm travel as one unit, when backward has ended. Layers write the
  // gradients of the matrices.
  const double last_sum = (128.0 + 8.0) * (4 + 2 * 4) / 1e9;
  EXPECT_NEAR(step.prediction.exposed_seconds(), last_sum, 1e-12);
  EXPECT_NEAR(step.prediction.reduce_exposed_seconds, last_sum, 1e-12);
  EXPECT_NEAR(step.prediction.step_seconds, step.prediction.compute_seconds + last_sum, 1e-12);
  double counted = 0;
  for (std::size_t i = 0; i < step.trace.size(); ++i)
    for (const char* work : {"fprop", "dgrad", "wgrad"})
      if (step.costs.work[i].find(work) != std::string::npos) counted += step.costs.costs.segment_seconds[i];
  EXPECT_GT(counted, products);  // with SwiGLU, and products that move more bytes than they have flops
  EXPECT_LT(counted, step.prediction.step_seconds);
}

// 6 tokens of fp32 and 1e9 bytes per second: in each of 2 blocks, two norms read and write their 8 columns again, and
// the backward of SwiGLU writes its 12 columns.
TEST(PlanTime, SelectiveRecomputationMovesTheRecomputedBytes) {
  const auto seconds = [](const char* recompute) {
    return plan_step(request_of({{"recompute", recompute}})).prediction.compute_seconds;
  };
  EXPECT_NEAR(seconds("selective") - seconds("none"), 2 * (2 * 2 * 8 + 12) * 6 * 4 / 1e9, 1e-12);
}

TEST(PlanTime, LinksAreThoseOfTheRanksThatTalk) {
  const auto first_gather = [](const StepPlan& step) {
    return step.costs.costs.seconds[mesh::Transfer::gather].front();
  };
  const StepPlan near = plan_step(request_of({{"gtp", "4"}})), far = plan_step(request_of({{"gtp", "8"}}));
  EXPECT_DOUBLE_EQ(first_gather(near), 128.0 * 4 * 3 / 4 / 1e6);
  EXPECT_DOUBLE_EQ(first_gather(far), 128.0 * 4 * 7 / 8 / 1e5);
  EXPECT_LT(near.prediction.step_seconds, near.on_demand.step_seconds);
}

// Each microbatch has the same times.
TEST(PlanTime, CollectivesOverlapComputeThatDoesNotNeedThem) {
  const StepPlan step = plan_step(request_of({{"tp", "2"}, {"global_batch", "2"}}));
  const std::vector<int>& waits = step.costs.costs.comm_waits;
  ASSERT_EQ(waits.size(), step.trace.size());
  const int events = static_cast<int>(std::ranges::count(step.trace, 0, &schedule::Event::microbatch));
  int late = 0;
  for (int i = 0; i < events; ++i) {
    EXPECT_EQ(waits[static_cast<std::size_t>(i + events)], waits[static_cast<std::size_t>(i)] + events) << i;
    if (waits[static_cast<std::size_t>(i)] > i) ++late;
  }
  EXPECT_GT(late, 0);
}

// The link is so slow that compute waits for every whole transfer.
TEST(PlanTime, PiecesTravelBesideProducts) {
  std::map<std::string, std::string> settings{
      {"tp", "2"}, {"gtp", "2"}, {"sequence_parallel", "on"}, {"tp_chunks", "2"}, {"tp_overlap", "off"}};
  StepPlanRequest whole = request_of(settings);
  settings["tp_overlap"] = "on";
  StepPlanRequest pieces = request_of(settings);
  for (StepPlanRequest* request : {&whole, &pieces}) request->machine.within_node.bytes_per_second = 1e9;
  const StepPlan before = plan_step(whole), after = plan_step(pieces);
  EXPECT_EQ(before.memory.transfers, 0);
  EXPECT_GT(after.memory.transfers, 0);
  EXPECT_GT(after.activations_seconds(), 0);
  EXPECT_LT(after.activations_seconds(), 0.9 * before.activations_seconds());
  EXPECT_GT(limit_seconds(pieces), limit_seconds(whole));  // compute adds the parts of pieces
  EXPECT_LT(limit_seconds(pieces), 1.05 * limit_seconds(whole));
  EXPECT_NEAR(limit_seconds(pieces), after.prediction.compute_seconds, 1e-12);  // this machine starts operators at once
  const ordered_json predicted = plan_json(pieces, after)["predicted"];
  EXPECT_DOUBLE_EQ(predicted["exposed_ms"]["tp"].get<double>(), after.activations_seconds() * 1e3);
  EXPECT_NEAR(predicted["exposed_ms"]["tp"].get<double>() + predicted["exposed_ms"]["weights"].get<double>(),
              predicted["exposed_comm_ms"].get<double>(), 1e-9);
  pieces.machine.collectives = predict::MachineLink{.bytes_per_second = 1e6};
  const StepPlan slow = plan_step(pieces);
  int others = 0;
  for (std::size_t i = 0; i < slow.trace.size(); ++i) {
    if (slow.trace[i].kind != schedule::EventKind::comm) continue;
    const double seconds = slow.costs.costs.comm_seconds[i], pushed = after.costs.costs.comm_seconds[i];
    const bool is_piece = schedule::is_piece_op(slow.trace[i].op);
    EXPECT_TRUE(is_piece ? seconds == pushed : seconds >= pushed) << to_string(slow.trace[i]);
    others += seconds > pushed ? 1 : 0;
  }
  EXPECT_GT(others, 0);  // the loss sums over tp
  EXPECT_THAT(plan_details(pieces, after, 0), HasSubstr(" + transfers in pieces "));
  EXPECT_THAT(plan_details(pieces, after, 0), HasSubstr("limit / step 0."));
}

// The limit has no recomputation and no time to start operators.
TEST(PlanTime, TheLimitHasTheWorkAlone) {
  StepPlanRequest request = request_of({{"gtp", "2"}, {"recompute", "full"}});
  const double work = limit_seconds(request_of({{"gtp", "2"}}));
  request.machine.operator_s = 0.001;
  EXPECT_DOUBLE_EQ(limit_seconds(request), work);
  EXPECT_GT(plan_step(request).prediction.compute_seconds, work);
}

TEST(PlanTime, EverySizeAndPolicyIsPlanned) {
  models::DecoderConfig model = even_model();
  model.vocab_size = 67;
  model.hidden_size = 13;
  model.intermediate_size = 7;
  model.num_heads = 10;
  model.num_kv_heads = 5;
  for (const bool tied : {false, true})
    for (const char* recompute : {"none", "selective", "full"})
      for (const char* sequence_parallel : {"off", "on"}) {
        model.tie_word_embeddings = tied;
        StepPlanRequest request = request_of({{"tp", "3"},
                                              {"gtp", "5"},
                                              {"dp", "2"},
                                              {"global_batch", "20"},
                                              {"recompute", recompute},
                                              {"sequence_parallel", sequence_parallel}},
                                             model);
        for (const std::int64_t budget : {schedule::kMinimum, schedule::kUnlimited}) {
          request.gather_budget = request.reduce_budget = budget;
          const StepPlan step = plan_step(request);
          EXPECT_GT(step.prediction.step_seconds, step.prediction.compute_seconds);
          EXPECT_LE(step.prediction.step_seconds, step.on_demand.step_seconds * (1 + 1e-9));
          EXPECT_EQ(step.parameters.size(), request.run.model()->parameters({.tp_size = 3}).size());
          EXPECT_EQ(step.busiest_rank.reduced > 0, true);
        }
      }
}

// The plan of each block equals that of a block measured alone.
TEST(PlanSizes, OfEqualBlocksAreThoseOfTheFirst) {
  models::DecoderConfig model = even_model();
  model.num_layers = 3;
  model.num_kv_heads = 1;  // this parameter overlaps over tp
  predict::DryStep dry;
  dry.parameters = models::LlamaConfig(model).parameters({.tp_size = 3, .partial_norms = true});
  dry.cuts = {{.parts = 2, .replicas = 2}};
  const std::vector<shard::ParameterSpec>& specs = dry.parameters;
  const std::vector<predict::PlannedParameter> planned = planned_parameters(dry, {});
  ASSERT_EQ(planned.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const predict::PlannedParameter own = predict::planned_parameter(specs[i], {}, dry.cuts.front());
    EXPECT_EQ(planned[i].size.name, specs[i].name);
    EXPECT_EQ(planned[i].size.gathered, own.size.gathered);
    EXPECT_EQ(planned[i].size.staging, own.size.staging);
    EXPECT_EQ(planned[i].gather_total, own.gather_total);
    EXPECT_EQ(planned[i].reduce_total, own.reduce_total);
  }
}

TEST(PlanAgainstARun, EventsBytesAndArenasAreThoseOfTheRun) {
  using Settings = std::map<std::string, std::string>;
  for (const Settings& mesh :
       {Settings{{"gtp", "3"}, {"global_batch", "6"}, {"recompute", "selective"}},
        Settings{{"gtp", "2"}, {"dp", "2"}, {"global_batch", "8"}, {"recompute", "full"}},
        Settings{{"gtp", "2"}, {"dp", "3"}, {"global_batch", "6"}},  // the sizes of norms are not divisible by 3
        Settings{{"tp", "2"}, {"dp", "7"}, {"global_batch", "7"}, {"zero", "off"}},
        Settings{{"gtp", "2"}, {"recompute", "auto"}, {"activation_budget", "4000"}},
        Settings{{"tp", "2"}, {"gtp", "2"}, {"sequence_parallel", "off"}},
        Settings{{"tp", "2"}, {"gtp", "2"}, {"tp_overlap", "off"}},
        Settings{{"tp", "2"}, {"gtp", "2"}, {"sequence_parallel", "on"}, {"tp_overlap", "on"}, {"tp_chunks", "2"}},
        Settings{{"tp", "2"}, {"gtp", "3"}, {"global_batch", "6"}, {"embedding", "rows"}},
        Settings{{"dtype", "bf16"}, {"gtp", "2"}, {"dp", "2"}, {"wire_format", "nvfp4"}},
        Settings{{"dtype", "bf16"},
                 {"tp", "2"},
                 {"gtp", "2"},
                 {"wire_format", "mxfp8"},
                 {"wire_rules", "layers.1.*=fp8,layers.0.mlp.*=bf16"}},
        Settings{{"dtype", "bf16"}, {"dp", "2"}, {"wire_format", "fp8"}},
        Settings{{"dtype", "bf16"}, {"tp", "2"}, {"gemm_format", "nvfp4"}, {"tp_wire_format", "nvfp4"}},
        Settings{{"dtype", "bf16"}, {"gtp", "2"}, {"tp", "2"}, {"wire_format", "mxfp8"}, {"gemm_format", "mxfp8"}},
        Settings{{"dtype", "bf16"},
                 {"tp", "2"},
                 {"gtp", "2"},
                 {"sequence_parallel", "on"},
                 {"gemm_format", "fp8"},
                 {"tp_wire_format", "fp8"},
                 {"wire_format_backward", "fp8"}}}) {
    models::DecoderConfig model = even_model();
    model.tie_word_embeddings = mesh.contains("dp");
    if (!mesh.contains("tp") && !mesh.contains("wire_format")) model.hidden_size = 7;
    StepPlanRequest request = request_of(mesh, model);
    for (const std::int64_t budget : {schedule::kMinimum, schedule::kUnlimited})
      for (const std::int64_t coalesced : {0, 1500}) {
        request.gather_budget = request.reduce_budget = budget;
        request.coalesce_bytes = coalesced;
        expect_as_planned(request);
      }
  }
}

// The time grows with the number of ranks. If it grew with the square, this test would take minutes.
TEST(PlanOfManyRanks, CountsTheBytesOfAllRanks) {
  const int ranks = 16384;
  for (const std::string axis : {"gtp", "dp"}) {
    const StepPlan step = plan_step(request_of({{axis, std::to_string(ranks)}}));
    // Every rank but the owner receives an element of a gathered or updated weight.
    const std::int64_t matrices = 1216 * 4, norms = 5 * 8 * 4;
    EXPECT_EQ(step.all_ranks.gathered % (ranks - 1), 0) << axis;
    EXPECT_GE(step.all_ranks.gathered, (ranks - 1) * matrices) << axis;
    EXPECT_GE(step.all_ranks.reduced, (ranks - 1) * (matrices + norms)) << axis;
  }
}

TEST(PlanReport, HoldsTheWholeScheduleAsJson) {
  const StepPlanRequest request = request_of({{"gtp", "2"}, {"global_batch", "4"}});
  const StepPlan step = plan_step(request);
  const ordered_json report = plan_json(request, step);
  EXPECT_EQ(report["mesh"], (ordered_json{{"ranks", 2}, {"tp", 1}, {"gtp", 2}, {"dp", 1}}));
  EXPECT_EQ(report["microbatches"], 2);
  EXPECT_EQ(report["tokens"], 24);
  EXPECT_EQ(report["traffic"]["gathered_bytes"], step.busiest_rank.gathered);
  EXPECT_EQ(report["memory_bytes"]["total"], step.memory.total());
  EXPECT_DOUBLE_EQ(report["predicted"]["step_ms"], step.prediction.step_seconds * 1e3);
  ASSERT_EQ(report["gathers"].size(), step.schedule.residencies.size());
  ASSERT_EQ(report["reductions"].size(), 2u * 15);  // 15 parameters in each of two microbatches
  EXPECT_EQ(report["gathers"][0]["weights"], "embedding.weight");
  EXPECT_EQ(report["gathers"][0]["wait"], 0);
  EXPECT_EQ(report["gathers"][0]["bytes"], 512);
  EXPECT_EQ(report["reductions"][0]["weights"], "output.weight");

  const std::string text = plan_head(request, step) + plan_details(request, step, 3);
  EXPECT_THAT(text, HasSubstr("2 ranks (tp 1 x gtp 2 x dp 1)"));
  EXPECT_THAT(text, HasSubstr("train mb 0 forward consume embedding.weight (0)"));
  EXPECT_THAT(text, HasSubstr(fmt::format("... {} more (--rows)", report["gathers"].size() - 3)));
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1'250'000), "1.25 MB");
}

TEST(PlanTimeline, HasARowPerLaneAndNamedTransfers) {
  const StepPlan step = plan_step(request_of({{"gtp", "2"}, {"dp", "2"}}));
  std::map<std::string, int> spans;
  std::map<int, std::string> rows;
  const ordered_json timeline = timeline_json(step);
  for (const ordered_json& event : timeline["traceEvents"]) {
    if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "M") continue;
    ASSERT_EQ(event["ph"], "X");
    const auto category = event["cat"].get<std::string>();
    EXPECT_EQ(rows[event["tid"]], category == "publish" ? "replicas" : category);
    EXPECT_GE(event["ts"].get<double>(), 0);
    ++spans[event["cat"].get<std::string>()];
    if (event["cat"] != "compute") {
      EXPECT_GT(event["args"]["bytes"].get<std::int64_t>(), 0) << event.dump();
      EXPECT_THAT(event["name"].get<std::string>(), HasSubstr(event["args"]["weights"][0].get<std::string>()));
    }
  }
  EXPECT_EQ(spans["gather"], static_cast<int>(step.schedule.residencies.size()));
  EXPECT_EQ(spans["reduce"], 15);
  EXPECT_EQ(spans["replicas"], 15);
  EXPECT_GT(spans["compute"], 50);
}

}  // namespace
}  // namespace tessera::plan
