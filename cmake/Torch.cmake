# libtorch from an installed torch wheel, as the target tessera_torch. find_package(Torch) is not used, because it needs
# nvcc even for CPU code.
include(TorchFolder)
if(NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch not found: looked in '${torch_dir}' for lib/libtorch_cpu.so. "
    "Set TESSERA_TORCH to the folder of an installed torch package, or use ./run, which installs one.")
endif()
message(STATUS "libtorch: ${torch_dir}")

add_library(tessera_torch INTERFACE)
target_include_directories(tessera_torch SYSTEM INTERFACE ${torch_dir}/include
  ${torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(tessera_torch INTERFACE AT_PER_OPERATOR_HEADERS USE_DISTRIBUTED)
target_link_libraries(tessera_torch INTERFACE ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so)
target_link_options(tessera_torch INTERFACE -Wl,--allow-shlib-undefined -Wl,-rpath,${torch_dir}/lib)
# --no-as-needed keeps libtorch_cuda. The linker would drop it as not needed, and CUDA would be missing at run time.
# --allow-shlib-undefined is set because libtorch_cuda needs libraries that a machine that only compiles may lack.
if(TESSERA_CUDA)
  target_link_options(tessera_torch INTERFACE
    "-Wl,--no-as-needed,${torch_dir}/lib/libtorch_cuda.so,${torch_dir}/lib/libc10_cuda.so,--as-needed")
endif()
# cuBLASLt: the library of libtorch's wheel if it is installed, so that a process loads only one.
if(TESSERA_CUDA)
  find_file(TESSERA_CUBLASLT libcublasLt.so.13 REQUIRED
    HINTS ${torch_dir}/../nvidia/cu13/lib ${torch_dir}/../nvidia/cublas/lib ${CUDAToolkit_LIBRARY_DIR})
  target_link_libraries(tessera_torch INTERFACE ${TESSERA_CUBLASLT})
endif()
