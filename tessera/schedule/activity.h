// What a step's time goes to: one row each in a timeline.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::schedule {

enum class Activity : std::uint8_t {
  compute,
  gather,     // of weights over gtp ...
  gather_tp,  // ... and over tp
  reduce_tp,  // of gradients over tp ...
  reduce,     // ... and over gtp
  dp,         // sum over replicas
  publish,    // new weights between replicas; shares the dp lane with their sums
  comm,       // a collective of the program, from its event until the host has waited for it
  agreement,  // that the ranks did the same
};
std::string_view name_of(Activity activity);

}  // namespace tessera::schedule
