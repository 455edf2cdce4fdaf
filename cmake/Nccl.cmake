# NCCL, with TESSERA_CUDA: its header only, as the target tessera_nccl. The library is loaded when a program needs it, and
# must be libtorch's (a process may hold one only): TESSERA_NCCL_LIBRARY says where that lies.
include(TorchFolder)
cmake_path(SET nccl_wheel NORMALIZE "${torch_dir}/../nvidia/nccl")
find_path(NCCL_INCLUDE nccl.h HINTS ${nccl_wheel}/include ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
set(TESSERA_NCCL_LIBRARY "${nccl_wheel}/lib/libnccl.so.2" CACHE FILEPATH "NCCL at run time")

add_library(tessera_nccl INTERFACE)
target_include_directories(tessera_nccl SYSTEM INTERFACE ${NCCL_INCLUDE})
target_compile_definitions(tessera_nccl INTERFACE TESSERA_NCCL_LIBRARY="${TESSERA_NCCL_LIBRARY}")
target_link_libraries(tessera_nccl INTERFACE tessera_cuda ${CMAKE_DL_LIBS})
