# SPDX-License-Identifier: Apache-2.0
# Tests: <kind-prefix>_<room>_*.c below tests/<kind>/ become one program each, linked to the objects
# of the room they test and of the rooms that it may include. The label is kind and room.
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

set(KVT_NEEDS_base base number ground)
set(KVT_NEEDS_codecs codecs ${KVT_NEEDS_base})
set(KVT_NEEDS_basis basis codecs ${KVT_NEEDS_base})
set(KVT_NEEDS_policy policy rivals decide ${KVT_NEEDS_base})
set(KVT_NEEDS_gpu gpu codecs ${KVT_NEEDS_base})
set(KVT_NEEDS_tiers tiers gpu codecs ${KVT_NEEDS_base})
set(KVT_NEEDS_estimator estimator exchange quality basis codecs tiers gpu ${KVT_NEEDS_base})
set(KVT_NEEDS_wire wire ${KVT_NEEDS_base})
set(KVT_NEEDS_remote remote ${KVT_NEEDS_base})
set(KVT_NEEDS_store client server wire store remote exchange estimator basis codecs tiers gpu
    ${KVT_NEEDS_policy})
set(KVT_NEEDS_server ${KVT_NEEDS_store})
set(KVT_NEEDS_client ${KVT_NEEDS_store})
set(KVT_NEEDS_sparse sparse ${KVT_NEEDS_store})
# What replays, and what lab/ benches; both stand on all the rooms.
set(KVT_NEEDS_replay replay inspect command quality ${KVT_NEEDS_sparse})
set(KVT_NEEDS_bench lab ${KVT_NEEDS_replay})

set(KVT_TEST_ENVIRONMENT "KVT_SOURCE_DIR=${CMAKE_SOURCE_DIR};KVT_BINARY_DIR=${CMAKE_BINARY_DIR}")

# Programs of more than one source file; the others are in tests/torture.
set(KVT_SOURCES_torture_store_expected expected_values.c expected_model.c expected_basis.c
  expected_life.c)
set(KVT_SOURCES_test_store_expected expected_values.c expected_model.c)
set(KVT_SOURCES_torture_store_soak expected_values.c)
set(KVT_SOURCES_torture_store_calls expected_values.c history.c calls_values.c memory_drive.c
  calls_site.c calls_direct.c calls_queue.c calls_load.c)
set(KVT_SOURCES_torture_client_calls ${KVT_SOURCES_torture_store_calls})
set(KVT_SOURCES_test_store_history history.c)
set(KVT_SOURCES_torture_store_power expected_values.c power_record.c power_image.c)

set(KVT_SOURCES_torture_store_schedule expected_values.c schedule.c memory_drive.c
  schedule_store.c schedule_queue.c)
set(KVT_SOURCES_torture_store_planted ${KVT_SOURCES_torture_store_schedule})

# Functions that the linker sends to a program's own __wrap_ of that name.
set(KVT_WRAPPED_test_store_get_plan kvt_record_bound kvt_record_scratch_parallel
  kvt_record_decode_parallel)
set(KVT_WRAPPED_test_store_lifetime base_clock_ns base_calendar_ns)
set(KVT_WRAPPED_test_store_open_threads base_thread_start lifetime_open)
set(KVT_WRAPPED_torture_store_basis malloc calloc realloc aligned_alloc)
set(KVT_WRAPPED_torture_store_pairs malloc calloc realloc aligned_alloc kvt_policy_commit
  kvt_policy_abort)
# What makes a store's decisions the same on every machine (tests/support/steady_costs.h).
set(KVT_WRAPPED_STEADY costs_probe_device costs_measure_variant learn_open)
foreach(subject drop groups_ladder ladder)
  set(KVT_WRAPPED_test_store_${subject} ${KVT_WRAPPED_STEADY} store_now_ns)
endforeach()
set(KVT_WRAPPED_test_server_drop ${KVT_WRAPPED_STEADY} store_now_ns)
list(APPEND KVT_WRAPPED_test_store_ladder staging_acquire)
set(KVT_WRAPPED_torture_store_ring ${KVT_WRAPPED_STEADY}) # it opens five stores a cycle
set(KVT_WRAPPED_test_replay_live_forms ${KVT_WRAPPED_STEADY}) # requests come by the real clock
set(KVT_WRAPPED_test_store_copies kvt_policy_adopt)
set(KVT_WRAPPED_test_store_memory tiers_worker_queue)
set(KVT_WRAPPED_test_store_threads pthread_create)
set(KVT_WRAPPED_test_replay_offers kvt_policy_admit kvt_policy_ladder_add costs_profiled_device
  costs_measure_variant learn_size_shares)

# What a schedule decides (tests/torture/schedule.h).
set(KVT_WRAPPED_SCHEDULE pthread_mutex_lock pthread_mutex_unlock pthread_mutex_trylock
  pthread_cond_wait pthread_cond_timedwait pthread_cond_signal pthread_cond_broadcast
  pthread_create pthread_join pthread_detach base_clock_ns base_clock_seconds base_calendar_ns
  base_cpu_seconds base_sleep base_sleep_until getrandom kvt_record_encode_parallel
  kvt_record_decode_parallel costs_probe_device costs_measure_variant codecs_arriving_steps
  tiers_piece_bytes)
set(KVT_WRAPPED_torture_store_schedule ${KVT_WRAPPED_SCHEDULE})
set(KVT_WRAPPED_torture_store_planted ${KVT_WRAPPED_SCHEDULE} transfer_write tiers_pool_close
  place_drain)

# The rooms with kill points (base/kill_point.h), built a second time for the programs that kill
# themselves there.
set(KVT_KILLABLE_PROGRAMS test_store_expected torture_store_basis torture_store_early
  torture_store_expected
  torture_store_power torture_store_return)
foreach(room store tiers)
  get_target_property(sources kvt_${room} SOURCES)
  get_target_property(libraries kvt_${room} LINK_LIBRARIES)
  add_library(kvt_${room}_killable OBJECT ${sources})
  target_link_libraries(kvt_${room}_killable PRIVATE ${libraries})
  target_compile_definitions(kvt_${room}_killable PRIVATE KVT_KILL_POINTS)
endforeach()

# A program named <prefix>_<room>_<subject> from one source and the rooms that it needs.
function(kvt_room_program name source)
  string(REGEX MATCH "^[a-z]+_([a-z]+)" ignored ${name})
  set(room ${CMAKE_MATCH_1})
  if(NOT DEFINED KVT_NEEDS_${room})
    message(FATAL_ERROR "${source}: '${room}' is not a room with tests")
  endif()
  list(TRANSFORM KVT_SOURCES_${name} PREPEND ${CMAKE_SOURCE_DIR}/tests/torture/
    OUTPUT_VARIABLE others)
  add_executable(${name} ${source} ${others})
  set(needs ${KVT_NEEDS_${room}})
  if(name IN_LIST KVT_KILLABLE_PROGRAMS)
    list(TRANSFORM needs REPLACE "^(store|tiers)$" "\\1_killable")
    target_compile_definitions(${name} PRIVATE KVT_KILL_POINTS)
  endif()
  kvt_add_rooms(${name} ${needs})
  target_link_libraries(${name} PRIVATE kvt_flags ${KVT_LIBRARY_DEPS} PkgConfig::JANSSON)
  if("quality" IN_LIST KVT_NEEDS_${room})
    target_link_libraries(${name} PRIVATE PkgConfig::OPENBLAS PkgConfig::ZLIB)
  endif()
endfunction()

# The run of a program's cases, and its main where it has none.
add_library(kvt_test_cases OBJECT ${CMAKE_SOURCE_DIR}/tests/support/cases.c
  ${CMAKE_SOURCE_DIR}/tests/support/test_memory.c)
target_link_libraries(kvt_test_cases PRIVATE kvt_flags PkgConfig::CMOCKA)

# Unit tests' stores open with an engine that is not there where the environment says so.
# They may be another process's, too.
foreach(stand_in absent_engine lent_store)
  add_library(kvt_${stand_in} OBJECT ${CMAKE_SOURCE_DIR}/tests/support/${stand_in}.c)
  target_link_libraries(kvt_${stand_in} PRIVATE kvt_flags)
  target_include_directories(kvt_${stand_in} PRIVATE ${CMAKE_SOURCE_DIR}
    ${CMAKE_SOURCE_DIR}/include)
endforeach()

# What a store measures of memory is measured once in a program of these rooms.
add_library(kvt_brief_costs OBJECT ${CMAKE_SOURCE_DIR}/tests/support/brief_costs.c)
target_link_libraries(kvt_brief_costs PRIVATE kvt_flags)
target_include_directories(kvt_brief_costs PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)

# A device that misbehaves on order, for the programs that have the devices.
add_library(kvt_fault_device STATIC ${CMAKE_SOURCE_DIR}/tests/support/fault_device.c)
target_link_libraries(kvt_fault_device PRIVATE kvt_flags)
target_include_directories(kvt_fault_device PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)

# The kernels of a GPU for this processor, for the programs that launch them.
add_library(kvt_kernel_lanes OBJECT ${CMAKE_SOURCE_DIR}/tests/support/kernel_lanes.c)
target_link_libraries(kvt_kernel_lanes PRIVATE kvt_flags)
file(GLOB kernel_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/codecs/kernels/*.cu)
set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/support/kernel_lanes.c PROPERTIES
  COMPILE_OPTIONS "-ffp-contract=off" OBJECT_DEPENDS "${kernel_sources}")

# What runs the text of GPU kernels on the CPU (docs/TESTING.md, Kernels without a GPU).
file(GLOB ptx_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/ptx_*.c)
add_library(kvt_ptx STATIC ${ptx_sources})
target_link_libraries(kvt_ptx PRIVATE kvt_flags)

function(kvt_test_program source kind)
  get_filename_component(name ${source} NAME_WE)
  kvt_room_program(${name} ${source})
  string(REGEX MATCH "^[a-z]+_([a-z]+)" ignored ${name})
  set(room ${CMAKE_MATCH_1})
  target_link_libraries(${name} PRIVATE kvt_test_cases kvt_fault_device PkgConfig::CMOCKA)
  if(name MATCHES "^test_codecs_ptx|^test_bench_gpu")
    target_link_libraries(${name} PRIVATE kvt_ptx)
  endif()
  foreach(wrapped ${KVT_WRAPPED_${name}})
    target_link_options(${name} PRIVATE LINKER:--wrap=${wrapped})
  endforeach()
  if(name MATCHES "^test_store_" AND NOT name MATCHES "_remote")
    target_link_libraries(${name} PRIVATE kvt_absent_engine kvt_lent_store)
    target_link_options(${name} PRIVATE LINKER:--wrap=kvt_store_open LINKER:--wrap=kvt_store_close)
  endif()
  if(name MATCHES "^(test|torture)_(store|sparse)_" AND NOT name MATCHES "_costs$"
      AND NOT "costs_probe_device" IN_LIST KVT_WRAPPED_${name})
    target_link_libraries(${name} PRIVATE kvt_brief_costs)
    target_link_options(${name} PRIVATE LINKER:--wrap=costs_probe_device)
  endif()
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support)
  add_test(NAME ${kind}/${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${kind}/${name} PROPERTIES LABELS "${kind};${room}" SKIP_RETURN_CODE 77
    TIMEOUT 1200 ENVIRONMENT "${KVT_TEST_ENVIRONMENT}")
endfunction()

foreach(pair "unit;test" "conform;conform" "golden;golden" "torture;torture")
  list(GET pair 0 kind)
  list(GET pair 1 prefix)
  file(GLOB_RECURSE programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${kind}/${prefix}_*.c)
  foreach(source ${programs})
    kvt_test_program(${source} ${kind})
  endforeach()
endforeach()

target_link_libraries(test_sparse_fork PRIVATE kvt_lent_store)
kvt_add_rooms(conform_codecs_all gpu)
target_link_libraries(conform_codecs_all PRIVATE kvt_kernel_lanes)
foreach(program test_codecs_jobs test_estimator_gpu test_store_gpu test_store_gpu_basis
    test_store_gpu_costs test_store_gpu_dram test_store_gpu_far test_store_gpu_kernels
    test_store_gpu_encrypted test_store_gpu_moves test_store_gpu_stored test_store_load_coarse
    test_bench_gpu)
  target_link_libraries(${program} PRIVATE kvt_kernel_lanes)
endforeach()

# Cases of kernels by the host's build of them, and the same by the PTX that ships: docs/TESTING.md,
# Kernels without a GPU.
foreach(room codecs basis)
  set(name test_${room}_kernels)
  target_link_libraries(${name} PRIVATE kvt_kernel_lanes)
  kvt_room_program(${name}_ptx ${CMAKE_SOURCE_DIR}/tests/unit/${room}/${name}.c)
  target_sources(${name}_ptx PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/kernel_ptx.c)
  target_include_directories(${name}_ptx PRIVATE ${CMAKE_SOURCE_DIR}/tests/support)
  target_link_libraries(${name}_ptx PRIVATE kvt_ptx kvt_test_cases PkgConfig::CMOCKA)
  add_test(NAME unit/${name}_ptx COMMAND ${name}_ptx WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(unit/${name}_ptx PROPERTIES LABELS "unit;${room}" TIMEOUT 1200
    ENVIRONMENT "${KVT_TEST_ENVIRONMENT}")
endforeach()

# The ring's kernel, so, over a ring whose threads run meanwhile.
target_link_libraries(test_store_ring_gpu PRIVATE kvt_kernel_lanes)
kvt_room_program(test_store_ring_gpu_ptx
  ${CMAKE_SOURCE_DIR}/tests/unit/store/ring/test_store_ring_gpu.c)
target_sources(test_store_ring_gpu_ptx PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/kernel_ptx.c)
target_include_directories(test_store_ring_gpu_ptx PRIVATE ${CMAKE_SOURCE_DIR}/tests/support)
target_link_libraries(test_store_ring_gpu_ptx PRIVATE kvt_ptx kvt_test_cases kvt_fault_device
  kvt_brief_costs PkgConfig::CMOCKA)
target_link_options(test_store_ring_gpu_ptx PRIVATE LINKER:--wrap=costs_probe_device)
add_test(NAME unit/test_store_ring_gpu_ptx COMMAND test_store_ring_gpu_ptx
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
set_tests_properties(unit/test_store_ring_gpu_ptx PROPERTIES LABELS "unit;store" TIMEOUT 1200
  SKIP_RETURN_CODE 77)

# Tests of what is here alone, with an engine that is not there: docs/TESTING.md, An absent engine.
set(KVT_ABSENT_refuses access basis_lack copies deadline groups hint lifetime load load_shared
  put put_view queue queue_batches queue_puts queue_shares sizes staging view watch)
set(KVT_ABSENT_silent access deadline hint lifetime load put_view queue_batches queue_puts)
foreach(mode refuses silent)
  foreach(subject ${KVT_ABSENT_${mode}})
    set(name unit/test_store_${subject}_${mode})
    add_test(NAME ${name} COMMAND test_store_${subject} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set_tests_properties(${name} PROPERTIES LABELS "unit;store" SKIP_RETURN_CODE 77 TIMEOUT 1200
      ENVIRONMENT "${KVT_TEST_ENVIRONMENT};KVT_TEST_ENGINE=${mode}")
  endforeach()
endforeach()

# The same programs over a store that a server lends: docs/TESTING.md, Over a connection.
foreach(subject access basis deadline events groups hint lease list load pass put_view restart
    sides)
  set(name unit/test_store_${subject}_lent)
  add_test(NAME ${name} COMMAND test_store_${subject} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "unit;client" SKIP_RETURN_CODE 77 TIMEOUT 1200
    ENVIRONMENT "${KVT_TEST_ENVIRONMENT};KVT_TEST_LENT=1")
endforeach()

# Tests of what a store decides flush hundreds of times: their few MiB of files lie in memory, where
# a sync costs nothing. Those of recovery, opening and catalogs stay on the build folder's drive.
if(IS_DIRECTORY /dev/shm)
  foreach(subject copies health hint learn lifetime members names persist pressure queue_loss trust
      visit)
    foreach(suffix "" _refuses _silent)
      if(TEST unit/test_store_${subject}${suffix})
        set_tests_properties(unit/test_store_${subject}${suffix} PROPERTIES
          WORKING_DIRECTORY /dev/shm)
      endif()
    endforeach()
  endforeach()
endif()

# What the hbm device takes for NVIDIA's driver library, in a folder of its own: only the tests that
# name the folder find it.
add_library(kvt_fake_cuda SHARED ${CMAKE_SOURCE_DIR}/tests/support/fake_cuda.c)
target_link_libraries(kvt_fake_cuda PRIVATE kvt_flags)
set_target_properties(kvt_fake_cuda PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_cuda)
foreach(program test_estimator_gpu test_tiers_device_hbm test_sparse_hbm test_store_gpu
    test_store_gpu_basis test_store_gpu_costs test_store_gpu_dram test_store_gpu_far
    test_store_gpu_encrypted test_store_gpu_kernels test_store_gpu_moves test_store_gpu_stored
    test_store_load_coarse test_store_ring_gpu test_store_ring_gpu_ptx)
  add_dependencies(${program} kvt_fake_cuda)
  set_tests_properties(unit/${program} PROPERTIES
    ENVIRONMENT "${KVT_TEST_ENVIRONMENT};LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fake_cuda")
endforeach()
foreach(test conform/conform_tiers_device conform/conform_codecs_all unit/test_bench_gpu)
  get_filename_component(program ${test} NAME)
  add_test(NAME ${test}_fake_gpu COMMAND ${program} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${test}_fake_gpu PROPERTIES LABELS "gpu"
    SKIP_RETURN_CODE 77 TIMEOUT 1200 ENVIRONMENT
    "${KVT_TEST_ENVIRONMENT};KVT_TEST_ISA=cuda;LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fake_cuda")
  add_dependencies(${program} kvt_fake_cuda)
endforeach()

# What the mooncake back end takes for libmooncake_store.so, in a folder of its own.
add_library(kvt_fake_mooncake SHARED ${CMAKE_SOURCE_DIR}/tests/support/fake_mooncake.c)
target_link_libraries(kvt_fake_mooncake PRIVATE kvt_flags Threads::Threads)
set_target_properties(kvt_fake_mooncake PROPERTIES OUTPUT_NAME mooncake_store
  C_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fake_mooncake)
foreach(name unit/test_remote_mooncake unit/test_store_remote_mooncake conform/conform_remote_all)
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "${KVT_TEST_ENVIRONMENT};LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/fake_mooncake")
endforeach()
add_dependencies(test_remote_mooncake kvt_fake_mooncake)
add_dependencies(test_store_remote_mooncake kvt_fake_mooncake)
add_dependencies(conform_remote_all kvt_fake_mooncake)

# The real engine, by way of PyPI's wheel: left out where KVT_MOONCAKE_WHEEL names none.
kvt_room_program(run_remote_mooncake ${CMAKE_SOURCE_DIR}/tests/support/run_remote_mooncake.c)
kvt_room_program(run_store_mooncake ${CMAKE_SOURCE_DIR}/tests/support/run_store_mooncake.c)
pkg_check_modules(PYTHON_EMBED QUIET IMPORTED_TARGET python3-embed)
if(PYTHON_EMBED_FOUND)
  add_library(kvt_mooncake_wheel SHARED ${CMAKE_SOURCE_DIR}/tests/support/mooncake_wheel.c)
  target_link_libraries(kvt_mooncake_wheel PRIVATE PkgConfig::PYTHON_EMBED Threads::Threads
    ${CMAKE_DL_LIBS})
  set_target_properties(kvt_mooncake_wheel PROPERTIES OUTPUT_NAME mooncake_store
    C_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/mooncake_wheel)
endif()
add_test(NAME unit/test_remote_mooncake_engine COMMAND ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_remote_mooncake_engine.py
  $<TARGET_FILE:conform_remote_all> $<TARGET_FILE:run_remote_mooncake>
  $<TARGET_FILE:test_store_remote_mooncake> $<TARGET_FILE:run_store_mooncake>
  ${CMAKE_BINARY_DIR}/mooncake_wheel)
set_tests_properties(unit/test_remote_mooncake_engine PROPERTIES LABELS "unit;remote"
  SKIP_RETURN_CODE 77 TIMEOUT 600)

include(cmake/tests_install.cmake)
include(cmake/tests_nvme.cmake)
