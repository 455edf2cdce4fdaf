// Plans the communication of a step, prints the schedule and proves it. The program then moves one gather so that it
// overwrites a weight in use, and the proof fails. No tensor, no GPU and no communication is needed.
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/schedule/check/check.h"
#include "tessera/schedule/plan/plan.h"

namespace {

using namespace tessera::schedule;
using tessera::mesh::Transfer;

constexpr int kLayers = 4;
constexpr std::int64_t kMiB = 1 << 20;

// Each layer uses its weight in the forward and in the backward pass, where it also produces its gradient. After the
// microbatch the optimizer publishes new weights.
Trace make_trace() {
  Trace trace;
  const auto add = [&](EventKind kind, Pass pass, ParameterId weight, int microbatch) {
    trace.push_back({.kind = kind, .microbatch = microbatch, .pass = pass, .parameter = weight});
  };
  for (ParameterId layer = 0; layer < kLayers; ++layer) {
    add(EventKind::consume, Pass::forward, layer, 0);
    add(EventKind::release, Pass::forward, layer, 0);
  }
  for (ParameterId layer = kLayers - 1; layer >= 0; --layer) {
    add(EventKind::consume, Pass::backward, layer, 0);
    add(EventKind::release, Pass::backward, layer, 0);
    add(EventKind::produce, Pass::backward, layer, 0);
  }
  for (ParameterId layer = 0; layer < kLayers; ++layer) add(EventKind::publish, Pass::forward, layer, -1);
  return trace;
}

// Layer i has i + 1 MiB, of which other ranks hold three quarters.
std::vector<ParameterSize> make_sizes() {
  std::vector<ParameterSize> sizes;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::int64_t bytes = (layer + 1) * kMiB;
    sizes.push_back({.name = "layer " + std::to_string(layer),
                     .gathered = bytes,
                     .staging = bytes,
                     .gather = {{.transfer = Transfer::gather, .bytes = bytes / 4 * 3}},
                     .reduce = {{.transfer = Transfer::reduce, .bytes = bytes / 4 * 3}}});
  }
  return sizes;
}

void print(const Schedule& schedule, const Trace& trace, const std::vector<ParameterSize>& sizes) {
  std::vector<std::string> names;
  for (const ParameterSize& size : sizes) names.push_back(size.name);
  for (std::size_t i = 0; i < trace.size(); ++i)
    std::printf("%3d  %s\n", schedule.position_of(static_cast<int>(i)), to_string(trace[i], names).c_str());
  std::printf("gather arena: %.1f MiB\n", static_cast<double>(schedule.gather_arena) / kMiB);
  for (const Residency& residency : schedule.residencies)
    std::printf(
        "  %s: issued at position %d, needed at %d, released at %d, bytes from %.1f MiB\n",
        names[static_cast<std::size_t>(schedule.gather_units[static_cast<std::size_t>(residency.unit)][0])].c_str(),
        residency.issue, residency.wait, residency.last, static_cast<double>(residency.offset) / kMiB);
}

}  // namespace

int main() {
  const Trace trace = make_trace();
  const std::vector<ParameterSize> sizes = make_sizes();
  Schedule schedule = plan(trace, sizes, {.gather_budget = 8 * kMiB, .reduce_budget = 8 * kMiB});
  print(schedule, trace, sizes);

  const std::vector<std::string> faults = check(trace, sizes, schedule);
  for (const std::string& fault : faults) std::printf("fault: %s\n", fault.c_str());
  if (!faults.empty()) return 1;
  std::printf("proved: no weight is overwritten while it is in use, for every timing\n");

  // Two weights that are needed at neighbouring times now share their bytes.
  schedule.residencies[1].offset = schedule.residencies[0].offset;
  const std::vector<std::string> found = check(trace, sizes, schedule);
  std::printf("after a wrong change: %s\n", found.empty() ? "no fault found" : found.front().c_str());
  return found.empty() ? 1 : 0;
}
