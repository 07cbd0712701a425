# SPDX-License-Identifier: Apache-2.0
# The manual page, the completions and the page of settings, from what the command says of itself:
# tools/make_manual.py asks it once it is built. The reference of the interface, from the public
# headers.
find_package(Python3 3.9 COMPONENTS Interpreter)
set(KVT_MANUAL ${CMAKE_BINARY_DIR}/manual)
if(Python3_FOUND)
  add_custom_command(
    OUTPUT ${KVT_MANUAL}/kvterrace.1 ${KVT_MANUAL}/kvterrace.5 ${KVT_MANUAL}/kvterrace.bash
      ${KVT_MANUAL}/_kvterrace ${KVT_MANUAL}/CONFIGURATION.md
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/make_manual.py
      $<TARGET_FILE:kvterrace_command> ${KVT_MANUAL} ${CMAKE_INSTALL_FULL_DATADIR}/kvterrace
    DEPENDS kvterrace_command ${CMAKE_SOURCE_DIR}/tools/make_manual.py
      ${CMAKE_SOURCE_DIR}/docs/CONFIGURATION.md
    COMMENT "Writing the manual pages, the completions and the page of settings")
  add_custom_command(OUTPUT ${KVT_MANUAL}/API.md
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/make_api.py
      ${CMAKE_SOURCE_DIR}/include/kvterrace ${KVT_MANUAL}/API.md
    DEPENDS ${public_headers} ${CMAKE_SOURCE_DIR}/tools/make_api.py
    COMMENT "Writing the reference of the public headers")
  add_custom_target(kvterrace_manual ALL
    DEPENDS ${KVT_MANUAL}/kvterrace.1 ${KVT_MANUAL}/kvterrace.bash ${KVT_MANUAL}/_kvterrace
      ${KVT_MANUAL}/API.md)
else()
  add_custom_target(kvterrace_manual)
  message(STATUS "python3 not found: no manual page, no completions, no API.md")
endif()
