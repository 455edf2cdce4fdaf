#include "tessera/telemetry/plot/ticks.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::telemetry {
namespace {

// Returns the smallest of 1, 2, 5 times a power of 10 that is at least `least`, or 0 if a double cannot hold it.
double round_unit(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (factor * power >= least) return std::isfinite(factor * power) ? factor * power : 0;
  return 0;
}

std::vector<double> linear_ticks(const ValueRange& range, int most) {
  const double unit = round_unit(range.high / most - range.low / most);
  std::vector<double> ticks;
  if (unit <= 0) return ticks;
  const double first = std::ceil(range.low / unit);
  for (int i = 0; i < most; ++i) {
    const double tick = (first + i) * unit;
    if (tick >= range.low && tick <= range.high && (ticks.empty() || tick > ticks.back())) ticks.push_back(tick);
  }
  return ticks;
}

// Returns the products of the factors and powers of 10 within the range.
std::vector<double> log_ticks(const ValueRange& range, const std::vector<double>& factors) {
  std::vector<double> ticks;
  const int last = static_cast<int>(std::floor(std::log10(range.high)));
  for (int power = static_cast<int>(std::floor(std::log10(range.low))); power <= last; ++power)
    for (const double factor : factors)
      if (const double tick = factor * std::pow(10, power); tick >= range.low && tick <= range.high)
        ticks.push_back(tick);
  return ticks;
}

// Keeps every n-th tick, with the smallest n that leaves at most `most`.
std::vector<double> thinned(const std::vector<double>& ticks, int most) {
  const std::size_t stride = (ticks.size() + static_cast<std::size_t>(most) - 1) / static_cast<std::size_t>(most);
  std::vector<double> kept;
  for (std::size_t i = 0; i < ticks.size(); i += stride) kept.push_back(ticks[i]);
  return kept;
}

}  // namespace

std::vector<std::int64_t> step_ticks(const StepRange& steps, int most) {
  const std::uint64_t span = static_cast<std::uint64_t>(steps.last) - static_cast<std::uint64_t>(steps.first);
  std::uint64_t unit = 1;
  for (int i = 0; span / unit >= static_cast<std::uint64_t>(most) && unit <= span / 2; ++i)
    unit = i % 3 == 1 ? unit / 2 * 5 : unit * 2;  // 1, 2, 5, 10
  std::vector<std::int64_t> ticks;
  const auto step = static_cast<std::int64_t>(std::min<std::uint64_t>(unit, std::numeric_limits<std::int64_t>::max()));
  const std::int64_t rest = steps.first % step;
  std::uint64_t to_tick = static_cast<std::uint64_t>(rest > 0 ? step - rest : -rest);  // distance from the first step
  for (; to_tick <= span && static_cast<int>(ticks.size()) < most; to_tick += static_cast<std::uint64_t>(step))
    ticks.push_back(static_cast<std::int64_t>(static_cast<std::uint64_t>(steps.first) + to_tick));
  return ticks;
}

std::vector<double> value_ticks(const ValueRange& range, int most) {
  if (range.is_log) {
    if (const std::vector<double> powers = log_ticks(range, {1}); powers.size() > 1) return thinned(powers, most);
    if (const std::vector<double> more = log_ticks(range, {1, 2, 5}); more.size() > 1) return thinned(more, most);
  }
  return linear_ticks(range, most);
}

}  // namespace tessera::telemetry
