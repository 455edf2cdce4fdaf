# tessera_layer(NAME [DEPENDS ...]): one static library a folder, made of every .cpp file in it.
# Files named mpi*.cpp are compiled where MPI is found, no_mpi.cpp or *_no_mpi.cpp where it is not.
function(tessera_layer NAME)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cpp)
  if(MPI_CXX_FOUND)
    list(FILTER sources EXCLUDE REGEX "[/_]no_mpi\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/mpi[a-z_]*\\.cpp$")
  endif()
  add_library(tessera_${NAME} STATIC ${sources})
  target_link_libraries(tessera_${NAME} PUBLIC tessera_options ${ARG_DEPENDS})
  set_target_properties(tessera_${NAME} PROPERTIES LINKER_LANGUAGE CXX)
endfunction()
