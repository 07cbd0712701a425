# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: libraries, headers, the command with its data, manual page and
# completions, the documents, and the two files by which other builds find the library (CMake
# package, pkg-config).
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvterrace)
install(TARGETS kvterrace_static kvterrace_shared EXPORT kvterraceTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/kvterrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(TARGETS kvterrace_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# Data that the command finds there when the working directory has none of that name.
set(data_dir ${CMAKE_INSTALL_DATADIR}/kvterrace)
install(DIRECTORY profiles DESTINATION ${data_dir} FILES_MATCHING PATTERN "*.json"
  PATTERN "*.kvtbasis")
install(DIRECTORY reference_model/model reference_model/texts
  DESTINATION ${data_dir}/reference_model)
install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE NOTICE
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.md")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Absent when only the command was built, or without Python.
install(FILES ${KVT_MANUAL}/kvterrace.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
install(FILES ${KVT_MANUAL}/kvterrace.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5 OPTIONAL)
install(FILES ${KVT_MANUAL}/kvterrace.bash RENAME kvterrace OPTIONAL
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${KVT_MANUAL}/API.md OPTIONAL DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs)
install(FILES ${KVT_MANUAL}/_kvterrace OPTIONAL
  DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)

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
