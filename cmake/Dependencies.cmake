# Libraries from packages of the system. ./run installs them; CMake downloads nothing.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
# libtorch's folder of headers contains another version of fmt. Compilers search the folder fmt_first before it, so that all
# files use the version whose library the programs link. With the code of fmt in every file (FMT_HEADER_ONLY), a build
# takes a quarter longer.
get_target_property(fmt_includes fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
find_path(fmt_include fmt/format.h HINTS ${fmt_includes} REQUIRED NO_CACHE)
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fmt_first)
file(CREATE_LINK ${fmt_include}/fmt ${CMAKE_CURRENT_BINARY_DIR}/fmt_first/fmt COPY_ON_ERROR SYMBOLIC)
target_include_directories(tessera_options SYSTEM INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_BINARY_DIR}/fmt_first>)
# A program that uses an installed Tessera may include libtorch's version, for which there is no library to link.
target_compile_definitions(tessera_options INTERFACE $<INSTALL_INTERFACE:FMT_HEADER_ONLY>)
# Only the header of xxHash is needed. If the header is missing, or with -DXXHASH_INCLUDE=OFF, the build uses the shared
# library, which most systems install for other programs, with the declarations in cmake/xxhash.
find_path(XXHASH_INCLUDE xxhash.h)
add_library(tessera_xxhash INTERFACE)
if(XXHASH_INCLUDE)
  target_include_directories(tessera_xxhash SYSTEM INTERFACE $<BUILD_INTERFACE:${XXHASH_INCLUDE}>)
  target_compile_definitions(tessera_xxhash INTERFACE XXH_INLINE_ALL)
else()
  find_library(XXHASH_LIBRARY NAMES xxhash libxxhash.so.0)
  if(NOT XXHASH_LIBRARY)
    message(FATAL_ERROR "xxHash: found neither xxhash.h (Debian: libxxhash-dev) nor libxxhash.so.0 (libxxhash0)")
  endif()
  target_include_directories(tessera_xxhash SYSTEM INTERFACE $<BUILD_INTERFACE:${tessera_SOURCE_DIR}/cmake/xxhash>)
  target_link_libraries(tessera_xxhash INTERFACE ${XXHASH_LIBRARY})
endif()
set(MPI_CXX_SKIP_MPICXX ON)  # only the C interface is used
find_package(MPI COMPONENTS CXX)
