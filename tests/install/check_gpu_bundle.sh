#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_gpu_bundle.sh SOURCE BUILD: the bundle of a GPU's tests starts from another folder, with an
# empty environment, by its own libraries and by its own C library; without a GPU each start says so
# in its lines and ends with 77. With programs that end as they are told it says what was reached.
set -eu
source=$1 build=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
    echo "check_gpu_bundle.sh: $1" >&2
    exit 1
}

"$source/tools/gpu_bundle.sh" "$build" "$scratch/made/kvterrace-gpu" >"$scratch/said"
size=$(($(wc -c <"$scratch/made/kvterrace-gpu.tar.gz") / 1048576))
[ $size -le 60 ] || fail "$size MiB; a machine with a GPU takes 64"
mkdir "$scratch/else where"
tar -C "$scratch/else where" -xzf "$scratch/made/kvterrace-gpu.tar.gz"
rm -rf "$scratch/made"
bundle="$scratch/else where/kvterrace-gpu"

# A folder that is no bundle stays.
mkdir "$scratch/mine"
"$source/tools/gpu_bundle.sh" "$build" "$scratch/mine" 2>/dev/null && fail "overwrote a folder"
[ -d "$scratch/mine" ] || fail "removed a folder"

# All objects come from the bundle, but for the C library's.
for program in "$bundle"/bin/*; do
    env -i LD_LIBRARY_PATH="$bundle/lib" ldd "$program" >"$scratch/objects"
    ! grep 'not found' "$scratch/objects" || fail "${program##*/} lacks an object"
    others=$(sed -n 's/^.*=> \(.*\) (0x.*$/\1/p' "$scratch/objects" | grep -v "^$bundle/lib/" |
        grep -v -E '/(libc|libm|libpthread|libdl|librt)\.so' || :)
    [ -z "$others" ] || fail "${program##*/} takes $others"
done

# start NAME=VALUE...: with nothing else in the environment. Sets code, and fills `said`.
start() {
    code=0
    (cd "$scratch" && env -i PATH=/usr/bin:/bin "$@" "$bundle/run.sh" --quick) \
        >"$scratch/said" 2>&1 || code=$?
}

start LD_DEBUG=libs LD_DEBUG_OUTPUT="$scratch/debug"
if [ $code -ne 77 ] && nvidia-smi >/dev/null 2>&1; then
    cat "$scratch/said" # a GPU is here: its bars are no matter of this test
    exit 0
fi
for base in "" 1; do
    [ -z "$base" ] || start KVT_BUNDLE_BASE=1
    [ $code -eq 77 ] || { cat "$scratch/said"; fail "exit code $code without a GPU"; }
    [ "$(grep -c '^skipped' "$scratch/said")" -eq 2 ] ||
        fail "not one line each: $(cat "$scratch/said")"
    [ ! -e "$scratch/gpu.json" ] || fail "results without a GPU"
done

cat "$scratch"/debug.* >"$scratch/debug"
grep -q "calling init: $bundle/lib/libopenblas" "$scratch/debug" || fail "not its own libraries"

# What run.sh makes of programs that end so and of rows that say so. `as NAME LINE...`: a program.
as() {
    name=$1
    shift
    printf '#!/bin/sh\n' >"$bundle/bin/$name"
    printf '%s\n' "$@" >>"$bundle/bin/$name"
}
row() {
    printf '  {\n   "bar": 1,\n   "case": "decode",\n   "variant": "raw",\n   "side": "k",\n'
    printf '   "measure": "traffic_ratio",\n   "asked": 0.9,\n   "bound": "least",\n'
    printf '   "reached": %s,\n   "met": %s,\n   "not_run": %s\n  },\n' "$@"
}
for program in conform_codecs_all conform_tiers_device test_bench_gpu; do
    as $program "exit 0"
done
as kvlab '[ "$1" != --version ] || exit 0' "cat '$scratch/rows'"
row 0.95 true null >"$scratch/rows"
row null null '"not run: the time is over"' >>"$scratch/rows"
start
[ $code -eq 0 ] || fail "exit code $code when all is reached: $(cat "$scratch/said")"
grep -q '^reached  1: decode, raw, k: traffic_ratio 0.95 (least 0.9)$' "$scratch/said" ||
    fail "no line of what was reached: $(cat "$scratch/said")"
grep -q '^skipped  1: decode, raw, k: not run: the time is over$' "$scratch/said" ||
    fail "no line of what was skipped"
[ -s "$scratch/gpu.json" ] || fail "no results"
row 0.5 false null >>"$scratch/rows"
start
[ $code -eq 1 ] || fail "exit code $code when a bar is missed"
row 0.95 true null >"$scratch/rows"
as conform_tiers_device "echo broken" "exit 3"
start
[ $code -eq 1 ] || fail "exit code $code when a test fails"
grep -q '^FAILED: the hbm device' "$scratch/said" || fail "no line of what failed"
as conform_tiers_device "echo 'skipped: gone'" "exit 77"
start
[ $code -eq 0 ] || fail "exit code $code when a test skips beside others"
grep -q '^skipped: the hbm device: gone$' "$scratch/said" || fail "no line of a test that skips"
echo "the bundle starts, $size MiB"
