// Runs of meshes with dead places against uniform runs, over a pairwise covering set of models, meshes and options. The
// seed is printed. TESSERA_COVER_SEED sets it; TESSERA_COVER_SETS repeats the set with further
// seeds and runs of 20 steps.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "tests/train/compare_runs.h"
#include "tests/train/pairwise.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using testing::RunOptions;
using testing::RunResult;

constexpr int kMaxRanks = 16;

// The choices of one run. Index: factor.
using Choice = std::vector<int>;
enum Factor { kModel, kTied, kTp, kGtp, kDp, kDead, kSequence, kZero, kRecompute, kClip, kCoalesce, kFactors };
const std::vector<int> kLevels{3, 2, 4, 3, 3, 5, 2, 2, 3, 2, 2};  // number of values of each factor
constexpr int kTps[] = {2, 3, 4, 8};

int value(const Choice& choice, Factor factor) {
  return choice[static_cast<std::size_t>(factor)];
}

// Returns the dead places for a value of the factor. 0: one slot. 1: two slots of one tp group. 2: any two places. 3:
// the same slot of every tp group. 4: a slot and, with several tp groups, all places of another tp group. Returns an
// empty list if the mesh cannot have these dead places.
std::vector<int> dead_of(const Choice& choice, std::mt19937& random) {
  const int tp = kTps[value(choice, kTp)], gtp = value(choice, kGtp) + 1, dp = value(choice, kDp) + 1;
  const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
  const int groups = gtp * dp, group = below(groups), slot = below(tp);
  std::set<int> dead{group * tp + slot};
  switch (value(choice, kDead)) {
    case 0:
      break;
    case 1:
      if (tp == 2) return {};
      while (dead.size() < 2) dead.insert(group * tp + below(tp));
      break;
    case 2:
      while (dead.size() < 2) dead.insert(below(groups * tp));
      break;
    case 3:
      for (int other = 0; other < groups; ++other) dead.insert(other * tp + slot);
      break;
    case 4:
      if (gtp == 1) return {};
      for (int other = 0; other < tp; ++other) dead.insert((group / gtp * gtp + (group + 1) % gtp) * tp + other);
      break;
  }
  if (groups * tp - static_cast<int>(dead.size()) > kMaxRanks) return {};
  // Replicas without ranks have a separate test.
  for (int replica = 0; replica < dp; ++replica) {
    int lost = 0;
    for (const int place : dead) lost += place / (tp * gtp) == replica ? 1 : 0;
    if (lost == tp * gtp) return {};
  }
  return {dead.begin(), dead.end()};
}

struct Case {
  Choice choice;
  std::vector<int> dead;
};

// Returns cases that cover many pairs of values. Each new case is the one of 300 random cases that covers the most new
// pairs. Stops after three attempts without a new pair.
std::vector<Case> covering_set(unsigned seed) {
  std::mt19937 random(seed);
  std::set<std::array<int, 4>> covered;
  const auto new_pairs = [&](const Choice& choice, bool add) {
    int count = 0;
    for (int a = 0; a < kFactors; ++a)
      for (int b = a + 1; b < kFactors; ++b) {
        const std::array<int, 4> pair{a, choice[static_cast<std::size_t>(a)], b, choice[static_cast<std::size_t>(b)]};
        if (covered.contains(pair)) continue;
        ++count;
        if (add) covered.insert(pair);
      }
    return count;
  };
  std::vector<Case> cases;
  for (int misses = 0; misses < 3;) {
    Case best;
    int most = 0;
    for (int trial = 0; trial < 300; ++trial) {
      Choice choice;
      for (const int levels : kLevels) choice.push_back(static_cast<int>(random() % static_cast<unsigned>(levels)));
      const int count = new_pairs(choice, false);
      if (count <= most) continue;
      const std::vector<int> dead = dead_of(choice, random);
      if (dead.empty()) continue;
      most = count;
      best = {choice, dead};
    }
    if (most == 0) {
      ++misses;
      continue;
    }
    new_pairs(best.choice, true);
    cases.push_back(best);
  }
  return cases;
}

models::DecoderConfig model_of(const Choice& choice) {
  models::DecoderConfig model = value(choice, kModel) == 0   ? testing::odd_model()
                                : value(choice, kModel) == 1 ? testing::biased_model()
                                                             : testing::normed_model();
  model.num_heads = 9, model.num_kv_heads = 3, model.num_layers = 1;
  model.tie_word_embeddings = value(choice, kTied) == 1;
  return model;
}

RunOptions options_of(const Choice& choice) {
  const int dp = value(choice, kDp) + 1;
  RunOptions options{.model = model_of(choice),
                     .dp = dp,
                     .dtype = quant::DType::fp64,
                     .blocks = 6 * dp,
                     .steps = std::getenv("TESSERA_COVER_SETS") == nullptr ? 5 : 20};
  options.seq_len = 5;
  options.clip = value(choice, kClip) == 0 ? 1.0 : 0.05;
  return options;
}

void check(const Case& it, std::map<Choice, RunResult>& uniform) {
  const Choice& choice = it.choice;
  RunOptions options = options_of(choice);
  const Choice key{value(choice, kModel), value(choice, kTied), value(choice, kDp), value(choice, kClip)};
  if (!uniform.contains(key)) uniform[key] = testing::run(options);
  const mesh::Grid grid{{"a", kTps[value(choice, kTp)]}, {"b", value(choice, kGtp) + 1}, {"c", options.dp}};
  options.ranks = {.mesh = mesh::Mesh({grid}, mesh::live_places(grid, it.dead)),
                   .domains = {{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}}}};
  options.sequence_parallel = value(choice, kSequence) == 1;
  options.zero = value(choice, kZero) == 1;
  options.recompute = static_cast<nn::Recompute>(value(choice, kRecompute));
  options.coalesce_bytes = value(choice, kCoalesce) == 1 ? 1 << 20 : 0;
  testing::expect_within_fp64_bounds(
      uniform[key], testing::run(options),
      fmt::format("{}, dead {}, choice {}", to_string(grid), fmt::join(it.dead, ","), fmt::join(choice, " ")));
}

TEST(AdoptionCover, HasTheNumbersOfUniformRuns) {
  const unsigned first = testing::number_of_environment("TESSERA_COVER_SEED", 1),
                 sets = testing::number_of_environment("TESSERA_COVER_SETS", 1);
  std::map<Choice, RunResult> uniform;
  for (unsigned seed = first; seed < first + sets; ++seed) {
    const std::vector<Case> cases = covering_set(seed);
    fmt::print("seed {}: {} runs cover all pairs of values\n", seed, cases.size());
    for (const Case& it : cases) check(it, uniform);
  }
}

}  // namespace
}  // namespace tessera::train
