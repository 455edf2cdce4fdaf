// The handle of a CUDA stream (cudaStream_t), without CUDA's headers.
#pragma once

struct CUstream_st;

namespace tessera::base {

using CudaStream = CUstream_st*;

}  // namespace tessera::base
