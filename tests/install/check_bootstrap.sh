#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_bootstrap.sh BOOTSTRAP: what the set-up does when a package is missing, on a machine played
# by small scripts: as root it calls apt-get, otherwise it lists what is missing and leaves with 2.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/tools"
# A copy, so that its logs land in this folder.
cp "$1" "${1%/*}/step.sh" "$work/tools"
bootstrap=$work/tools/bootstrap.sh

# Only what bootstrap.sh needs, each either real or played; the marker file "installed"
# stands for the missing library.
for tool in env sh cat sed sort head tail cut grep ls dirname mkdir mktemp date tr sleep; do
    real=$(command -v "$tool") && ln -sf "$real" "$work/bin/$tool"
done
play() {
    printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
for tool in true gcc g++ make python3 redis-check-rdb zstd; do play "$tool" "exit 0"; done
play cmake 'echo "cmake version 3.25.1"'
play pkg-config "case \"\$2\" in inih) [ -e $work/installed ] ;;
    cmocka) [ -e $work/tested ] ;; esac"

: >"$work/tested"
run() {
    code=0
    env -i PATH="$work/bin" "$(command -v sh)" "$bootstrap" "$@" >"$work/out" 2>&1 || code=$?
}
expect() {
    [ "$code" -eq "$1" ] || { echo "exit $code, not $1"; cat "$work/out"; exit 1; }
    [ -z "${2:-}" ] || grep -q -e "$2" "$work/out" ||
        { echo "no '$2' in:"; cat "$work/out"; exit 1; }
}

play id 'echo 1000'
run
expect 2 libinih-dev # no apt-get at all
play apt-get "echo \"apt-get \$*\" >>$work/calls"
run
expect 2 libinih-dev # not root, no sudo
[ ! -e "$work/calls" ] || { echo "apt-get was called without the right to"; exit 1; }
play sudo 'exit 1'
run
expect 2 "apt-get install libinih-dev" # sudo asks for a password

play sudo '[ "$1" = -n ] && shift && exec "$@"'
run
expect 2 "did not become usable" # apt-get says yes and installs nothing
grep -q "apt-get install .* libinih-dev\$" "$work/calls"

play id 'echo 0'
play apt-get "case \"\$*\" in *install*) : >$work/installed; echo Unpacking ;; esac"
run
expect 0 "Installing 1 packages with apt: "
! grep -q Unpacking "$work/out" || { echo "apt's output reached the terminal"; exit 1; }
grep -q Unpacking "$work/build/setup-install.log"
play apt-get 'echo "E: nothing works"; exit 1'
run
expect 0 # everything is there: nothing is installed
rm "$work/installed"
run
expect 2 libinih-dev # apt-get fails: the end of its log is shown, and where the log is
expect 2 "E: nothing works"
expect 2 "The whole log: $work/build/setup-"
: >"$work/installed"
# What tests alone need is asked of whoever tests, and installed for whoever may.
rm "$work/tested"
play id 'echo 1000'
play sudo 'exit 1'
run
expect 2 libcmocka-dev
run build
expect 0 "left out where they need these: libcmocka-dev"
rm "$work/installed"
run build
expect 2 "apt-get install libinih-dev"
! grep -q cmocka "$work/out" || { echo "asks for cmocka"; exit 1; }
: >"$work/installed"
play id 'echo 0'
play apt-get "case \"\$*\" in *libcmocka-dev*) : >$work/tested ;; esac"
run build
expect 0 "Installing 1 packages with apt: "
[ -e "$work/tested" ] || { echo "cmocka was not installed"; exit 1; }
# A wheel needs an environment, which the tests do without.
play python3 "case \"\$*\" in *ensurepip*) [ -e $work/filled ] ;; esac"
play apt-get "case \"\$*\" in *python3-venv*) : >$work/filled ;; esac"
run
expect 0
[ ! -e "$work/filled" ] || { echo "python3-venv was installed for the tests"; exit 1; }
run wheel
expect 0 "Missing packages: python3-venv"
[ -e "$work/filled" ] || { echo "python3-venv was not installed"; exit 1; }
play cmake 'echo "cmake version 3.18.4"'
run
expect 2 "too old"
echo "set-up: all cases"
