// TESSERA_HOST_DEVICE before a function: compiled for the GPU too where nvcc compiles it, with the same arithmetic.
#pragma once

#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif
