#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run_torture.sh - the torture tests in their long form, with a table of what they found.
#
#     tests/torture/run_torture.sh BUILD [CYCLES [SEED]]
#
# Every step writes its output to BUILD/torture/NAME.log. Exits 1 when a step fails.
set -u
build=${1:?usage: run_torture.sh BUILD [CYCLES [SEED]]}
cycles=${2:-1000}
seed=${3:-1}
mkdir -p "$build/torture"
logs=$(cd "$build/torture" && pwd)
cd "$build" || exit 2
failed=0
summary=$logs/summary.txt
: > "$summary"

step() {
    name=$1
    shift
    printf '%-10s runs, see %s\n' "$name" "$logs/$name.log"
    begun=$(date +%s)
    if "$@" > "$logs/$name.log" 2>&1; then result=ok; else result=FAILED; failed=1; fi
    printf '%-10s %-7s %5s s\n' "$name" "$result" "$(($(date +%s) - begun))" >> "$summary"
    grep -E '^[a-z_]+=[^ ]+ [a-z_]+=' "$logs/$name.log" | tail -1 |
        tr ' ' '\n' | paste -sd ' ' | fold -s -w 86 | sed 's/^/           /' >> "$summary"
    [ "$result" = ok ] || tail -5 "$logs/$name.log"
}

step kill ./torture_store_expected --cycles "$cycles" --seed "$seed" --jobs "$(nproc)"
step power ./torture_store_power --variants 10 --seed "$seed" --jobs "$(nproc)"
if [ -x ./torture_store_sweep ]; then
    step sweep env KVT_SWEEP_ALL=1 ./torture_store_sweep
fi
step schedule ./torture_store_schedule --seeds 1000 --first "$seed"
step soak ./torture_store_soak --seconds 60 --seed "$seed"
step slack ./torture_store_slack --seconds 60 --seed "$seed"
step calls ./torture_store_calls --seconds 60 --seed "$seed"
step clients ./torture_client_calls --seconds 60 --seed "$seed"
step others ctest -L torture --output-on-failure --no-tests=error \
    -E 'torture_(store_(expected|power|sweep|schedule|soak|slack|calls)|client_calls)$'

echo
cat "$summary"
exit $failed
