# SPDX-License-Identifier: Apache-2.0
# Tests of what a user gets: headers that compile alone, the installed package, the linter.
function(kvt_script_test name label)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${label}" SKIP_RETURN_CODE 77 TIMEOUT 1200
    ENVIRONMENT "${KVT_TEST_ENVIRONMENT}")
endfunction()

find_program(KVT_CXX NAMES c++ g++ clang++)
kvt_script_test(install/headers install ${CMAKE_SOURCE_DIR}/tests/install/check_headers.sh
  ${CMAKE_SOURCE_DIR}/include ${CMAKE_C_COMPILER} ${KVT_CXX})
kvt_script_test(install/abi install ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/make_abi.py
  check ${CMAKE_SOURCE_DIR}/include ${CMAKE_C_COMPILER} ${CMAKE_SOURCE_DIR}/tests/golden/abi.csv)
kvt_script_test(unit/test_lint "unit;lint" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_lint.py)
kvt_script_test(unit/test_commit_msg "unit;lint" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_commit_msg.py)
kvt_script_test(unit/test_skipped "unit;lint" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_skipped.py)
kvt_script_test(unit/test_base_key_python "unit;base" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_base_key.py)
kvt_script_test(unit/test_codecs_ptx "unit;codecs" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_codecs_ptx.py)
kvt_script_test(unit/test_make_api "unit;install" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_make_api.py)
kvt_script_test(install/bootstrap install ${CMAKE_SOURCE_DIR}/tests/install/check_bootstrap.sh
  ${CMAKE_SOURCE_DIR}/tools/bootstrap.sh)
kvt_script_test(install/ci install ${CMAKE_SOURCE_DIR}/tests/install/check_ci.sh
  ${CMAKE_SOURCE_DIR}/.ci/run)
kvt_script_test(install/package install ${CMAKE_SOURCE_DIR}/tests/install/check_package.sh
  ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER} ${KVT_CXX} "${KVT_SANITIZE}")
foreach(part bases basis clear command drives files keep live loop manners profile profile_manage
    report serve size watch wrong)
  kvt_script_test(unit/test_tools_${part} "unit;tools" ${Python3_EXECUTABLE}
    ${CMAKE_SOURCE_DIR}/tests/unit/test_tools_${part}.py $<TARGET_FILE:kvterrace_command>)
endforeach()
kvt_room_program(run_client_entries ${CMAKE_SOURCE_DIR}/tests/support/run_client_entries.c)
foreach(part grafana operate)
  kvt_script_test(unit/test_tools_${part} "unit;tools" ${Python3_EXECUTABLE}
    ${CMAKE_SOURCE_DIR}/tests/unit/test_tools_${part}.py $<TARGET_FILE:kvterrace_command>
    $<TARGET_FILE:run_client_entries>)
endforeach()
kvt_script_test(unit/test_reference_texts "unit;estimator" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_reference_texts.py)
kvt_script_test(unit/test_reference_training "unit;estimator" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_reference_training.py)
kvt_room_program(run_estimator_model tests/support/run_estimator_model.c)
kvt_script_test(unit/test_model_smollm2 "unit;estimator" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_model_smollm2.py $<TARGET_FILE:run_estimator_model>)
set_tests_properties(unit/test_model_smollm2 PROPERTIES TIMEOUT 3600) # torch, texts of 7K tokens
kvt_script_test(unit/test_model_random "unit;estimator" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_model_random.py $<TARGET_FILE:run_estimator_model>)
kvt_script_test(unit/test_model_configs "unit;estimator" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_model_configs.py $<TARGET_FILE:run_estimator_model>)
kvt_script_test(unit/test_reference_convert "unit;estimator" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_reference_convert.py $<TARGET_FILE:run_estimator_model>)
kvt_script_test(unit/test_lab_rivals "unit;bench" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_lab_rivals.py)
kvt_script_test(unit/test_bench_sequence "unit;bench" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_bench_sequence.py $<TARGET_FILE:kvlab>)
kvt_script_test(unit/test_bench_store "unit;bench" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_bench_store.py $<TARGET_FILE:kvlab>)
kvt_script_test(unit/test_bench_interrupt "unit;bench" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_bench_interrupt.py $<TARGET_FILE:kvlab>)
kvt_script_test(unit/test_bench_grid "unit;bench" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_bench_grid.py $<TARGET_FILE:kvterrace_command>)
kvt_script_test(unit/test_bench_compare "unit;bench" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_bench_compare.py $<TARGET_FILE:kvterrace_command>)
kvt_script_test(unit/test_policy_sessions "unit;policy" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_policy_sessions.py $<TARGET_FILE:kvterrace_command>)
kvt_script_test(unit/test_replay_explain "unit;replay" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_replay_explain.py $<TARGET_FILE:kvterrace_command>)
kvt_script_test(unit/test_policy_dual_milp "unit;policy" ${Python3_EXECUTABLE}
  ${CMAKE_SOURCE_DIR}/tests/unit/test_policy_dual_milp.py $<TARGET_FILE:test_policy_dual>)
if(NOT KVT_SANITIZE)
  kvt_script_test(install/gpu_bundle "install;gpu"
    ${CMAKE_SOURCE_DIR}/tests/install/check_gpu_bundle.sh ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
endif()
kvt_script_test(torture/drives "torture;tiers" ${CMAKE_SOURCE_DIR}/tests/torture/check_drives.sh
  ${CMAKE_SOURCE_DIR}/tests/support/drives ${CMAKE_BINARY_DIR} $<TARGET_FILE:kvlab>)

# The Python package, imported from the build; without it the tests say why and skip. A sanitizer's
# library comes before the interpreter's own; AddressSanitizer keeps 16 MiB of what was freed, so
# that tests can bound the memory of a process.
set(python_preload)
if(KVT_SANITIZE MATCHES "address")
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libasan.so
    OUTPUT_VARIABLE libasan OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(python_preload "LD_PRELOAD=${libasan};ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16")
elseif(KVT_SANITIZE MATCHES "thread")
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=libtsan.so
    OUTPUT_VARIABLE libtsan OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(python_preload "LD_PRELOAD=${libtsan}" "PYTHONMALLOC=malloc" "KVT_SOAK_ANY_MEMORY=1"
    "TSAN_OPTIONS=exitcode=66:suppressions=${CMAKE_SOURCE_DIR}/python/tests/tsan.supp")
endif()
if(KVT_PYTHON_EXECUTABLE)
  set(python_tests ${KVT_PYTHON_EXECUTABLE})
else()
  set(python_tests ${Python3_EXECUTABLE})
endif()
foreach(part async books calibrate codec connect docs generate identity llamacpp lmcache policy
    sglang shared soak store stubs transformers vllm vllm_requests
    vllm_room wrong)
  kvt_script_test(unit/test_package_${part} "unit;python" ${python_tests}
    ${CMAKE_SOURCE_DIR}/python/tests/test_package_${part}.py)
  set_tests_properties(unit/test_package_${part} PROPERTIES
    ENVIRONMENT "${KVT_TEST_ENVIRONMENT};KVT_SANITIZE=${KVT_SANITIZE};${python_preload}")
endforeach()
