# Libraries from the system's packages. ./run installs them; nothing is downloaded here.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
set(MPI_CXX_SKIP_MPICXX ON)  # only the C interface is used
find_package(MPI COMPONENTS CXX)

add_library(tessera_log INTERFACE)
target_link_libraries(tessera_log INTERFACE Threads::Threads)
target_compile_definitions(tessera_log INTERFACE SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
