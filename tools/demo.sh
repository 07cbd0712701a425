#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo.sh [BUILD_DIR]: profiles this machine, measures what variants cost a small model in answers,
# replays one workload in virtual time, lets the model answer from a real store, and writes a page
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

# The store of the live run: the model's KV is 1 KiB a token, so 768 tokens of it are 0.8 MB. HBM
# is emulated in host memory. Together the tiers hold a fifth of the contexts as they are, and half
# to three quarters of them at 4 bits, so that there is a choice.
cat >"$demo/live.ini" <<INI
; Written by tools/demo.sh.
[store]
profile = $demo/profile.db

[tier.hbm]
capacity = 1MiB
emulated = yes

[tier.dram]
capacity = 2MiB

[tier.ssd]
capacity = 3MiB

[device.ssd0]
tier = ssd
backend = file
path = $work/ssd0
capacity = 64MiB

[device.ssd1]
tier = ssd
backend = file
path = $work/ssd1
capacity = 64MiB
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

step "2/4 What variants cost in answers: a small model with recall, asked about texts of 512 tokens"
"$command" profile quality --quick --loss answers --model reference_model/model \
    --text recall=reference_model/texts/recall-512.jsonl --database "$demo/profile.db"
"$command" profile show --database "$demo/profile.db" --json >"$demo/profile.json"
"$command" report "$demo/profile.json" -o "$demo/profile.html"

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

step "4/4 Live: a model answers from what a real store gives back"
cat <<'TEXT'
The reference model reads 40 contexts of 768 tokens and is asked about them, some far more often
than others. A context that is not stored is computed; one that is stored is read, decoded and
answered from. First its ladder of variants is calibrated, with what they cost in answers; bases of
the transform codec are learnt on texts of another length, and timed. Then the same requests go to
lru with single variants and with the best uniform mix, and to two engines that choose a variant and
a tier for each entry. Time to first token and answers are measured, not modelled.

TEXT
"$command" profile calibrate --loss rouge_l --contexts 12 --model reference_model/model \
    --text recall=reference_model/texts/recall-512.jsonl \
    --text long=reference_model/texts/recall-1024.jsonl --basis long \
    --database "$demo/profile.db" >"$demo/calibrate.txt"
"$command" profile quality --loss rouge_l --contexts 12 --variants "kivi:k4v4;kivi:k2v2" \
    --model reference_model/model --text recall=reference_model/texts/recall-512.jsonl \
    --database "$demo/profile.db" >>"$demo/calibrate.txt"
"$command" profile codecs --quick --database "$demo/profile.db" >"$demo/codecs.txt"
"$command" replay --workload poisson --mode live --config "$demo/live.ini" \
    --model reference_model/model --text recall=reference_model/texts/recall-768.jsonl \
    --contexts 40 --loss rouge_l --set workload.requests=300 --set workload.rate=10 \
    --set workload.zipf=0.8 --set store.loss_limit=0.1 \
    --policy lru,lru+kivi-4,lru+kivi-2,lru+mix,adaptcache,utility \
    --report "$demo/live.html"
cat <<'TEXT'

What to make of it: every contender had the same requests. lru with raw has room for few contexts
and computes the others; smaller variants hold more and cost answers, by as much as "ROUGE-L" says.
utility gives each entry the variant and the tier that its use is worth, within store.loss_limit. A
context of this model is computed in some 20 ms, so the times are short and a busy machine moves
them; run it with --seeds 3 before a difference of a few percent is believed. docs/LOOP.md says what
is measured; docs/BENCHMARKS.md has a larger model.
TEXT

step "Done"
echo "profile: $demo/profile.db, as a page $demo/profile.html"
echo "reports: $demo/report.html (virtual time), $demo/live.html (live)"
if [ $busy = yes ]; then
    echo
    echo "warning: this machine was busy while it was measured (see step 1). Do not judge by these"
    echo "         times; run it again when the machine is quiet."
fi
