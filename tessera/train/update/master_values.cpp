#include "tessera/train/update/master_values.h"

#include "tessera/base/cuda_only.h"
#include "tessera/ops/optimizer/split_master.h"

namespace tessera::train {

void MasterValues::store() {
  if (!ops::are_representable(parameter_.types.accumulator, parameter_.types.model)) return;
  auto* masters = reinterpret_cast<float*>(data());
  if (const base::CudaStream stream = parallel_.compute->stream())
    base::cuda_only<ops::cuda::make_representable>(masters, parameter_.state_elements(), stream);
  else
    ops::make_representable(masters, parameter_.state_elements());
}

}  // namespace tessera::train
