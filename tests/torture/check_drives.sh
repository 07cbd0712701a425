#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_drives.sh DRIVES BUILD COMMAND: the script that makes emulated drives, and a bench on them.
# Exit 77 where the machine cannot make any.
set -eu
drives=$1
build=$2
command=$3

skip() {
    echo "skipped: $1"
    exit 77
}

[ -x "$build/emulated_drive" ] || skip "emulated_drive is not built (libfuse3-dev)"
[ "$(id -u)" -eq 0 ] && [ -w /dev/fuse ] || skip "needs root and /dev/fuse"
folder=$(mktemp -d)/drives
run() { "$drives" --at "$folder" --build "$build" "$@"; }
finish() {
    run down
    rmdir "$(dirname "$folder")"
}
trap finish EXIT

fail() {
    echo "check_drives: $1" >&2
    exit 1
}

run up --size 32Mi --ram 0 --for 550 400 800 >/dev/null || skip "the drives do not come up here"
sed -i 's/^emulated = yes$/&\ntimeout = 0/' "$folder/drives.ini" # however busy the machine is
"$command" stripe --quick --json --config "$folder/drives.ini" >"$folder/bench.json"
grep -q '"engine": "io_uring+direct\|"engine": "threads+direct' "$folder/bench.json" ||
    fail "the bench did not use the drives: $(cat "$folder/bench.json")"
rm "$folder/bench.json"

run set 1 rate=50M eio=64Ki+4Ki
run status | grep -q '^1: rate=50000000 .*eio=65536+4096' || fail "set had no effect"
run set 1 mix=0.6
run status | grep -q '^1: .*mix=0.600' || fail "mix had no effect"
for wrong in 1 0.6000 .6 0.6x -0.1 0..1 ""; do
    ! run set 1 "mix=$wrong" 2>/dev/null || fail "a wrong mix was taken: $wrong"
done
run set 1 mix=0
! run set 1 rate=fast 2>/dev/null || fail "a wrong setting was taken"
! run set 7 rate=1M 2>/dev/null || fail "there is no drive 7"
dd if=/dev/zero of="$folder/1/drive" bs=4096 seek=15 count=1 oflag=direct conv=notrunc status=none
! dd if="$folder/1/drive" of=/dev/null bs=4096 skip=16 count=1 iflag=direct status=none \
    2>/dev/null || fail "the range does not fail"

printf stays | dd of="$folder/0/drive" conv=notrunc status=none
run kill 0
run status | grep -q '^0: gone' || fail "kill left the drive there"
! head -c 5 "$folder/0/drive" >/dev/null 2>&1 || fail "a drive that is gone was read"
run back 0
[ "$(head -c 5 "$folder/0/drive")" = stays ] || fail "the drive came back with other bytes"

run down
[ ! -e "$folder" ] || fail "down left $folder"
! grep -q "$folder" /proc/mounts || fail "down left a mount"
