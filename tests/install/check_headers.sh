#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_headers.sh INCLUDE_DIR CC CXX: every public header compiles alone, as C11 and as C++17.
set -eu
include_dir=$1 cc=$2 cxx=$3
flags="-Wall -Wextra -Wpedantic -Werror -fsyntax-only"
count=0
for header in "$include_dir"/kvterrace/*.h; do
    # Through a file of one line: a header that is the main file draws warnings of its own.
    line="#include <kvterrace/${header##*/}>"
    # shellcheck disable=SC2086 # a list of words on purpose
    echo "$line" | "$cc" -x c -std=c11 $flags "-I$include_dir" -
    # shellcheck disable=SC2086
    echo "$line" | "$cxx" -x c++ -std=c++17 $flags "-I$include_dir" -
    count=$((count + 1))
done
# Who asks for what is stable alone is refused all else.
stable() {
    printf '#define KVT_STABLE_ONLY\n#include <kvterrace/sparse.h>\nvoid f(void) { %s(0); }\n' \
        "$1" |
        "$cc" -x c -std=c11 -fsyntax-only "-I$include_dir" -
}
stable kvt_store_close
! stable kvt_sparse_close 2>/dev/null || { echo "KVT_STABLE_ONLY lets sparse.h in" >&2; exit 1; }
# Tables of members are the library's own.
! echo "#include <kvterrace/kvterrace.h>" | "$cc" -x c -std=c11 "-I$include_dir" -E - |
    grep -E 'struct kvt_(codec|device_ops) +\{' || { echo "kvterrace.h holds a vtable"; exit 1; }
[ "$count" -ge 8 ] || { echo "only $count headers in $include_dir" >&2; exit 1; }
echo "$count headers compile alone"
