#!/bin/sh
# demo.sh [BUILD_DIR]: profiles this machine, replays one workload in virtual time and a smaller one
# on a real store, and writes an HTML report. Everything lands in BUILD_DIR/demo; the devices of the
# live run are files in a temporary folder there, which is removed.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
command=$build/kvterrace
demo=$build/demo
mkdir -p "$demo"
work=$(mktemp -d "$demo/devices.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM

step() { printf '\n== %s\n' "$*"; }

step "1/3 measuring this machine: memory, an SSD member as a file, the codecs"
rm -f "$demo"/profile.db*
cat >"$demo/live.ini" <<INI
; Written by tools/demo.sh: the live run's store. HBM is emulated in host memory.
[store]
profile = $demo/profile.db
[tier.hbm]
capacity = 32MiB
[tier.dram]
capacity = 96MiB
[tier.ssd]
capacity = 500MiB
[device.hbm]
tier = hbm
backend = memory
capacity = 32MiB
emulated = yes
[device.dram]
tier = dram
backend = memory
capacity = 96MiB
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
"$command" profile devices --quick --config "$demo/live.ini" >"$demo/profile.txt"
"$command" profile codecs --quick --config "$demo/live.ini" >"$demo/profile.txt"
cat "$demo/profile.txt"

step "2/3 virtual time: one Poisson workload, 8 A100 prefill servers, 100 GB of DRAM, 400 GB of SSD"
"$command" replay --workload poisson --policy none,lru,utility --report "$demo/report.html" \
    --set workload.rate=4 --set workload.requests=4000 --set workload.contexts=400 --quiet

step "3/3 live: the same kind of requests, scaled down, on a real store with real bytes"
"$command" replay --workload poisson --mode live --policy lru,utility --config "$demo/live.ini" \
    --set workload.requests=200 --set workload.contexts=40 --report "$demo/live.html" --quiet

step "done"
echo "report:      $demo/report.html"
echo "live report: $demo/live.html"
