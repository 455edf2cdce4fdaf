#include "tessera/nn/context.h"

#include "tessera/base/error.h"

namespace tessera::nn {

Recompute parse_recompute(std::string_view name) {
  for (Recompute policy : {Recompute::none, Recompute::selective, Recompute::full})
    if (name == name_of(policy)) return policy;
  throw InputError("unknown recompute policy '{}': expected none, selective or full", name);
}

std::string_view name_of(Recompute policy) {
  switch (policy) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  return "?";
}

}  // namespace tessera::nn
