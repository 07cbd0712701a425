# SPDX-License-Identifier: Apache-2.0
# The library, static and shared, from the rooms that make it, and the command.
set(KVT_LIBRARY_ROOMS ground number base codecs basis policy gpu tiers estimator remote store decide
    sparse wire client)
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

# The static library gives out the public names alone: each member is one relocatable object in
# which every hidden symbol has become local. There are two, so that a program which uses the
# decision engine alone links nothing else of the library and none of what the rest needs. The
# engine's member holds the policy room and base/ground, whose functions are all public; arithmetic
# that both need (base/number) is in each, hidden.
function(kvt_one_object output)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${output} ${ARGN}
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${output}
    DEPENDS ${ARGN} COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties(${output} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
endfunction()

foreach(room ${KVT_LIBRARY_ROOMS})
  if(room MATCHES "^(policy|ground|number)$")
    list(APPEND engine_objects $<TARGET_OBJECTS:kvt_${room}>)
  endif()
  if(NOT room MATCHES "^(policy|ground)$")
    list(APPEND store_objects $<TARGET_OBJECTS:kvt_${room}>)
  endif()
endforeach()
kvt_one_object(${CMAKE_BINARY_DIR}/kvterrace_engine.o ${engine_objects})
kvt_one_object(${CMAKE_BINARY_DIR}/kvterrace_store.o ${store_objects})
add_library(kvterrace_static STATIC ${CMAKE_BINARY_DIR}/kvterrace_engine.o
  ${CMAKE_BINARY_DIR}/kvterrace_store.o)
# Makefiles know the rules of an object in its own room alone, so the rooms are built first.
foreach(room ${KVT_LIBRARY_ROOMS})
  add_dependencies(kvterrace_static kvt_${room})
endforeach()
set_target_properties(kvterrace_static PROPERTIES OUTPUT_NAME kvterrace EXPORT_NAME static
  LINKER_LANGUAGE C)
target_link_libraries(kvterrace_static PRIVATE $<BUILD_INTERFACE:kvt_flags> ${KVT_LIBRARY_DEPS})
target_include_directories(kvterrace_static INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# The shared library exports the functions that the public headers declare, by name.
file(GLOB public_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/include/kvterrace/*.h)
set(public_names)
foreach(header ${public_headers})
  file(READ ${header} text)
  string(REGEX MATCHALL "\nKVT_API [^;(]*[ *\n]kvt_[a-z0-9_]*\\(" declarations "${text}")
  foreach(declaration ${declarations})
    string(REGEX REPLACE ".*[ *\n](kvt_[a-z0-9_]*)\\($" "    \\1;\n" name "${declaration}")
    string(APPEND public_names "${name}")
  endforeach()
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${public_headers})
set(version_script ${CMAKE_BINARY_DIR}/kvterrace.map)
configure_file(cmake/kvterrace.map.in ${version_script} @ONLY)
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

# The command takes the objects of the rooms and not the library: it looks inside them.
add_executable(kvterrace_command)
kvt_add_rooms(kvterrace_command ${KVT_LIBRARY_ROOMS} wire server rivals replay tools command inspect
  quality exchange)
set_target_properties(kvterrace_command PROPERTIES OUTPUT_NAME kvterrace LINKER_LANGUAGE C)
target_link_libraries(kvterrace_command PRIVATE kvt_flags ${KVT_LIBRARY_DEPS}
  PkgConfig::JANSSON PkgConfig::OPENBLAS PkgConfig::ZLIB)
