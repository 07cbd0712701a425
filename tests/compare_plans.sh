#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the plan log of a sparse sequence with gcc and with clang, and compares the two.
#
#     tests/compare_plans.sh [FOLDER]     FOLDER: of both builds, build/plans without it
set -eu
cd "$(dirname "$0")/.."
folder=${1:-build/plans}
for compiler in gcc clang; do
    cmake -S . -B "$folder/$compiler" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=$compiler \
        > /dev/null
    cmake --build "$folder/$compiler" --target test_sparse_plans
    "$folder/$compiler/test_sparse_plans" --print > "$folder/$compiler.log"
done
cmp "$folder/gcc.log" "$folder/clang.log"
wc -l < "$folder/gcc.log"
