#include "tessera/predict/model_flops.h"

namespace tessera::predict {

double microbatch_flops(const DryOptions& options) {
  double flops = 0;
  for (const std::vector<ops::Work>& works : dry_step(options).work)
    for (const ops::Work& work : works) flops += work.flops;
  return flops;
}

}  // namespace tessera::predict
