// Tests the meshes of `tessera plan --search`.
#include "tessera/plan/search/mesh_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/plan/plan_report.h"
#include "tessera/plan/search/plan_flags.h"
#include "tessera/plan/search/progress_lines.h"
#include "tessera/plan/search/search_report.h"
#include "tessera/predict/model_flops.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/trainer_options.h"
#include "tests/plan/plan_testing.h"
#include "tests/settings/config_test_support.h"

namespace tessera::plan {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Search {
  StepPlanRequest request;
  settings::TrainConfig asked;
};

// Returns a search as plan_command_inputs makes it, for the small model and machine of plan_testing.h.
Search search_of(const std::map<std::string, std::string>& settings,
                 const models::DecoderConfig& model = even_model()) {
  Search search{.request = request_of({}, model), .asked = settings_of(settings)};
  search.asked.model = "even";
  return search;
}

std::vector<MeshPlan> meshes_of(const Search& search, int threads, const SearchProgress& progress = {}) {
  return search_meshes(search.request, search.asked, threads, progress);
}

std::string names_of(const std::vector<MeshPlan>& meshes) {
  std::set<std::string> names;
  for (const MeshPlan& mesh : meshes) names.insert(degrees_text(mesh.run.degrees()));
  std::string text;
  for (const std::string& name : names) text += name + "; ";
  return text;
}

TEST(MeshSearch, ListsEveryMeshBestFirst) {
  const std::vector<MeshPlan> meshes = meshes_of(search_of({{"ranks", "4"}, {"global_batch", "8"}}), 1);
  EXPECT_EQ(names_of(meshes),
            "tp 1 x gtp 1 x dp 4; tp 1 x gtp 2 x dp 2; tp 1 x gtp 4 x dp 1; tp 2 x gtp 1 x dp 2; tp 2 x gtp 2 x dp 1; "
            "tp 4 x gtp 1 x dp 1; ");
  for (std::size_t i = 1; i < meshes.size(); ++i)
    EXPECT_LE(meshes[i - 1].seconds.total(), meshes[i].seconds.total()) << i;
  for (const MeshPlan& mesh : meshes) {
    EXPECT_EQ(mesh.run->global_batch, 8);
    EXPECT_EQ(mesh.run.splits_tokens(), mesh.run->mesh.tp > 1);
  }
}

TEST(MeshSearch, MeshesThatTheBatchDoesNotFillAreLeftOut) {
  EXPECT_EQ(names_of(meshes_of(search_of({{"ranks", "4"}, {"global_batch", "6"}}), 1)),
            "tp 2 x gtp 1 x dp 2; tp 2 x gtp 2 x dp 1; tp 4 x gtp 1 x dp 1; ");
  EXPECT_THAT(base::refusal([] {
                meshes_of(search_of({{"ranks", "4"}, {"global_batch", "6"}, {"tp", "1"}}), 1);
              }),
              HasSubstr("--global-batch 6 is not a multiple of --micro-batch 1 * gtp * dp"));
  EXPECT_THAT(base::refusal([] {
                meshes_of(search_of({{"ranks", "4"}, {"global_batch", "6"}, {"dp", "3"}}), 1);
              }),
              HasSubstr("--ranks: got 4, expected a multiple of --dp 3"));
}

TEST(MeshSearch, GivenDegreesAreKept) {
  EXPECT_EQ(names_of(meshes_of(search_of({{"ranks", "12"}, {"global_batch", "12"}, {"gtp", "3"}}), 1)),
            "tp 1 x gtp 3 x dp 4; tp 2 x gtp 3 x dp 2; tp 4 x gtp 3 x dp 1; ");
  const auto full = meshes_of(search_of({{"ranks", "2"}, {"global_batch", "2"}, {"recompute", "full"}}), 1);
  for (const MeshPlan& mesh : full) EXPECT_EQ(mesh.run->recompute, settings::RecomputeSetting::full);
}

// A row of the search equals the plan of its mesh. For many microbatches, the search extrapolates the time of a step.
// After some microbatches, transfers are in a steady state, and each further microbatch takes the same time. The bound
// covers the difference of the first microbatches.
TEST(MeshSearch, RowsAreThePlansOfTheirMeshes) {
  for (const char* batch : {"8", "64"}) {
    const Search search = search_of({{"ranks", "4"}, {"global_batch", batch}});
    StepPlanRequest request = search.request;
    for (const MeshPlan& mesh : meshes_of(search, 1)) {
      request.run = mesh.run;
      const StepPlan step = plan_step(request);
      const double exact = mesh.run.microbatches() <= kPlannedMicrobatches ? 1e-12 : 0.02;
      EXPECT_NEAR(mesh.seconds.total() / step.prediction.step_seconds, 1, exact) << flags_text(mesh.run) << batch;
      EXPECT_NEAR(mesh.seconds.compute / step.prediction.compute_seconds, 1, 1e-9) << flags_text(mesh.run);
    }
  }
}

TEST(MeshSearch, MeshesThatFitComeFirst) {
  Search search = search_of({{"ranks", "4"}, {"global_batch", "8"}});
  const std::vector<MeshPlan> all = meshes_of(search, 1);
  std::int64_t least = all.front().memory.total(), most = least;
  for (const MeshPlan& mesh : all) {
    least = std::min(least, mesh.memory.total());
    most = std::max(most, mesh.memory.total());
  }
  ASSERT_LT(least, most);
  search.request.machine.memory_bytes = (least + most) / 2;
  const std::vector<MeshPlan> meshes = meshes_of(search, 1);
  EXPECT_TRUE(meshes.front().fits());
  EXPECT_FALSE(meshes.back().fits());
  EXPECT_TRUE(std::ranges::is_sorted(meshes, std::greater{}, &MeshPlan::fits));
  for (const MeshPlan& mesh : meshes)
    EXPECT_EQ(mesh.missing, std::max<std::int64_t>(0, mesh.memory.total() - usable_bytes(search.request)))
        << flags_text(mesh.run);
}

TEST(MeshSearch, IfNoMeshFitsTheFewestMissingBytesComeFirst) {
  Search search = search_of({{"ranks", "4"}, {"global_batch", "8"}});
  StepPlanRequest& request = search.request;
  request.machine.memory_bytes = 1000;
  const std::vector<MeshPlan> none = meshes_of(search, 1);
  EXPECT_TRUE(std::ranges::is_sorted(none, {}, &MeshPlan::missing));
  EXPECT_FALSE(std::ranges::is_sorted(none, {}, [](const MeshPlan& mesh) { return mesh.seconds.total(); }));
  for (const MeshPlan& mesh : none) {
    EXPECT_EQ(mesh.missing, mesh.memory.total() - 970);  // 3 % are left free
    for (const auto policy :
         {settings::RecomputeSetting::none, settings::RecomputeSetting::selective, settings::RecomputeSetting::full}) {
      settings::TrainConfig other = mesh.run.stored();
      other.recompute = policy;
      request.run = settings::resolve(other, mesh.run.model(), settings::Use::plan);
      EXPECT_LE(mesh.missing, plan_mesh(request).missing);
    }
  }
  EXPECT_EQ(reason_for(none), fmt::format("No mesh fits. {} lacks the fewest bytes: a rank needs {}, which is {} more "
                                          "than it may use.",
                                          degrees_text(none.front().run.degrees()),
                                          bytes_text(none.front().memory.total()), bytes_text(none.front().missing)));
  const ordered_json report = search_json(request, none);
  EXPECT_EQ(report["fits"], false);
  EXPECT_EQ(report["usable_bytes"], 970);
  EXPECT_EQ(report["meshes"][0]["missing_bytes"], none.front().missing);
  EXPECT_THAT(search_text(request, none, 1),
              HasSubstr("6 meshes, none fits, the fewest missing bytes first; a rank may use 970 B"));
}

TEST(MeshSearch, ReportsItsProgress) {
  std::vector<std::size_t> planned;
  const auto meshes =
      meshes_of(search_of({{"ranks", "8"}, {"global_batch", "8"}}), 3, [&](std::size_t done, std::size_t all) {
        planned.push_back(done);
        EXPECT_EQ(all, 9u);
      });
  EXPECT_THAT(planned, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(meshes.size(), 9u);
}

TEST(ProgressLines, AreDueAfter2SecondsAndThenEvery10) {
  ProgressLines lines("meshes");
  EXPECT_EQ(lines.next(1, 40, 1.9), std::nullopt);
  EXPECT_EQ(lines.next(2, 40, 2.4), "planned 2 of 40 meshes in 2 s");
  EXPECT_EQ(lines.next(3, 40, 12), std::nullopt);
  EXPECT_EQ(lines.next(4, 40, 12.6), "planned 4 of 40 meshes in 13 s");
  EXPECT_EQ(lines.next(40, 40, 60), std::nullopt) << "the table follows";
}

TEST(MeshSearch, ThreadsDoNotChangeTheResult) {
  const Search search = search_of({{"ranks", "8"}, {"global_batch", "16"}});
  const StepPlanRequest& request = search.request;
  EXPECT_EQ(search_json(request, meshes_of(search, 1)), search_json(request, meshes_of(search, 3)));
}

// Links without cost leave only operators, and tp 4 computes uneven parts of 2 key/value heads.
TEST(MeshSearch, TheReasonNamesTheLargestDifference) {
  MeshPlan first{.run = request_of({{"tp", "2"}}).run, .seconds = {}, .memory = {}};
  MeshPlan second{.run = request_of({{"gtp", "2"}}).run, .seconds = {}, .memory = {}};
  first.seconds = {.compute = 0.010, .gathers = 0.001, .activations = 0.002};
  second.seconds = {.compute = 0.009, .gathers = 0.011};
  EXPECT_EQ(reason_for({first, second}),
            "tp 2 x gtp 1 x dp 1 is 7 ms (35.0 %) faster than tp 1 x gtp 2 x dp 1 because waits for weights take "
            "10 ms less, although waits for activations take 2 ms more.");
  second.missing = 1000;
  first.memory.weights = 1000, second.memory.weights = 3000;
  EXPECT_EQ(reason_for({first, second}),
            "Only tp 2 x gtp 1 x dp 1 fits: a rank needs 1.00 KB, and 3.00 KB with tp 1 x gtp 2 x dp 1.");
  EXPECT_THAT(reason_for({first}), HasSubstr("the only mesh"));
  EXPECT_EQ(reason_for({second}),
            "No mesh fits. tp 1 x gtp 2 x dp 1 lacks the fewest bytes: a rank needs 3.00 KB, which "
            "is 1.00 KB more than it may use.");
}

TEST(MeshSearch, ExpertsAreShardedOverTheWholeReplica) {
  const auto meshes = meshes_of(search_of({{"ranks", "4"}, {"global_batch", "4"}}, sparse_model()), 1);
  EXPECT_EQ(meshes.size(), 6u);
  for (const MeshPlan& mesh : meshes)
    EXPECT_EQ(mesh.run->mesh.etp * mesh.run->mesh.ep * mesh.run->mesh.egtp, mesh.run->mesh.tp * mesh.run->mesh.gtp);
  const auto given = meshes_of(
      search_of({{"ranks", "4"}, {"global_batch", "4"}, {"tp", "1"}, {"gtp", "4"}, {"ep", "2"}}, sparse_model()), 1);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given.front().run->mesh.ep, 2);
  EXPECT_EQ(given.front().run->mesh.egtp, 2);
  EXPECT_THAT(base::refusal([] {
                meshes_of(search_of({{"ranks", "4"}, {"global_batch", "4"}, {"ep", "3"}}, sparse_model()), 1);
              }),
              HasSubstr("--search: no mesh of --ranks 4 is possible, for example tp 1 x gtp 1 x dp 4: experts: "));
}

// An expert has 10 columns. At etp 2 a rank has 5, which 4-bit elements do not allow.
TEST(MeshSearch, ExpertDegreesThatAFormatDoesNotAllowAreLeftOut) {
  std::map<std::string, std::string> settings{
      {"ranks", "2"}, {"global_batch", "2"}, {"tp", "2"}, {"dtype", "bf16"}, {"wire_format", "nvfp4"}};
  const auto meshes = meshes_of(search_of(settings, sparse_model()), 1);
  ASSERT_EQ(meshes.size(), 1u);
  EXPECT_EQ(meshes.front().run->mesh.etp, 1);
  EXPECT_EQ(meshes.front().run->mesh.ep, 2);
  settings["etp"] = "2";
  EXPECT_THAT(base::refusal([&] { meshes_of(search_of(settings, sparse_model()), 1); }),
              HasSubstr("4-bit formats need an even number of columns on each compute rank, got 5"));
}

TEST(MeshSearch, JsonHasTheFiguresOfEachMesh) {
  const Search search = search_of({{"ranks", "2"}, {"global_batch", "2"}});
  const StepPlanRequest& request = search.request;
  const ordered_json report = search_json(request, meshes_of(search, 1));
  ASSERT_EQ(report["meshes"].size(), 3u);
  for (const ordered_json& row : report["meshes"]) {
    EXPECT_EQ(row["tp"].get<int>() * row["gtp"].get<int>() * row["dp"].get<int>(), 2);
    const double step = row["step_ms"];
    EXPECT_NEAR(row["tokens_per_second"].get<double>(), 2 * 6 / step * 1e3, 1e-6 * 2 * 6 / step * 1e3);
    EXPECT_NEAR(row["compute_ms"].get<double>() + row["exposed_ms"]["total"].get<double>(), step, 1e-9 * step);
    std::int64_t sum = 0;
    for (const auto& [kind, bytes] : row["memory_bytes"].items())
      if (kind != "total") sum += bytes.get<std::int64_t>();
    EXPECT_EQ(sum, row["memory_bytes"]["total"]);
    // The machine has 1e9 flops a second and rank.
    const double flops = settings::model_flops(meshes_of(search, 1).front().run);
    EXPECT_NEAR(row["mfu"].get<double>(), flops / (step * 1e-3 * 2 * 1e9), 1e-9);
  }
  EXPECT_THAT(search_text(request, meshes_of(search, 1), 1),
              AllOf(HasSubstr("... 2 more (--rows)"), HasSubstr("memory of a rank, MB"), HasSubstr("activ.  other")));
}

TEST(MoreMicrobatches, AddTheDifferenceAndNeverANegativeTime) {
  StepSeconds longer{.compute = 3, .gathers = 1, .gradients = 0.5, .activations = 0, .slowest = 0.25};
  add_microbatches({.compute = 2, .gathers = 1, .gradients = 0.5, .activations = 1e-9, .slowest = 0.25}, 4, longer);
  EXPECT_EQ(longer.compute, 7);
  EXPECT_EQ(longer.gathers, 1);
  EXPECT_EQ(longer.activations, 0);
}

// Products of 1216 - 128 weights (the embedding is read by index): 6 flops for each token and weight. Causal attention
// of one sequence of 6 tokens, 4 heads of 2: forward 2 products of 6 x 6 x 2 / 2 multiplications and additions for each
// head; backward 2.5 times as much.
TEST(ModelFlops, AreThoseOfProductsAndCausalAttention) {
  const auto flops = [](const char* recompute) {
    return settings::model_flops(
        request_of({{"tp", "2"}, {"gtp", "2"}, {"global_batch", "12"}, {"recompute", recompute}}).run);
  };
  const double products = 6.0 * 6 * (1216 - 128), attention = 2 * 3.5 * 2 * (2.0 * 6 * 6 * 2 / 2) * 4;
  EXPECT_DOUBLE_EQ(flops("none"), 12 * (products + attention));
  EXPECT_DOUBLE_EQ(predict::mfu_of(8e12, 2, 4, 2e12), 0.5);
  EXPECT_DOUBLE_EQ(flops("full"), flops("none"));
}

PlanCommandInputs inputs_of(const settings::SettingWords& settings, bool search) {
  return plan_command_inputs({.settings = settings, .search = search}, configs());
}

TEST(MeshSearchFlags, RanksAndTheBatchAreNeeded) {
  const settings::SettingWords model{{"model", {"llama-tiny"}}};
  EXPECT_THAT(base::refusal([&] { inputs_of(model, true); }), HasSubstr("--ranks is missing: --search needs it"));
  settings::SettingWords ranks = model;
  ranks["ranks"] = {"4"};
  EXPECT_THAT(base::refusal([&] { inputs_of(ranks, true); }), HasSubstr("--global-batch is missing"));
  EXPECT_THAT(base::refusal([&] { plan_command_inputs({.measured = "x", .search = true}, configs()); }),
              HasSubstr("--measured: got it with --search"));
}

TEST(MeshSearchFlags, RanksWithoutDegreesProposeAMesh) {
  const auto inputs = [](const settings::SettingWords& settings, bool may_propose = true) {
    return plan_command_inputs({.settings = settings, .may_propose = may_propose}, configs());
  };
  const settings::SettingWords ranks{{"model", {"llama-tiny"}}, {"ranks", {"4"}}};
  EXPECT_TRUE(inputs(ranks).propose);
  EXPECT_EQ(inputs(ranks).search.value().global_batch, 4);
  EXPECT_EQ(inputs(ranks, false).request.run->mesh.dp, 4);  // benchmarks do not choose a mesh
  settings::SettingWords degrees = ranks;
  degrees["tp"] = {"2"};
  const PlanCommandInputs given = inputs(degrees);
  EXPECT_FALSE(given.search || given.propose);
  EXPECT_EQ(given.request.run->mesh.dp, 2);
  EXPECT_FALSE(inputs({{"model", {"llama-tiny"}}}).propose);
}

// The flags state the global batch, because the proposal without --global-batch has one sequence for each rank.
TEST(MeshSearchFlags, TheFlagsOfAProposalGiveThePlanOfTheProposal) {
  for (const char* ranks : {"4", "8"}) {
    const settings::SettingWords asked{{"model", {"llama-tiny"}}, {"ranks", {ranks}}};
    const PlanCommandInputs inputs = plan_command_inputs({.settings = asked, .may_propose = true}, configs());
    StepPlanRequest request = inputs.request;
    EXPECT_FALSE(request.has_given_batch);
    for (const MeshPlan& mesh : search_meshes(request, *inputs.search, 1)) {
      request.run = mesh.run;
      settings::SettingWords flags{{"model", {"llama-tiny"}}};
      std::istringstream words(flags_text(mesh.run));
      for (std::string flag, value; words >> flag >> value;) {
        std::ranges::replace(flag, '-', '_');
        flags[flag.substr(2)] = {value};
      }
      const PlanCommandInputs again = plan_command_inputs({.settings = flags, .may_propose = true}, configs());
      EXPECT_FALSE(again.propose);
      EXPECT_TRUE(again.request.has_given_batch);
      const StepPlan proposed = plan_step(request), planned = plan_step(again.request);
      EXPECT_EQ(plan_json(again.request, planned), plan_json(request, proposed)) << flags_text(mesh.run);
    }
  }
}

TEST(MeshSearchFlags, LayersReplaceThoseOfTheModel) {
  PlanCommandFlags flags{.settings = {{"model", {"llama-tiny"}}}, .layers = 3};
  EXPECT_EQ(plan_command_inputs(flags, configs()).request.run.model()->sizes().num_layers, 3);
  flags.layers = 0;
  EXPECT_THAT(base::refusal([&] { plan_command_inputs(flags, configs()); }), HasSubstr("--layers 0"));
}

}  // namespace
}  // namespace tessera::plan
