#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo.sh [BUILD_DIR]: profiles this machine, measures what forms cost a small model in answers,
# replays one workload in virtual time and a smaller one on a real store, and writes an HTML report
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
# and SSD really hold 32 MB, 96 MB and 480 MB. HBM is emulated in host memory.
cat >"$demo/live.ini" <<INI
; Written by tools/demo.sh.
[store]
profile = $demo/profile.db

[tier.hbm]
capacity = 2GB
emulated = yes

[tier.dram]
capacity = 6GB

[tier.ssd]
capacity = 30GB

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
rm -f "$demo"/profile.db "$demo"/profile.db-*
"$command" profile devices codecs --quick --config "$demo/live.ini" >"$demo/profile.txt"
cat "$demo/profile.txt"

step "2/4 What forms cost in answers: a small model with recall, asked about texts of 512 tokens"
"$command" profile quality --quick --loss answers --model reference_model/model \
    --text recall=reference_model/texts/recall-512.jsonl --database "$demo/profile.db"
"$command" profile show --database "$demo/profile.db" --html "$demo/profile.html"

step "3/4 Virtual time: a Poisson workload on 8 prefill servers, 100 GB of DRAM and 400 GB of SSD"
"$command" replay --workload poisson --policy none,lru,utility --database "$demo/profile.db" \
    --set tier.dram.capacity=100GB --set tier.ssd.capacity=400GB --set workload.rate=4 \
    --set workload.requests=4000 --set workload.contexts=400 --report "$demo/report.html"

step "4/4 Live: real bytes through a real store, at 1/64 of the size and the time"
"$command" replay --workload poisson --mode live --policy lru,utility --config "$demo/live.ini" \
    --scale 0.015625 --set workload.requests=300 --set workload.contexts=40 \
    --report "$demo/live.html"

step "Done"
echo "profile: $demo/profile.db, as a page $demo/profile.html"
echo "reports: $demo/report.html (virtual time), $demo/live.html (live)"
