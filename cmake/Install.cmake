# cmake --install: the libraries, the headers, the program with its configs, and the package that find_package(Tessera)
# reads. libtorch is not copied. docs/library.md shows how to use the package.
include(CMakePackageConfigHelpers)
get_property(layers GLOBAL PROPERTY tessera_layers)
set(targets ${layers} tessera_options tessera_xxhash)
if(TESSERA_CUDA)
  list(APPEND targets tessera_cuda tessera_nccl)
endif()
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
install(TARGETS ${targets} EXPORT TesseraTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${package_folder})
install(DIRECTORY ${tessera_SOURCE_DIR}/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TesseraConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/TesseraConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/TesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/TesseraConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/TesseraConfigVersion.cmake
  DESTINATION ${package_folder})
if(TESSERA_TORCH_LAYERS)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/Torch.cmake ${CMAKE_CURRENT_LIST_DIR}/TorchFolder.cmake
    DESTINATION ${package_folder})
  install(TARGETS tessera RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${tessera_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera)
endif()
