#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gpu_bundle.sh BUILD FOLDER: what a machine with a GPU and its driver needs to run the tests of a
# GPU and `kvlab gpu`: programs, the shared objects that they take, and run.sh. FOLDER is made anew,
# and FOLDER.tar.gz beside it. The programs make their data themselves.
set -eu
build=$1 folder=$2
tree=$(cd "$(dirname "$0")/.." && pwd)
programs="kvlab conform_codecs_all conform_tiers_device test_bench_gpu"

if [ -e "$folder" ] && [ ! -e "$folder/run.sh" ]; then
    echo "gpu_bundle.sh: $folder is there and no bundle" >&2
    exit 1
fi
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib/base"
for program in $programs; do
    install -m 755 "$build/$program" "$folder/bin/"
    strip "$folder/bin/$program"
    ldd "$build/$program"
done >"$folder/list"
if grep -q 'not found' "$folder/list"; then
    grep 'not found' "$folder/list" >&2
    exit 1
fi
# The C library is for machines whose own is older: a folder of its own.
for object in $(sed -n -e 's/^.*=> \(\/[^ ]*\) .*$/\1/p' \
    -e 's/^[[:space:]]*\(\/[^ ]*ld-linux[^ ]*\) .*$/\1/p' "$folder/list" | sort -u); do
    case ${object##*/} in
    ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so*)
        install -m 755 "$object" "$folder/lib/base/"
        ;;
    *) install -m 644 "$object" "$folder/lib/" ;;
    esac
done
rm "$folder/list"
install -m 755 "$tree/tests/gpu.sh" "$tree/tools/gpu_run.sh" "$folder/"
mv "$folder/gpu_run.sh" "$folder/run.sh"
tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")"
echo "$folder and $folder.tar.gz ($(($(wc -c <"$folder.tar.gz") / 1048576)) MiB)"
