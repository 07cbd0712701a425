# SPDX-License-Identifier: Apache-2.0
# Emulated drives for tests and benches: a FUSE program, built where libfuse 3 is.
pkg_check_modules(FUSE3 IMPORTED_TARGET fuse3>=3.10)
if(FUSE3_FOUND)
  add_executable(emulated_drive tests/support/emulated_drive.c tests/support/drive_serve.c
    tests/support/drive_settings.c)
  target_link_libraries(emulated_drive PRIVATE kvt_flags PkgConfig::FUSE3)
else()
  message(STATUS "fuse3 not found: no emulated drives, the tests that need them skip")
endif()
