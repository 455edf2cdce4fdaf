// The activities that take a step's time. A timeline has one row for each activity.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::schedule {

enum class Activity : std::uint8_t {
  compute,
  gather,          // gather of weights over the ranks that store them
  gather_compute,  // second hop of a gather, over the ranks that use the weights
  reduce_compute,  // first hop of a reduction, over the ranks that produced the gradients
  reduce,          // reduction of gradients over the ranks that store the weights
  replicas,        // sum over replicas
  publish,         // exchange of new weights between replicas, on the lane of the sums over replicas
  comm,            // a collective of the program, from its event until the host has waited for it
  agreement,       // comparison of the events that the ranks executed
};
std::string_view name_of(Activity activity);

}  // namespace tessera::schedule
