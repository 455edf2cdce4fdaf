# CUDA, if TESSERA_CUDA is on: the language, and the target tessera_cuda for code that calls the CUDA runtime.
# The runtime is a shared library, because libtorch loads it too and a process must have only one.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# CMake before 3.26 does not define these flags for nvcc 13.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_package(CUDAToolkit REQUIRED)

add_library(tessera_cuda INTERFACE)
target_link_libraries(tessera_cuda INTERFACE CUDA::cudart)
# Contraction is off, as on the CPU: kernels call fused operations explicitly (docs/numerics.md).
target_compile_options(tessera_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr;-Xcompiler=-Wall,-ffp-contract=off;-lineinfo>")
