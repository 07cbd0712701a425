# SPDX-License-Identifier: Apache-2.0
# The program that `make test-nvme` runs in an emulated machine; not a test of its own.
add_executable(nvme_drives EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/tests/nvme/nvme_drives.c
  ${CMAKE_SOURCE_DIR}/tests/support/test_memory.c ${CMAKE_SOURCE_DIR}/base/ground/status.c)
kvt_add_rooms(nvme_drives ${KVT_NEEDS_tiers})
target_link_libraries(nvme_drives PRIVATE kvt_flags ${KVT_LIBRARY_DEPS} PkgConfig::CMOCKA)
target_include_directories(nvme_drives PRIVATE ${CMAKE_SOURCE_DIR}/tests/support)
