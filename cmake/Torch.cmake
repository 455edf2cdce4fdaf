# libtorch from an installed torch wheel, as the target Tessera::torch. find_package(Torch) is not used, because it needs
# nvcc even for CPU code. An installed Tessera uses this file too (TesseraConfig.cmake), so its paths are those of the
# machine that uses it. Tessera::torch_cpu is the part that needs no CUDA.
include(${CMAKE_CURRENT_LIST_DIR}/TorchFolder.cmake)
if(NOT EXISTS "${torch_dir}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch not found: looked in '${torch_dir}' for lib/libtorch_cpu.so. "
    "Set TESSERA_TORCH to the folder of an installed torch package, or use ./run, which installs one.")
endif()
message(STATUS "libtorch: ${torch_dir}")

file(STRINGS ${torch_dir}/version.py torch_version REGEX "^__version__ = ")
string(REGEX REPLACE "^[^']*'([^']*)'.*" "\\1" torch_version "${torch_version}")
set(torch_includes ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
set(torch_libraries ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so)
set(torch_link_options -Wl,--allow-shlib-undefined -Wl,-rpath,${torch_dir}/lib)
add_library(Tessera::torch_cpu INTERFACE IMPORTED GLOBAL)
target_include_directories(Tessera::torch_cpu INTERFACE ${torch_includes})
target_compile_definitions(Tessera::torch_cpu INTERFACE USE_DISTRIBUTED)
target_link_libraries(Tessera::torch_cpu INTERFACE ${torch_libraries})
target_link_options(Tessera::torch_cpu INTERFACE ${torch_link_options})

add_library(Tessera::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(Tessera::torch INTERFACE ${torch_includes})
target_compile_definitions(Tessera::torch INTERFACE AT_PER_OPERATOR_HEADERS USE_DISTRIBUTED)
target_link_libraries(Tessera::torch INTERFACE ${torch_libraries})
target_link_options(Tessera::torch INTERFACE ${torch_link_options})
# --no-as-needed keeps libtorch_cuda. The linker would drop it as not needed, and CUDA would be missing at run time.
# --allow-shlib-undefined is set because libtorch_cuda needs libraries that a machine that only compiles may lack.
if(TESSERA_CUDA)
  target_link_options(Tessera::torch INTERFACE
    "-Wl,--no-as-needed,${torch_dir}/lib/libtorch_cuda.so,${torch_dir}/lib/libc10_cuda.so,--as-needed")
endif()
# cuBLASLt: the library of libtorch's wheel if it is installed, so that a process loads only one.
if(TESSERA_CUDA)
  find_file(TESSERA_CUBLASLT libcublasLt.so.13 REQUIRED
    HINTS ${torch_dir}/../nvidia/cu13/lib ${torch_dir}/../nvidia/cublas/lib ${CUDAToolkit_LIBRARY_DIR}
    ${CUDAToolkit_BIN_DIR}/../lib64 ${CUDAToolkit_BIN_DIR}/../lib)
  target_link_libraries(Tessera::torch INTERFACE ${TESSERA_CUBLASLT})
endif()
