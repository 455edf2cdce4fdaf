#include "tessera/run/pauses.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tessera::run {

std::string Pauses::add_evaluation(std::int64_t step, double seconds) {
  const auto samples = static_cast<double>(samples_after(step));
  const double trained = std::exchange(trained_, 0);
  per_sample_ = seconds / samples;
  if (has_advised_ || step == plan_.last_step || trained == 0 || seconds <= 0.1 * trained) return {};
  has_advised_ = true;
  return fmt::format(
      "the evaluation after step {} took {:.3g} s, {:.0f} % of the training time before it; with --eval-samples {} it "
      "would take about 2 %",
      step, seconds, 100 * seconds / trained, samples_of_each(0.02 * trained / seconds * samples));
}

std::int64_t Pauses::samples_after(std::int64_t step) const {
  std::int64_t samples = 0;
  for (const std::int64_t all : plan_.sets)
    samples += step < plan_.last_step && plan_.eval_samples > 0 ? std::min(all, plan_.eval_samples) : all;
  return samples;
}

double Pauses::left(std::int64_t step) const {
  double seconds = static_cast<double>(multiples_from(step, plan_.save_every) + 1) * save_.value_or(0);
  if (plan_.sets.empty()) return seconds;
  const auto between = static_cast<double>(multiples_from(step, plan_.eval_every));
  const auto samples = static_cast<double>(samples_after(0)),
             at_end = static_cast<double>(samples_after(plan_.last_step));
  return seconds + per_sample_ * (between * samples + at_end);
}

std::int64_t Pauses::samples_of_each(double all) const {
  std::vector<std::int64_t> sets = plan_.sets;
  std::ranges::sort(sets);
  double share = 0;  // of a set that is larger than its share
  for (std::size_t i = 0; i < sets.size(); ++i) {
    share = all / static_cast<double>(sets.size() - i);
    if (share < static_cast<double>(sets[i])) break;
    all -= static_cast<double>(sets[i]);
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(share));
}

std::int64_t Pauses::multiples_from(std::int64_t step, std::int64_t every) const {
  if (every == 0 || step >= plan_.last_step) return 0;
  return (plan_.last_step - 1) / every - (std::max<std::int64_t>(step, 1) - 1) / every;
}

}  // namespace tessera::run
