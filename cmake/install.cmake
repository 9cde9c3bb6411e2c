# cmake --install: headers, libraries, programs and the find_package(penstock) files.
include(CMakePackageConfigHelpers)
get_property(targets GLOBAL PROPERTY PENSTOCK_INSTALLED)
install(TARGETS ${targets} EXPORT penstock-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/penstock penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "cli" EXCLUDE PATTERN "names" EXCLUDE)
install(FILES ${PROJECT_BINARY_DIR}/include/penstock/core/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/penstock/core)
install(EXPORT penstock-targets NAMESPACE penstock::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
configure_package_config_file(cmake/penstock-config.cmake.in penstock-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
write_basic_package_version_file(penstock-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/penstock-config.cmake
  ${PROJECT_BINARY_DIR}/penstock-config-version.cmake cmake/libtorch.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/penstock)
