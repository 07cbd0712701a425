#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs.sh BUILD [FILE...]: runs the commands of README.md and docs/GUIDE.md as they are written.
#
# A command is a line that is indented by four spaces and begins with one of the words below; lines
# that end with a backslash go on. All run in one scratch folder that has the checkout's files and
# the first ```ini block of the file as kvterrace.ini, so that later ones find what earlier ones
# made. A command that needs what is not here is skipped with the reason. Exit code 1 when one
# fails, or when none ran. KVT_DATA_DIR names the folder with real traces; ONLY=EXPRESSION runs the
# commands that match alone.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 1 ] || { sed -n '3,12s/^# //p' "$0"; exit 2; }
build=$(cd "$1" && pwd) || exit 2
shift
[ $# -gt 0 ] || set -- "$root/README.md" "$root/docs/GUIDE.md"

scratch=$(mktemp -d /tmp/kvterrace-docs-XXXXXX)
drives_up=no
leave() {
    [ "$drives_up" = no ] || "$root/tests/support/drives" down >/dev/null 2>&1
    rm -rf "$scratch"
}
trap leave EXIT
trap 'exit 130' INT TERM
for entry in "$root"/*; do
    [ "$(basename "$entry")" = build ] || ln -s "$entry" "$scratch/"
done
ln -s "$build" "$scratch/build"
trace=${KVT_DATA_DIR:-}/traces/mooncake_conversation.jsonl.zst
[ ! -f "$trace" ] || ln -s "$trace" "$scratch/conversation_trace.jsonl"
export PATH="$build:$PATH"

# Why a command cannot run here; nothing: it can.
reason() {
    case "$1" in
    apt-get*) echo "installs packages" ;;
    "make demo"*) echo "tests/bare.sh runs it" ;;
    "make test"*) echo "runs everything, this too" ;;
    "make wheel"*) echo "make test-wheel runs it" ;;
    "make install"* | export\ PKG_CONFIG_PATH* | cc\ *)
        echo "tests/install/check_package.sh runs it" ;;
    *MODEL_FOLDER*) echo "names a model of your own" ;;
    *conversation_trace.jsonl*)
        [ -e "$scratch/conversation_trace.jsonl" ] || echo "no $trace (KVT_DATA_DIR)" ;;&
    *kvterrace.ini* | */var/lib/kvterrace*)
        [ -d /mnt/nvme0 ] && [ -d /mnt/nvme1 ] && [ -w /var/lib/kvterrace ] ||
            echo "no drives at /mnt/nvme0 and /mnt/nvme1, or no /var/lib/kvterrace" ;;
    *support/drives*)
        if [ "$(id -u)" != 0 ] || [ ! -w /dev/fuse ]; then
            echo "needs root and /dev/fuse"
        elif [ "$drives_up" = no ] && [ -e /run/kvterrace-drives ]; then
            echo "drives of somebody else are up"
        elif [ ! -x "$build/emulated_drive" ]; then
            echo "emulated_drive is not built"
        fi ;;
    esac
}

# The commands of a file, one a line.
commands() {
    awk '/^```/ { fenced = !fenced; next }
         fenced { next }
         more || /^    ((build\/)?(kvterrace|kvlab)|make|cc|export|mkdir|apt-get|tests\/)[ \/a-z]/ {
             line = $0
             sub(/^ +/, "", line)
             more = sub(/ *\\$/, " ", line)
             printf "%s%s", line, more ? "" : "\n"
         }' "$1"
}

ran=0 failed=0 skipped=0
for file in "$@"; do
    echo "== ${file#"$root"/}"
    awk '/^```ini/ { on = !done; next } /^```/ { if (on) done = 1; on = 0 } on' "$file" \
        >"$scratch/kvterrace.ini"
    while IFS= read -r command <&3; do
        [[ -z ${ONLY:-} || $command =~ $ONLY ]] || continue
        why=$(reason "$command")
        if [ -n "$why" ]; then
            skipped=$((skipped + 1))
            echo "skipped: $command ($why)"
            continue
        fi
        case "$command" in */drives\ up*) drives_up=yes ;; */drives\ down*) drives_up=no ;; esac
        before=$SECONDS
        (cd "$scratch" && timeout 1800 bash -c "$command") >"$scratch/.output" 2>&1 </dev/null
        code=$?
        if [ $code -eq 0 ]; then
            ran=$((ran + 1))
            echo "ok, $((SECONDS - before)) s: $command"
        else
            failed=$((failed + 1))
            echo "FAILED with $code: $command"
            tail -n 20 "$scratch/.output" | sed 's/^/    /'
        fi
    done 3< <(commands "$file")
done
echo "$ran ran, $skipped skipped, $failed failed"
[ "$failed" -eq 0 ] && [ "$ran" -gt 0 ]
