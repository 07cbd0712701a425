# SPDX-License-Identifier: Apache-2.0
# The PTX of the GPU's kernels becomes a part of the library: kernel_ptx_NAME, a text that ends with
# 0, of each codecs/kernels/ptx/NAME.ptx. Included by the build, this file adds the rule; run as a
# script (cmake -D TARGET=... -D FILES=... -P), it writes the texts.
if(CMAKE_SCRIPT_MODE_FILE)
  set(text "/* Written by cmake/ptx.cmake. */\n")
  foreach(file ${FILES})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND text "extern const char kernel_ptx_${name}[];\n"
      "const char kernel_ptx_${name}[] = {${bytes}0};\n")
  endforeach()
  file(WRITE ${TARGET} "${text}")
  return()
endif()

file(GLOB ptx_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/codecs/kernels/ptx/*.ptx)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/kernel_ptx.c
  COMMAND ${CMAKE_COMMAND} -D TARGET=${CMAKE_BINARY_DIR}/kernel_ptx.c -D "FILES=${ptx_files}"
    -P ${CMAKE_CURRENT_LIST_FILE}
  DEPENDS ${CMAKE_CURRENT_LIST_FILE} ${ptx_files} VERBATIM
  COMMENT "Putting the kernels of a GPU into the library")
target_sources(kvt_codecs PRIVATE ${CMAKE_BINARY_DIR}/kernel_ptx.c)
