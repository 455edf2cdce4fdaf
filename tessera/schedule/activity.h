// What a step's time goes to: one row each in a timeline.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::schedule {

enum class Activity : std::uint8_t {
  compute,
  gather,          // of weights, over the ranks that store them ...
  gather_compute,  // ... and over those that use them
  reduce_compute,  // of gradients, over the ranks that made them ...
  reduce,          // ... and over those that store them
  replicas,        // sum over replicas
  publish,         // new weights between replicas; shares the lane of their sums
  comm,            // a collective of the program, from its event until the host has waited for it
  agreement,       // that the ranks did the same
};
std::string_view name_of(Activity activity);

}  // namespace tessera::schedule
