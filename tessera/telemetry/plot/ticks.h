// The ticks of an axis: round numbers within a range.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/telemetry/plot/panel.h"

namespace tessera::telemetry {

// Returns at most `most` steps within the range, ascending: all multiples of 1, 2 or 5 times a power of 10.
std::vector<std::int64_t> step_ticks(const StepRange& steps, int most);

// Returns at most `most` values within the range, ascending. On a linear axis: all multiples of 1, 2 or 5 times a power
// of 10. On a logarithmic axis, the first of these choices with two values: powers of 10 at equal distances; their
// multiples by 1, 2 and 5; the values of a linear axis.
std::vector<double> value_ticks(const ValueRange& range, int most);

}  // namespace tessera::telemetry
