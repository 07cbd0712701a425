# libFuzzer targets: tests/fuzz/fuzz_<room>_*.c, one program each, linked to its room's
# objects. Run one by hand for as long as you like; the tests run each over a fixed number of inputs.
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
set(KVT_FUZZ_RUNS 20000 CACHE STRING "inputs per fuzz target in a test run")

foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  kvt_room_program(${name} ${source})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_test(NAME fuzz/${name} COMMAND ${name} -runs=${KVT_FUZZ_RUNS} -seed=1 -max_len=65536
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(fuzz/${name} PROPERTIES LABELS fuzz TIMEOUT 600)
endforeach()
