// A CUDA stream's handle (cudaStream_t) where CUDA's headers are not wanted or not there.
#pragma once

struct CUstream_st;

namespace tessera::base {

using CudaStream = CUstream_st*;

}  // namespace tessera::base
