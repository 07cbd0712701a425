# SPDX-License-Identifier: Apache-2.0
# The Python package: two extension modules for the stable interface of Python 3.11, and the
# sources beside them in build/python/kvterrace, so that PYTHONPATH=build/python imports it.
# tools/make_wheel.sh packs that folder and the command into a wheel.
set(KVT_PYTHON AUTO CACHE STRING "the Python package: AUTO (where cffi and Python.h are), ON, OFF")

# The first interpreter of 3.11 or newer that has cffi and its own headers.
function(kvt_find_python executable_out include_out)
  set(${executable_out} "" PARENT_SCOPE)
  set(${include_out} "" PARENT_SCOPE)
  set(question [[
import cffi, os, sys, sysconfig
folder = sysconfig.get_path("include")
if sys.version_info >= (3, 11) and os.path.exists(os.path.join(folder, "Python.h")):
    print(sys.executable, folder, sep="\n")
]])
  foreach(candidate ${Python3_EXECUTABLE} ${Python_EXECUTABLE} /usr/bin/python3)
    execute_process(COMMAND ${candidate} -c "${question}" OUTPUT_VARIABLE found ERROR_QUIET
      OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(found)
      string(REPLACE "\n" ";" found "${found}")
      list(GET found 0 executable)
      list(GET found 1 include)
      set(${executable_out} ${executable} PARENT_SCOPE)
      set(${include_out} ${include} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

find_package(Python3 3.9 COMPONENTS Interpreter)
if(NOT KVT_PYTHON STREQUAL "OFF" AND NOT KVT_FUZZ)
  kvt_find_python(KVT_PYTHON_EXECUTABLE KVT_PYTHON_INCLUDE)
  if(NOT KVT_PYTHON_EXECUTABLE AND KVT_PYTHON STREQUAL "ON")
    message(FATAL_ERROR "the Python package needs Python 3.11 with its headers and cffi")
  endif()
endif()
if(NOT KVT_PYTHON_EXECUTABLE)
  message(STATUS "no Python 3.11 with cffi and headers: no Python package, its tests skip")
  add_custom_target(kvterrace_python)
  return()
endif()

set(python_room ${CMAKE_SOURCE_DIR}/python)
set(python_package ${CMAKE_BINARY_DIR}/python/kvterrace)
set(python_binding ${CMAKE_BINARY_DIR}/python_binding.c)
add_custom_command(OUTPUT ${python_binding}
  COMMAND ${KVT_PYTHON_EXECUTABLE} ${python_room}/generate.py ${CMAKE_SOURCE_DIR}/include
    ${python_room}/src ${python_binding} ${CMAKE_C_COMPILER}
  DEPENDS ${public_headers} ${python_room}/generate.py ${python_room}/src/bridge.h
    ${python_room}/src/tasks.h
  COMMENT "Generating the Python binding from the public headers")

function(kvt_python_module name source)
  add_library(kvt_python_${name} MODULE ${source})
  target_include_directories(kvt_python_${name} PRIVATE ${CMAKE_SOURCE_DIR}/include
    ${python_room}/src ${KVT_PYTHON_INCLUDE})
  target_compile_definitions(kvt_python_${name} PRIVATE Py_LIMITED_API=0x030b0000)
  set_target_properties(kvt_python_${name} PROPERTIES OUTPUT_NAME _${name} PREFIX ""
    SUFFIX .abi3.so LIBRARY_OUTPUT_DIRECTORY ${python_package} LINKER_LANGUAGE C)
  if(KVT_SANITIZE)
    target_compile_options(kvt_python_${name} PRIVATE -fsanitize=${KVT_SANITIZE})
    target_link_options(kvt_python_${name} PRIVATE -fsanitize=${KVT_SANITIZE})
  endif()
endfunction()

kvt_python_module(native ${python_room}/src/native.c)
target_compile_options(kvt_python_native PRIVATE -Wall -Wextra -UPy_LIMITED_API)
# The library is linked into the module: a wheel is of one version, and no other kvterrace that a
# process may load meets its symbols.
kvt_python_module(kvt ${python_binding})
target_compile_options(kvt_python_kvt PRIVATE -D_GNU_SOURCE -include string.h
  -Werror=incompatible-pointer-types -Werror=int-conversion -Werror=implicit-function-declaration)
add_dependencies(kvt_python_kvt kvterrace_static)
target_link_libraries(kvt_python_kvt PRIVATE $<TARGET_FILE:kvterrace_static> ${KVT_LIBRARY_DEPS})
target_link_options(kvt_python_kvt PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(kvt_python_kvt PROPERTIES LINK_DEPENDS $<TARGET_FILE:kvterrace_static>)

file(GLOB python_sources CONFIGURE_DEPENDS ${python_room}/src/kvterrace/*.py
  ${python_room}/src/kvterrace/*.pyi ${python_room}/src/kvterrace/py.typed)
configure_file(${CMAKE_SOURCE_DIR}/cmake/python_version.py.in
  ${CMAKE_BINARY_DIR}/python_version/_version.py @ONLY)
set(python_stamp ${CMAKE_BINARY_DIR}/python_sources.stamp)
add_custom_command(OUTPUT ${python_stamp}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${python_package}
  COMMAND ${CMAKE_COMMAND} -E copy ${python_sources}
    ${CMAKE_BINARY_DIR}/python_version/_version.py ${python_package}
  COMMAND ${CMAKE_COMMAND} -E touch ${python_stamp}
  DEPENDS ${python_sources} ${CMAKE_BINARY_DIR}/python_version/_version.py VERBATIM)
add_custom_target(kvterrace_python ALL DEPENDS ${python_stamp} kvt_python_kvt kvt_python_native)
