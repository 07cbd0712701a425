#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_ci.sh RUN: what .ci/run calls sees the user's home and path, blanks and all, and no variable
# that decides what a program does. make is played: it writes its environment down and fails.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/b in"
printf '#!/bin/sh\nenv >"%s/seen"\nexit 9\n' "$work" >"$work/b in/make"
chmod +x "$work/b in/make"

code=0
HOME="$work/the home" PATH="$work/b in:$PATH" CI=true OPENBLAS_CORETYPE=Haswell CFLAGS=-O0 \
    KVT_DATA_DIR=/nowhere LD_PRELOAD='' MAKEFLAGS=k "$1" || code=$?
[ "$code" -eq 9 ] || { echo "exit $code, not that of make"; exit 1; }
for line in "HOME=$work/the home" "PATH=$work/b in:$PATH" CI=true; do
    grep -qxF -e "$line" "$work/seen" || { echo "$line is lost"; exit 1; }
done
! grep -E '^(OPENBLAS_CORETYPE|CFLAGS|KVT_.*|LD_PRELOAD|MAKEFLAGS)=' "$work/seen" ||
    { echo "the environment is not cleared"; exit 1; }
echo "$(wc -l <"$work/seen") variables"
