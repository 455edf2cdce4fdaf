# tessera_precompile(TARGET KIND): parses cmake/precompiled/KIND.h once instead of for every file of TARGET. The first target
# of a kind compiles the header, and later targets reuse it. They need the same compile flags, except the
# level of optimization.
function(tessera_precompile TARGET KIND)
  get_property(owner GLOBAL PROPERTY tessera_precompiled_${KIND})
  if(owner)
    target_precompile_headers(${TARGET} REUSE_FROM ${owner})
    return()
  endif()
  target_precompile_headers(${TARGET} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${tessera_SOURCE_DIR}/cmake/precompiled/${KIND}.h>")
  set_property(GLOBAL PROPERTY tessera_precompiled_${KIND} ${TARGET})
endfunction()
