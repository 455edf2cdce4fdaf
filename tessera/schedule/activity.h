// The activities that take a step's time. A timeline has one row for each activity.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::schedule {

enum class Activity : std::uint8_t {
  compute,
  gather,          // gather of weights: the hop over the ranks that store the weights
  gather_compute,  // gather of weights: the second hop, over the ranks that use the weights
  reduce_compute,  // reduction of gradients: the first hop, over the ranks that produced the gradients
  reduce,          // reduction of gradients: the hop over the ranks that store the weights
  replicas,        // sum of gradients over replicas
  publish,         // exchange of new weights between replicas; uses the lane of `replicas`
  comm,            // a collective of the program, from its event to the end of the wait for it
  agreement,       // comparison of the ranks' events at the end of a step
};
std::string_view name_of(Activity activity);

}  // namespace tessera::schedule
