# tessera_precompile(TARGET KIND [OWN]): parses cmake/precompiled/KIND.h once instead of for every file of TARGET. The
# first target of a kind compiles the header, and later targets reuse it. A target with other compile flags passes OWN and
# compiles its own copy.
function(tessera_precompile TARGET KIND)
  get_property(owner GLOBAL PROPERTY tessera_precompiled_${KIND})
  if(owner AND NOT "OWN" IN_LIST ARGN)
    target_precompile_headers(${TARGET} REUSE_FROM ${owner})
    return()
  endif()
  target_precompile_headers(${TARGET} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${tessera_SOURCE_DIR}/cmake/precompiled/${KIND}.h>")
  if(NOT "OWN" IN_LIST ARGN)
    set_property(GLOBAL PROPERTY tessera_precompiled_${KIND} ${TARGET})
  endif()
endfunction()
