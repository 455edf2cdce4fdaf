#include "tests/train/pairwise.h"

#include <array>
#include <cstdlib>
#include <random>
#include <set>

namespace tessera::train::testing {
namespace {

using Pairs = std::set<std::array<int, 4>>;  // factor and level, twice

Pairs pairs_of(const Choice& choice) {
  Pairs pairs;
  for (std::size_t a = 0; a < choice.size(); ++a)
    for (std::size_t b = a + 1; b < choice.size(); ++b)
      pairs.insert({static_cast<int>(a), choice[a], static_cast<int>(b), choice[b]});
  return pairs;
}

}  // namespace

std::vector<Choice> pairwise_set(const std::vector<int>& levels, unsigned seed,
                                 const std::function<bool(const Choice& choice)>& is_valid) {
  std::mt19937 random(seed);
  Pairs covered;
  std::vector<Choice> choices;
  for (int misses = 0; misses < 3;) {
    Choice best;
    Pairs most;
    for (int trial = 0; trial < 200; ++trial) {
      Choice choice;
      for (const int count : levels) choice.push_back(static_cast<int>(random() % static_cast<unsigned>(count)));
      if (!is_valid(choice)) continue;
      Pairs pairs = pairs_of(choice);
      std::erase_if(pairs, [&](const auto& pair) { return covered.contains(pair); });
      if (pairs.size() <= most.size()) continue;
      best = choice;
      most = std::move(pairs);
    }
    if (most.empty()) {
      ++misses;
      continue;
    }
    covered.merge(most);
    choices.push_back(best);
  }
  return choices;
}

unsigned number_of_environment(const char* variable, unsigned otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

}  // namespace tessera::train::testing
