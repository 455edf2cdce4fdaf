// Compares plans of models with experts with runs and with numbers derived by hand.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tessera/base/error.h"
#include "tessera/plan/expert_layouts.h"
#include "tessera/plan/plan_report.h"
#include "tessera/plan/search/plan_flags.h"
#include "tessera/schedule/check/check_mesh.h"
#include "tests/plan/plan_testing.h"
#include "tests/plan/planned_run.h"

namespace tessera::plan {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Settings = std::map<std::string, std::string>;

// Draws a mesh and settings that a model with 6 experts accepts.
Settings draw(std::mt19937& random) {
  const auto one_of = [&](std::vector<std::string> words) { return words[random() % words.size()]; };
  for (;;) {
    const std::int64_t tp = 1 + random() % 2, gtp = 1 + random() % 4, dp = 1 + random() % 2;
    const std::int64_t etp = 1 + random() % tp, ep = 1 + random() % 4, egtp = 1 + random() % 4;
    if (tp * gtp * dp > 8 || tp * gtp % (etp * ep * egtp) != 0 || etp * ep % tp != 0) continue;
    return {{"tp", fmt::to_string(tp)},
            {"gtp", fmt::to_string(gtp)},
            {"dp", fmt::to_string(dp)},
            {"etp", fmt::to_string(etp)},
            {"ep", fmt::to_string(ep)},
            {"egtp", fmt::to_string(egtp)},
            {"sequence_parallel", tp > 1 ? "on" : "off"},
            {"global_batch", fmt::to_string(gtp * dp * (1 + random() % 2))},
            {"dtype", one_of({"fp32", "bf16"})},
            {"zero", one_of({"on", "off"})},
            {"optimizer", one_of({"adamw", "muon"})},
            {"embedding", one_of({"gather", "rows"})},
            {"recompute", one_of({"none", "selective", "full"})}};
  }
}

TEST(PlanOfExpertsAgainstARun, OnDrawnMeshes) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (int i = 0; i < 24; ++i) {
    const Settings settings = draw(random);
    SCOPED_TRACE(fmt::format("seed {}, draw {}: {}", seed, i, ordered_json(settings).dump()));
    models::DecoderConfig model = sparse_model();
    if (random() % 2 == 0) model.hidden_size = 7, model.experts->count = 5;
    StepPlanRequest request = request_of(settings, model);
    request.gather_budget = request.reduce_budget = random() % 2 == 0 ? schedule::kMinimum : schedule::kUnlimited;
    request.coalesce_bytes = random() % 2 == 0 ? 0 : 1500;
    expect_as_planned(request);
  }
}

// Elements of dense parameters that a rank of gtp 4 keeps: of tables 256 and of each block's matrices 192, a quarter;
// of a router's 6 rows of 8 elements, 2 rows; norms 5 x 8 whole.
constexpr std::int64_t kDense = (256 + 2 * 192) / 4 + 2 * 16 + 5 * 8;

// Kept by one rank of four in fp32. Experts: 1440 elements in each layer, over ep 2 and egtp 2.
TEST(PlanOfExperts, ShowsMemoryByKind) {
  const StepPlanRequest request = request_of({{"gtp", "4"}, {"ep", "2"}, {"egtp", "2"}}, sparse_model());
  const StepPlan step = plan_step(request);
  const std::int64_t experts = 2 * 1440 / 4;
  EXPECT_EQ(step.memory.experts.weights, 4 * experts);
  EXPECT_EQ(step.memory.experts.gradients, 4 * experts);
  EXPECT_EQ(step.memory.experts.moments, 8 * experts);
  EXPECT_EQ(step.memory.experts.masters, 0);
  EXPECT_EQ(step.memory.dense.moments, 8 * kDense);
  EXPECT_EQ(step.memory.weights, 4 * (kDense + experts));
  const StepPlan bf16 =
      plan_step(request_of({{"gtp", "4"}, {"ep", "2"}, {"egtp", "2"}, {"dtype", "bf16"}}, sparse_model()));
  EXPECT_EQ(bf16.memory.experts.masters, 2 * experts);  // split
  EXPECT_EQ(bf16.memory.experts.weights, 2 * experts);
  EXPECT_EQ(bf16.memory.dense.masters, 2 * (kDense - 2 * 16));  // a router is its own master
  const Settings whole{{"gtp", "4"}, {"ep", "2"}, {"egtp", "2"}, {"dtype", "bf16"}, {"masters", "fp32"}};
  EXPECT_EQ(plan_step(request_of(whole, sparse_model())).memory.experts.masters, 4 * experts);

  const ordered_json report = plan_json(request, step);
  EXPECT_EQ(
      report["mesh"],
      (ordered_json{{"ranks", 4}, {"tp", 1}, {"gtp", 4}, {"dp", 1}, {"etp", 1}, {"ep", 2}, {"egtp", 2}, {"edp", 1}}));
  EXPECT_EQ(report["kept_bytes"]["experts"]["total"], 16 * experts);
  EXPECT_THAT(plan_head(request, step) + plan_details(request, step, 0),
              AllOf(HasSubstr("experts etp 1 x ep 2 x egtp 2 x edp 1 x dp 1"), HasSubstr(" M active)"),
                    HasSubstr("\n  experts 11.52 KB = weights 2.88 KB + gradients 2.88 KB + masters 0 B")));
}

// On machines with GPUs, --expert-room limits the rows of experts. Two owners of 3 experts and 2 x 6 tokens with 2
// choices: 24 rows are possible, and 12 rows are the even load. A row keeps 30 elements in each of two layers.
TEST(PlanOfExperts, KeepsTheRowsOfTheRoomOnGpus) {
  const Settings settings{{"gtp", "2"}, {"ep", "2"}, {"expert_room", "1.25"}};
  StepPlanRequest request = request_of(settings, sparse_model());
  const std::int64_t all = plan_step(request).memory.activations;
  request.machine.overhead.context_bytes = 1;
  EXPECT_EQ(all - plan_step(request).memory.activations, 2 * (24 - 15) * 30 * 4);
}

std::int64_t bytes_of(const StepPlan& step, int domain, std::string_view purpose, std::string_view over) {
  const auto found = std::ranges::find_if(step.roles, [&](const RoleBytes& role) {
    return role.domain == domain && role.purpose == purpose && role.over == over;
  });
  return found == step.roles.end() ? 0 : found->bytes;
}

// Each rank owns 720 elements of a layer's experts and stores half of them. A microbatch has 6 tokens. For each token,
// the rank receives 8 numbers from the other owner in five exchanges a layer, and 4 and 2 numbers for choices and
// weights.
TEST(PlanOfExperts, ShowsBytesByRole) {
  StepPlanRequest request = request_of({{"gtp", "4"}, {"ep", "2"}, {"egtp", "2"}}, sparse_model());
  request.gather_budget = request.reduce_budget = schedule::kUnlimited;
  const StepPlan step = plan_step(request);
  EXPECT_EQ(bytes_of(step, 1, "gather", "egtp"), 2 * 720 / 2 * 4);
  EXPECT_EQ(bytes_of(step, 1, "reduce", "egtp x edp"), 2 * 720 / 2 * 4);
  EXPECT_EQ(bytes_of(step, 1, "program", "etp x ep"), 2 * 6 * (5 * 8 + 4 + 2) * 4);
  EXPECT_EQ(bytes_of(step, 0, "reduce", "gtp"), 3 * kDense * 4);
  const ordered_json roles = plan_json(request, step)["traffic_by_role"];
  EXPECT_EQ(roles.size(), step.roles.size());
  EXPECT_EQ(roles.back()["parameters"], "experts");
}

// On this machine, links carry 1e6 bytes and processors do 1e9 operations a second. A layer's matrices have 1440
// elements: its products are 3 * 2 * 2 * 240 operations for each of 6 tokens.
TEST(PlanOfExperts, RecommendsTheShortestTimeOfALayer) {
  StepPlanRequest request = request_of({{"gtp", "2"}, {"egtp", "2"}}, sparse_model());
  const std::vector<ExpertLayout> layouts = expert_layouts(request);
  ASSERT_EQ(layouts.size(), 2U);
  const double products = 3 * 2 * 2 * 240.0 * 6 / 1e9, weights = 3 * 1440.0 / 2 * 4 / 1e6;
  const double tokens = 6 * (5 * 8 + 4 + 2) * 4 / 1e6;
  EXPECT_EQ(layouts[0].egtp, 2);
  EXPECT_NEAR(layouts[0].products_seconds, products, 1e-12);
  EXPECT_NEAR(layouts[0].weights_seconds, weights, 1e-12);
  EXPECT_EQ(layouts[0].tokens_seconds, 0);
  EXPECT_NEAR(layouts[0].total_seconds(), weights, 1e-12);
  EXPECT_EQ(layouts[1].ep, 2);
  EXPECT_EQ(layouts[1].weights_seconds, 0);
  EXPECT_NEAR(layouts[1].tokens_seconds, tokens, 1e-12);
  EXPECT_NEAR(layouts[1].total_seconds(), products + tokens, 1e-12);
  EXPECT_EQ(best_layout(layouts), 1U);
  EXPECT_THAT(reason_for(layouts), AllOf(HasSubstr("--ep 2 --egtp 1: no weights travel; tokens travel 1.1 ms"),
                                         HasSubstr("With --ep 1 --egtp 2, compute waits 8.6")));
  // Much slower processors hide the weights.
  request.machine.flops[quant::DType::fp32] = 1e6;
  EXPECT_EQ(best_layout(expert_layouts(request)), 0U);
  EXPECT_THAT(reason_for(expert_layouts(request)), HasSubstr("hidden by products"));
}

TEST(PlanOfExperts, TheLoadLengthensTheProductsOfTheBusiestOwner) {
  StepPlanRequest request = request_of({{"gtp", "4"}, {"ep", "2"}, {"egtp", "2"}}, sparse_model());
  const StepPlan even = plan_step(request);
  request.expert_load = 1.5;
  const StepPlan uneven = plan_step(request);
  const double products = 2 * 3 * 2 * 2 * 240.0 * 6 / 1e9;  // exchanges of the two layers
  EXPECT_NEAR(uneven.prediction.compute_seconds - even.prediction.compute_seconds, products / 2, 1e-12);
  EXPECT_EQ(uneven.busiest_rank.gathered, even.busiest_rank.gathered);
  request.expert_load = 3;  // one of two owners receives at most twice the mean
  const std::vector<ExpertLayout> layouts = expert_layouts(request);
  EXPECT_NEAR(layouts[1].products_seconds, 2 * layouts[0].products_seconds, 1e-12);
}

TEST(PlanOfExperts, LoadsAreChecked) {
  const auto load = [](const char* model, double value) {
    PlanCommandFlags flags{.settings = {{"model", {model}}, {"seq_len", {"8"}}}};
    flags.expert_load = value;
    return plan_command_inputs(flags, configs()).request.expert_load;
  };
  EXPECT_EQ(load("mixtral-tiny-odd", 7), 7);
  for (const double bad : {0.5, 7.5, std::nan("")})
    EXPECT_THAT([&] { load("mixtral-tiny-odd", bad); },
                ThrowsMessage<InputError>(AllOf(HasSubstr("--expert-load: got"), HasSubstr("expected 1 to 7"))));
  EXPECT_THAT([&] { load("llama-tiny-odd", 2); },
              ThrowsMessage<InputError>(HasSubstr("--expert-load: got 2, but model 'llama-tiny-odd' has no experts")));
}

// Returns how often each collective of a step is called, by its role and what it moves.
std::map<std::pair<std::string, std::string>, int> calls_with(std::int64_t experts) {
  models::DecoderConfig model = sparse_model();
  model.experts->count = experts;
  StepPlanRequest request = request_of({{"gtp", "4"}, {"ep", "2"}, {"egtp", "2"}}, model);
  request.gather_budget = request.reduce_budget = schedule::kMinimum;
  const StepPlan step = plan_step(request);
  std::vector<schedule::ParameterSize> sizes;
  for (const predict::PlannedParameter& parameter : step.parameters) sizes.push_back(parameter.size);
  const schedule::CallOrder order = call_order(step.trace, sizes, step.schedule);
  std::map<std::pair<std::string, std::string>, int> calls;
  for (const schedule::CollectiveCall& call : order.calls)
    ++calls[{order.roles[static_cast<std::size_t>(call.role)], call.what}];
  return calls;
}

// Two layers have two weights of experts each, and seven exchanges of tokens. Each pass gathers a weight once, except
// that backward finds the last weight of the forward pass still gathered. Backward reduces each gradient once.
TEST(PlanOfExperts, TransfersOfALayerDoNotDependOnTheNumberOfExperts) {
  const auto calls = calls_with(8);
  EXPECT_EQ(calls, calls_with(128));
  std::map<std::string, int> by_role;
  for (const auto& [call, count] : calls) by_role[call.first] += count;
  EXPECT_EQ(by_role.at("etp-ep"), 2 * 7);
  EXPECT_EQ(by_role.at(schedule::role_name(mesh::Transfer::gather, 1)), 2 * 2 * 2 - 1);
  EXPECT_EQ(by_role.at(schedule::role_name(mesh::Transfer::reduce, 1)), 2 * 2);
}

// Returns the calls in which the first reduction of experts has changed places with the gather of experts before it.
schedule::CallOrder swapped(schedule::CallOrder order) {
  const auto is = [&](mesh::Transfer hop) {
    return [&order, role = schedule::role_name(hop, 1)](const schedule::CollectiveCall& call) {
      return order.roles[static_cast<std::size_t>(call.role)] == role;
    };
  };
  const auto reduction = std::ranges::find_if(order.calls, is(mesh::Transfer::reduce));
  auto gather = reduction;
  while (gather != order.calls.begin() && !is(mesh::Transfer::gather)(*gather)) --gather;
  EXPECT_NE(reduction, order.calls.end());
  EXPECT_TRUE(is(mesh::Transfer::gather)(*gather));
  std::iter_swap(gather, reduction);
  return order;
}

// 16 nodes of 8 ranks. Gathers over gtp and egtp, sums over dp and dispatch over ep are in flight together.
TEST(PlanOfExperts, RanksOfManyNodesCannotDeadlock) {
  StepPlanRequest request = request_of({{"tp", "2"},
                                        {"gtp", "4"},
                                        {"dp", "16"},
                                        {"ep", "2"},
                                        {"egtp", "4"},
                                        {"sequence_parallel", "on"},
                                        {"global_batch", "128"}},
                                       sparse_model());
  request.gather_budget = request.reduce_budget = schedule::kMinimum;
  const StepPlan step = plan_step(request);
  std::vector<schedule::ParameterSize> sizes;
  for (const predict::PlannedParameter& parameter : step.parameters) sizes.push_back(parameter.size);
  const shard::RankLayout layout = dry_options_of(request).step.layout;
  const schedule::CheckedGroups groups = checked_groups(layout.mesh, layout.domains);
  const schedule::CallOrder order = call_order(step.trace, sizes, step.schedule);
  for (const char* role : {"gather", "replicas", "etp-ep"}) EXPECT_THAT(order.roles, ::testing::Contains(role));
  EXPECT_THAT(order.roles, ::testing::IsSupersetOf({schedule::role_name(mesh::Transfer::gather, 1),
                                                    schedule::role_name(mesh::Transfer::reduce, 1),
                                                    schedule::role_name(mesh::Transfer::replicas, 1)}));
  std::vector<int> order_of(128, 0);
  EXPECT_THAT(check_together(rank_orders(groups, {order}, order_of)), ::testing::IsEmpty());
  order_of[37] = 1;
  EXPECT_THAT(check_together(rank_orders(groups, {order, order}, order_of)), ::testing::IsEmpty());
  const std::vector<std::string> faults = check_together(rank_orders(groups, {order, swapped(order)}, order_of));
  ASSERT_FALSE(faults.empty());
  EXPECT_THAT(faults.front(), HasSubstr("37"));
}

// Links between nodes are slower. Experts over 4 ranks stay in a node of 4, dense weights over 8 do not.
TEST(PlanOfExperts, EachDomainUsesItsOwnLinks) {
  const StepPlanRequest request = request_of({{"gtp", "8"}, {"ep", "2"}, {"egtp", "2"}}, sparse_model());
  const StepPlan step = plan_step(request);
  for (std::size_t unit = 0; unit < step.schedule.gather_units.size(); ++unit) {
    const auto id = static_cast<std::size_t>(step.schedule.gather_units[unit].front());
    const auto bytes = static_cast<double>(bytes_over(step.parameters[id].size.gather, mesh::Transfer::gather));
    const double rate = step.parameters[id].size.domain == 1 ? 1e6 : 1e5;
    EXPECT_NEAR(step.costs.costs.seconds[mesh::Transfer::gather][unit], bytes / rate, 1e-12)
        << step.parameters[id].size.name;
  }
}

}  // namespace
}  // namespace tessera::plan
