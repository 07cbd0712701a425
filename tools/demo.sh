#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo.sh [BUILD_DIR]: profiles this machine, measures what forms cost a small model in answers,
# replays one workload in virtual time and a smaller one on a real store, and writes a page
# of each. Results land in BUILD_DIR/demo; the devices of the live run are files in a temporary
# folder there, which is removed.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
command=$build/kvterrace
demo=$build/demo
mkdir -p "$demo"
work=$(mktemp -d "$demo/devices.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

step() { printf '\n== %s\n\n' "$*"; }

# Sizes are those of a full-size host; the live run scales them by replay.scale, so that HBM, DRAM
# and SSD really hold 31 MB, 94 MB and 375 MB. HBM is emulated in host memory. Together they hold
# half of what the workload of step 4 comes back to: with room for all of it there is no choice.
cat >"$demo/live.ini" <<INI
; Written by tools/demo.sh.
[store]
profile = $demo/profile.db

[tier.hbm]
capacity = 1GB
emulated = yes

[tier.dram]
capacity = 3GB

[tier.ssd]
capacity = 12GB

[device.ssd0]
tier = ssd
backend = file
path = $work/ssd0
capacity = 256MiB

[device.ssd1]
tier = ssd
backend = file
path = $work/ssd1
capacity = 256MiB
INI

step "1/4 Measuring this machine: memory, two SSD members (files), the codecs"
# A busy machine measures its other work too: then longer, twice more; the last measurement counts.
is_busy() {
    "$command" profile show --database "$demo/profile.db" --json | tr -d ' ' | grep -q '"busy":true'
}
rm -f "$demo"/profile.db "$demo"/profile.db-*
"$command" profile devices codecs --quick --config "$demo/live.ini" >"$demo/profile.txt"
busy=no
for seconds in 50ms 200ms; do
    is_busy || break
    echo "This machine is busy; measuring again, for $seconds a point." >&2
    "$command" profile devices --quick --seconds $seconds --config "$demo/live.ini" \
        >"$demo/profile.txt"
done
if is_busy; then busy=yes; fi
cat "$demo/profile.txt"

step "2/4 What forms cost in answers: a small model with recall, asked about texts of 512 tokens"
"$command" profile quality --quick --loss answers --model reference_model/model \
    --text recall=reference_model/texts/recall-512.jsonl --database "$demo/profile.db"
"$command" profile show --database "$demo/profile.db" --json >"$demo/profile.json"
"$command" report "$demo/profile.json" -o "$demo/profile.html"
"$command" report "$demo/profile.json"

step "3/4 Virtual time: a Poisson workload on 8 prefill servers, 100 GB of DRAM and 400 GB of SSD"
set -- --database "$demo/profile.db"
if [ $busy = yes ]; then
    echo "This machine was busy while it was measured; this step takes the built-in host instead:"
    echo "DRAM of 25 GB/s, SSD of 1 GB/s."
    echo
    set --
fi
"$command" replay --workload poisson --policy none,lru,utility "$@" \
    --set tier.dram.capacity=100GB --set tier.ssd.capacity=400GB --set workload.rate=4 \
    --set workload.requests=4000 --set workload.contexts=400 --report "$demo/report.html"

step "4/4 Live: real bytes through a real store, at 1/32 of the size and the time"
cat <<'TEXT'
40 contexts of 540,000 tokens in all, some asked for far more often than others, 56 KiB of KV a
token (28 layers, 4 KV heads): 30 GB, and room for 16. One request in four seconds, so no queue
hides what the store does. What is decided here is which tokens are found again (token hits),
and what they cost to write. Times are this machine's too, 32 times over; they count when they
repeat in the other order (--policy utility,lru,none).
TEXT
"$command" replay --workload poisson --mode live --policy none,lru,utility \
    --config "$demo/live.ini" --scale 0.03125 --set replay.bytes_per_token=56KiB \
    --set workload.requests=150 --set workload.contexts=40 --set workload.rate=0.25 \
    --report "$demo/live.html"
cat <<'TEXT'

What to make of it: where utility is ahead, it is because plain lru lets the beginnings of long
contexts go and keeps their ends, which nothing can load. Where lru is ahead, look at puts_busy in
the JSON: a disk that does not keep up, or a busy machine, refuses puts of both, and then the means
do not compare the policies. lru-leaf, which frees ends first, is the strongest rival; utility loses
to lru with short contexts that are all asked for alike (workload.contexts=400, zipf=0,
tokens_median=1024, tokens_max=4096). docs/BENCHMARKS.md has the figures of quiet machines and
the commands that gave them.
TEXT

step "Done"
echo "profile: $demo/profile.db, as a page $demo/profile.html"
echo "reports: $demo/report.html (virtual time), $demo/live.html (live)"
if [ $busy = yes ]; then
    echo
    echo "warning: this machine was busy while it was measured (see step 1). Do not judge by these"
    echo "         times; run it again when the machine is quiet."
fi
