#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# step.sh LOG LABEL COMMAND [ARGUMENT...]: runs one step of a longer job. The step's output goes to
# LOG; the terminal shows the label, on a terminal the newest line of the log, and the seconds that
# the step took. When the step fails, the log's last lines and its path go to stderr, and the exit
# code is the step's. V=1 shows all output instead and keeps no log. Warnings of a compiler are
# counted, so that nobody has to read the log to learn of them.
set -u
log=$1 label=$2
shift 2

if [ "${V:-0}" = 1 ]; then
    printf '%s\n' "$label"
    exec "$@"
fi

# The log's folder may not be there yet; a tree that cannot be written gets a log elsewhere.
mkdir -p "${log%/*}" 2>/dev/null
if ! { : >"$log"; } 2>/dev/null; then
    log=$(mktemp) || exit 2
fi

# Draws the newest line of the log until it is ended.
watch_log() {
    while :; do
        newest=$(tail -n 1 "$log" | tr -d '[:cntrl:]' | cut -c 1-70)
        printf '\r\033[K%s: %s' "$label" "$newest"
        sleep 0.5
    done
}

watcher=
stop_watching() {
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null
    [ -z "$watcher" ] || printf '\r\033[K'
    watcher=
}
trap stop_watching EXIT
trap 'exit 130' INT TERM

start=$(date +%s)
if [ -t 1 ]; then
    watch_log &
    watcher=$!
fi
"$@" >"$log" 2>&1
code=$?
stop_watching
seconds=$(($(date +%s) - start))
if [ "$code" -eq 0 ]; then
    warnings=$(grep -c 'warning: ' "$log")
    [ "$warnings" -eq 0 ] && warnings= || warnings=", $warnings warnings in $log"
    printf '%s: %s s%s\n' "$label" "$seconds" "$warnings"
    exit 0
fi
{
    printf '%s: failed after %s s; the last lines of %s:\n\n' "$label" "$seconds" "$log"
    tail -n 30 "$log"
    printf '\nThe whole log: %s\n' "$log"
} >&2
exit "$code"
