# SPDX-License-Identifier: Apache-2.0
# Fuzz targets: tests/fuzz/fuzz_*.c, one program each. With KVT_FUZZ libFuzzer drives them: by hand
# for as long as you like; a test run gives each a fixed number of inputs, after its corpus. Without
# it the same targets run over their corpus and a few mutations of each file.
# What libFuzzer finds to be new goes to the build folder, never to the sources.
# A target's corpus is one archive, tests/fuzz/corpus/TARGET.tar.zst, which a configure unpacks into
# the build folder when it has changed; tools/fuzz_corpus.sh adds inputs.
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
set(KVT_FUZZ_RUNS 5000 CACHE STRING "inputs per fuzz target in a test run")

foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source} ${CMAKE_SOURCE_DIR}/tests/support/test_memory.c)
  kvt_add_rooms(${name} ${KVT_LIBRARY_ROOMS} wire rivals replay inspect command quality
    exchange)
  target_link_libraries(${name} PRIVATE kvt_flags ${KVT_LIBRARY_DEPS} PkgConfig::JANSSON
    PkgConfig::OPENBLAS PkgConfig::ZLIB)
  if(name STREQUAL "fuzz_ptx")
    target_link_libraries(${name} PRIVATE kvt_ptx)
  endif()
  set(archive ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${name}.tar.zst)
  set(corpus)
  set(inputs)
  if(EXISTS ${archive})
    set(corpus ${CMAKE_BINARY_DIR}/corpus_inputs/${name})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${archive})
    if(NOT EXISTS ${corpus} OR ${archive} IS_NEWER_THAN ${corpus})
      file(REMOVE_RECURSE ${corpus})
      file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${corpus} TOUCH)
      file(TOUCH ${corpus})
    endif()
    file(GLOB inputs ${corpus}/*)
  endif()
  if(KVT_FUZZ)
    set(found ${CMAKE_BINARY_DIR}/corpus/${name})
    file(MAKE_DIRECTORY ${found})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_test(NAME fuzz/${name} COMMAND ${name} -runs=${KVT_FUZZ_RUNS} -seed=1 -max_len=65536
      ${found} ${corpus} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  else()
    target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus_main.c)
    add_test(NAME fuzz/${name} COMMAND ${name} -r 100 ${inputs}
      WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  endif()
  set_tests_properties(fuzz/${name} PROPERTIES LABELS fuzz TIMEOUT 600)
endforeach()
target_link_libraries(fuzz_kernels PRIVATE kvt_kernel_lanes)
target_link_libraries(fuzz_kernels_transform PRIVATE kvt_kernel_lanes)
