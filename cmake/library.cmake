# SPDX-License-Identifier: Apache-2.0
# The library, static and shared, from the rooms that make it, and the command.
set(KVT_LIBRARY_ROOMS base codecs policy tiers estimator store)
set(KVT_LIBRARY_DEPS PkgConfig::ZSTD PkgConfig::URING PkgConfig::SQLITE PkgConfig::XXHASH
    PkgConfig::INIH Threads::Threads ${CMAKE_DL_LIBS} m)
# What a static link needs besides, for kvterrace.pc.
set(KVT_PC_REQUIRES "libzstd liburing sqlite3 libxxhash inih")
set(KVT_PC_LIBS "-pthread -ldl -lm")

# Rooms become objects once; every library and program is put together from the same ones.
function(kvt_add_rooms target)
  foreach(room ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:kvt_${room}>)
  endforeach()
endfunction()

add_library(kvterrace_static STATIC)
kvt_add_rooms(kvterrace_static ${KVT_LIBRARY_ROOMS})
set_target_properties(kvterrace_static PROPERTIES OUTPUT_NAME kvterrace EXPORT_NAME static
  LINKER_LANGUAGE C)
target_link_libraries(kvterrace_static PRIVATE $<BUILD_INTERFACE:kvt_flags> ${KVT_LIBRARY_DEPS})
target_include_directories(kvterrace_static INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

set(version_script ${CMAKE_SOURCE_DIR}/cmake/kvterrace.map)
add_library(kvterrace_shared SHARED)
kvt_add_rooms(kvterrace_shared ${KVT_LIBRARY_ROOMS})
set_target_properties(kvterrace_shared PROPERTIES OUTPUT_NAME kvterrace EXPORT_NAME kvterrace
  LINKER_LANGUAGE C VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} LINK_DEPENDS ${version_script})
target_link_libraries(kvterrace_shared PRIVATE $<BUILD_INTERFACE:kvt_flags> ${KVT_LIBRARY_DEPS})
target_link_options(kvterrace_shared PRIVATE -Wl,--version-script=${version_script})
if(NOT KVT_SANITIZE AND NOT KVT_FUZZ)
  # A sanitizer's symbols come from the program; without one nothing may be left open.
  target_link_options(kvterrace_shared PRIVATE -Wl,--no-undefined)
endif()
target_include_directories(kvterrace_shared INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

add_executable(kvterrace_command)
kvt_add_rooms(kvterrace_command tools lab quality)
set_target_properties(kvterrace_command PROPERTIES OUTPUT_NAME kvterrace LINKER_LANGUAGE C)
target_link_libraries(kvterrace_command PRIVATE kvterrace_static kvt_flags ${KVT_LIBRARY_DEPS}
  PkgConfig::JANSSON PkgConfig::OPENBLAS)
