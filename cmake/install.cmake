# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: libraries, headers, the command, and the two files by which
# other builds find them (CMake package, pkg-config).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvterrace)
install(TARGETS kvterrace_static kvterrace_shared EXPORT kvterraceTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/kvterrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(TARGETS kvterrace_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

install(EXPORT kvterraceTargets NAMESPACE kvterrace:: DESTINATION ${package_dir})
configure_package_config_file(cmake/kvterraceConfig.cmake.in
  ${CMAKE_BINARY_DIR}/kvterraceConfig.cmake INSTALL_DESTINATION ${package_dir})
# Below 1.0 a minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/kvterraceConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/kvterraceConfig.cmake
  ${CMAKE_BINARY_DIR}/kvterraceConfigVersion.cmake DESTINATION ${package_dir})

# A relative distance from the .pc file to the prefix lets an installed tree be moved, and
# `cmake --install --prefix` choose another place than the configured one.
file(RELATIVE_PATH KVT_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" KVT_PC_PREFIX "${KVT_PC_PREFIX}")
configure_file(cmake/kvterrace.pc.in ${CMAKE_BINARY_DIR}/kvterrace.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/kvterrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
