// Checks the collectives of all classes of ranks together, for real models on meshes with dead places. Replicas update
// parts of the weights (ZeRO-1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/predict/planned_parameters.h"
#include "tessera/schedule/buckets.h"
#include "tessera/schedule/check/check_mesh.h"
#include "tessera/schedule/plan/plan.h"
#include "tests/predict/recorded_steps.h"

namespace tessera::predict {
namespace {

using schedule::EventKind, schedule::Trace;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The steps of all classes of a mesh.
struct Classes {
  shard::RankLayout layout;
  std::vector<int> class_of;  // by rank
  std::vector<Trace> traces;  // by class
  std::vector<std::vector<schedule::ParameterSize>> sizes;
};

Classes classes_on(const Case& it) {
  Classes classes{.layout = options_of(it, 0).step.layout, .class_of = {}, .traces = {}, .sizes = {}};
  classes.class_of = shard::classes_of(classes.layout.mesh, classes.layout.domains);
  for (int rank = 0; rank < static_cast<int>(classes.class_of.size()); ++rank) {
    if (classes.class_of[static_cast<std::size_t>(rank)] < static_cast<int>(classes.traces.size())) continue;
    DryOptions options = options_of(it, rank);
    options.step.runtime.zero = true;
    const DryStep dry = dry_step(options);
    classes.traces.push_back(dry.trace(it.microbatches));
    classes.sizes.emplace_back();
    for (const PlannedParameter& planned : planned_parameters(dry, options.step.types))
      classes.sizes.back().push_back(planned.size);
  }
  return classes;
}

// Returns the faults of the classes if class `changed` has another trace.
std::vector<std::string> faults_of(const Classes& classes, int changed = -1, const Trace& trace = {}) {
  std::vector<schedule::CallOrder> orders;
  for (int its_class = 0; its_class < static_cast<int>(classes.traces.size()); ++its_class) {
    const auto& sizes = classes.sizes[static_cast<std::size_t>(its_class)];
    const Trace& own = its_class == changed ? trace : classes.traces[static_cast<std::size_t>(its_class)];
    orders.push_back(call_order(own, sizes, schedule::plan(own, sizes, {})));
  }
  return schedule::check_together(schedule::rank_orders(
      shard::checked_groups(classes.layout.mesh, classes.layout.domains), std::move(orders), classes.class_of));
}

// Mutations of the optimizer's events. `published`: indices of the publish events whose weights replicas exchange.
using Indices = std::vector<std::size_t>;
void exchange(Trace& trace, std::size_t a, std::size_t b) {
  std::swap(trace[a].parameter, trace[b].parameter);
}
void reverse_buckets(Trace& trace, const Indices& published) {
  std::vector<schedule::ParameterId> order;
  for (const std::size_t index : published) order.push_back(trace[index].parameter);
  auto buckets = schedule::optimizer_buckets(order, [](schedule::ParameterId) { return 1; });
  std::ranges::reverse(buckets);
  auto index = published.begin();
  for (const auto& bucket : buckets)
    for (const schedule::ParameterId id : bucket) trace[*index++].parameter = id;
}
void exchange_first_publishes(Trace& trace, const Indices& published) {
  exchange(trace, published[0], published[1]);
}
void publish_first_weight_last(Trace& trace, const Indices& published) {
  for (std::size_t i = 1; i < published.size(); ++i) exchange(trace, published[i - 1], published[i]);
}

struct Mutation {
  const char* name;
  void (*apply)(Trace&, const Indices&);
};
constexpr Mutation kMutations[] = {{"the buckets in reverse order", reverse_buckets},
                                   {"two weights exchanged", exchange_first_publishes},
                                   {"the first weight last", publish_first_weight_last}};

// Replicas with 3, 2 and 1 storage ranks, and replicas whose tp groups have dead places.
TEST(ClassOrders, AnotherOrderOfNewWeightsInOneClassIsRefused) {
  struct Dead {
    int tp, gtp, dp;
    std::vector<int> places;
    std::size_t classes;
  };
  for (const auto& [tp, gtp, dp, dead, count] :
       {Dead{1, 3, 3, {3, 6, 7}, 3}, {2, 1, 2, {1}, 2}, {2, 3, 2, {0, 1, 4, 5}, 2}, {3, 2, 3, {0, 1, 4, 11}, 3}}) {
    const Case it{.config = odd_model(false), .tp = tp, .gtp = gtp, .dp = dp, .microbatches = 2, .dead = dead};
    const Classes classes = classes_on(it);
    ASSERT_EQ(classes.traces.size(), count);
    EXPECT_THAT(faults_of(classes), IsEmpty());
    for (int its_class = 0; its_class < static_cast<int>(count); ++its_class) {
      const Trace& trace = classes.traces[static_cast<std::size_t>(its_class)];
      const auto& sizes = classes.sizes[static_cast<std::size_t>(its_class)];
      Indices published;
      for (std::size_t i = 0; i < trace.size(); ++i)
        if (trace[i].kind == EventKind::publish && !sizes[static_cast<std::size_t>(trace[i].parameter)].publish.empty())
          published.push_back(i);
      for (const auto& [name, apply] : kMutations) {
        Trace changed = trace;
        apply(changed, published);
        EXPECT_THAT(faults_of(classes, its_class, changed), Contains(HasSubstr("publish ['")))
            << "tp " << tp << ", gtp " << gtp << ", class " << its_class << ": " << name;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::predict
