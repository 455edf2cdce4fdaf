# tessera_layer(NAME [DEPENDS ...]): one static library a folder, made of every .cpp file in it.
# FILE.mpi.cpp is compiled where MPI is found, FILE.no_mpi.cpp where it is not.
function(tessera_layer NAME)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  if(MPI_C_FOUND)
    list(FILTER sources EXCLUDE REGEX "_no_mpi\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/mpi[a-z_]*\\.cpp$")
  endif()
  add_library(tessera_${NAME} STATIC ${sources})
  target_link_libraries(tessera_${NAME} PUBLIC tessera_options ${ARG_DEPENDS})
  set_target_properties(tessera_${NAME} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()
