#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gpu.sh FOLDER [SECONDS]: all tests that need a GPU, by the programs in a folder: decoding beside
# the processor's instruction sets, the hbm device, and loads, pages and faults. Each may take so
# long (default: 120), a minute in all on an idle machine. `make test-gpu` runs it in the build, the
# bundle in its own folder. Exit code 0; 1: a test failed; 77: no GPU answers, with one line.
set -u
folder=$1 seconds=${2:-120}
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

# run NAME PROGRAM: 0, 1, 77.
run() {
    timeout "$seconds" "$folder/$2" >"$log" 2>&1
    code=$?
    case $code in
    0) echo "passed: $1" ;;
    77) reason=$(sed -n 's/^skipped: //p' "$log" | head -n 1) ;;
    *)
        echo "FAILED: $1 (exit code $code)"
        tail -n 20 "$log"
        code=1
        ;;
    esac
    return $code
}

export KVT_TEST_ISA=cuda KVT_TEST_BACKEND=hbm
failed=0 ran=0 reason=
for test in "decoding:conform_codecs_all" "the hbm device:conform_tiers_device" \
    "loads, pages and faults:test_bench_gpu"; do
    run "${test%%:*}" "${test##*:}"
    case $? in
    0) ran=1 ;;
    77) [ $ran -eq 0 ] || echo "skipped: ${test%%:*}: $reason" ;;
    *) ran=1 failed=1 ;;
    esac
    if [ $ran -eq 0 ]; then
        echo "skipped, for no GPU answers: $reason"
        exit 77
    fi
done
exit $failed
