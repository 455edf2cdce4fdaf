# Compile options of every target: language, warnings, sanitizers.
include(GNUInstallDirs)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# Several files are compiled together, so that their headers and templates are parsed once. To rebuild faster after a
# change of one file, turn it off: cmake -DCMAKE_UNITY_BUILD=OFF build/cpu.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "Compile several files at once")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# These options do not change results. Without them sqrt and selections are not vectorised. They are not options of
# programs that use Tessera.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno> $<$<COMPILE_LANGUAGE:CXX>:-fno-trapping-math>)

find_program(CCACHE ccache)
if(CCACHE)
  # ccache stores files that use a precompiled header only with these settings.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()

# The compiler vectorises the CPU kernels. -ffp-contract=off gives vector bodies and scalar tails the same bits
# (docs/numerics.md: elementwise kernels do not depend on position).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(TESSERA_ARCH "x86-64-v3" CACHE STRING "-march of the CPU kernels")
else()
  set(TESSERA_ARCH "" CACHE STRING "-march of the CPU kernels")
endif()

add_library(tessera_options INTERFACE)
target_compile_features(tessera_options INTERFACE cxx_std_20)
target_compile_definitions(tessera_options INTERFACE TESSERA_HAS_CUDA=$<BOOL:${TESSERA_CUDA}>)  # base/cuda_only.h
target_include_directories(tessera_options INTERFACE $<BUILD_INTERFACE:${tessera_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# Other projects that use Tessera choose their own warnings.
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(tessera_options INTERFACE
    "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wno-missing-field-initializers>>")
endif()
target_compile_options(tessera_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(TESSERA_ARCH)
  target_compile_options(tessera_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${TESSERA_ARCH}>)
endif()
if(TESSERA_SANITIZE)
  target_compile_options(tessera_options INTERFACE -fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(tessera_options INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()

# For targets that compute little and contain much JSON, text or test code. It reduces their compile time by a third.
function(tessera_optimise_little TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
endfunction()
