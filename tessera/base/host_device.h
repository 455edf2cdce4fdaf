// TESSERA_HOST_DEVICE marks a function that nvcc compiles for host and device, with the same arithmetic.
#pragma once

#ifdef __CUDACC__
#define TESSERA_HOST_DEVICE __host__ __device__
#else
#define TESSERA_HOST_DEVICE
#endif
