#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The soak of the package, plain or under a sanitizer whose library comes before the interpreter.
#
#   soak.sh BUILD none|address|thread SECONDS SEED
#
# The interpreter itself is not built with the sanitizer. Its lock is a mutex and a condition of
# pthread, which ThreadSanitizer sees, and PYTHONMALLOC=malloc makes each of its objects a block of
# the heap, so that memory that Python has freed or has given to another thread is seen as well.
set -eu
build=$1 sanitizer=$2 seconds=$3 seed=$4
room=$(dirname "$0")
export KVT_BINARY_DIR="$build"
# The interpreter itself: a shell between would be run under the sanitizer, too.
python=$("${PYTHON:-python3}" -c 'import sys; print(sys.executable)')
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[^=]*=//p' "$build/CMakeCache.txt")
set -- "$python" "$room/soak.py" --seconds "$seconds" --seed "$seed"
case $sanitizer in
none) exec "$@" ;;
address)
    export PYTHONMALLOC=malloc LD_PRELOAD="$("$compiler" -print-file-name=libasan.so)"
    export ASAN_OPTIONS="detect_leaks=0:quarantine_size_mb=16:${ASAN_OPTIONS:-}"
    export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1" ;;
thread)
    export PYTHONMALLOC=malloc LD_PRELOAD="$("$compiler" -print-file-name=libtsan.so)"
    export TSAN_OPTIONS="second_deadlock_stack=1:halt_on_error=0:exitcode=66:${TSAN_OPTIONS:-}"
    TSAN_OPTIONS="$TSAN_OPTIONS:suppressions=$room/tsan.supp"
    # What ThreadSanitizer notes of each block of memory grows as blocks move.
    export KVT_SOAK_ANY_MEMORY=1 ;;
*) echo "soak.sh: no sanitizer $sanitizer" >&2; exit 2 ;;
esac
exec "$@"
