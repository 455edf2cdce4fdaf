# NCCL, with TESSERA_CUDA: the target tessera_nccl contains only the header. A program loads the library when it needs
# NCCL. It must be the library that libtorch uses, because a process may load only one. TESSERA_NCCL_LIBRARY is its path.
include(TorchFolder)
cmake_path(SET nccl_wheel NORMALIZE "${torch_dir}/../nvidia/nccl")
find_path(NCCL_INCLUDE nccl.h HINTS ${nccl_wheel}/include ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
set(TESSERA_NCCL_LIBRARY "${nccl_wheel}/lib/libnccl.so.2" CACHE FILEPATH "NCCL at run time")

add_library(tessera_nccl INTERFACE)
target_include_directories(tessera_nccl SYSTEM INTERFACE $<BUILD_INTERFACE:${NCCL_INCLUDE}>)
target_compile_definitions(tessera_nccl INTERFACE "$<BUILD_INTERFACE:TESSERA_NCCL_LIBRARY=\"${TESSERA_NCCL_LIBRARY}\">")
target_link_libraries(tessera_nccl INTERFACE tessera_cuda ${CMAKE_DL_LIBS})
