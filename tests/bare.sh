#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bare.sh [COMMAND...]: whether the README's first commands work on a machine that has nothing.
# bare.sh --packages BUILD: whether the Debian packages do (`make deb`), from install to purge.
#
# Makes a minimal Debian 12 root (debootstrap), puts a clone of this tree's HEAD into it, runs there
# the commands that the README prints under "Two commands", and prints what each of them took. What
# differs between machines comes from this one's own apt and resolver: mirror, keys, settings. The
# root and all that runs in it are removed at the end.
#
# The commands run with the environment variable TESTS of the caller (which tests, such as
# TESTS='install/|tools_'). COMMAND, when given, runs in the root after them.
# With --packages, BUILD/deb has the packages twice: as `make deb` leaves them, and with the later
# version to which they are upgraded (tools/make_deb.sh BUILD VERSION).
#
# KVT_BARE_FOLDER: where the root is made (default: a new folder in /var/tmp; 2 GB). Exit 0: all
# passed, 1: a command failed, 77: no root user, no debootstrap, or no Debian mirror.
set -eu

absent() {
    echo "bare.sh: $1" >&2
    exit 77
}

suite=bookworm
[ "$(id -u)" -eq 0 ] || absent "needs root, for debootstrap and chroot"
for tool in debootstrap unshare chroot git apt-get; do
    command -v "$tool" >/dev/null || absent "$tool is not installed"
done
tree=$(cd "$(dirname "$0")/.." && pwd)
git -C "$tree" rev-parse HEAD >/dev/null || absent "$tree is not a git checkout"
[ -z "$(git -C "$tree" status --porcelain)" ] ||
    echo "note: changes that are not committed stay out"

commit=$(git -C "$tree" describe --always)

packages=
if [ "${1:-}" = --packages ]; then
    packages=$(cd "$2/deb" && pwd)
    shift 2
fi

# The README's commands: the indented lines of that section, without what follows a #.
commands=$(sed -n '/^## Two commands$/,/^## /s/^    \(.*\)$/\1/p' "$tree/README.md" |
    sed -e 's/ *#.*//' | grep -E '^(apt-get|make) ' | head -n 3)
[ "$(printf '%s\n' "$commands" | grep -c -e '^apt-get .*make git' -e '^make demo$' \
    -e '^make test$')" -eq 3 ] || {
    echo "bare.sh: the README does not print the three commands:" >&2
    echo "$commands" >&2
    exit 1
}

# The mirror that apt uses here for the main archive of the suite.
mirror=$(apt-get indextargets --format '$(CREATED_BY) $(RELEASE) $(COMPONENT) $(REPO_URI)' |
    sed -n "s/^Packages $suite main //p" | head -n 1)
[ -n "$mirror" ] || absent "this machine's apt knows no mirror of $suite"

if [ -n "${KVT_BARE_FOLDER:-}" ]; then
    mkdir "$KVT_BARE_FOLDER"
    work=$KVT_BARE_FOLDER
else
    work=$(mktemp -d /var/tmp/kvterrace-bare.XXXXXX)
fi
root=$work/root
results=$work/results
: >"$results"
# The commands run in namespaces of their own: their mounts and processes end with them.
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

failed=
# run LABEL COMMAND...: a step with its time; the first one that fails ends the run.
run() {
    label=$1
    shift
    printf '\n== %s\n\n' "$label"
    began=$(date +%s)
    code=0
    "$@" || code=$?
    seconds=$(($(date +%s) - began))
    load=$(cut -d ' ' -f 1 /proc/loadavg)
    verdict=PASS
    [ "$code" -eq 0 ] || verdict="FAIL (exit $code)"
    printf '%5s s  load %6s  %s  %s\n' "$seconds" "$load" "$verdict" "$label" >>"$results"
    [ "$code" -eq 0 ] || failed=1
    return "$code"
}

finish() {
    printf '\n== %s at %s\n\n' "A bare $suite" "$commit"
    cat "$results"
    du -sxh "$root" 2>/dev/null | sed 's/\t.*/ on disk at the end/'
    if [ -n "$failed" ]; then
        echo FAIL
        exit 1
    fi
    echo PASS
    exit 0
}

make_root() {
    quiet=$work/debootstrap.log
    debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$quiet" 2>&1 || {
        tail -n 20 "$quiet"
        return 1
    }
}

# What apt, the resolver and the clock need to work as they do outside.
copy_settings() {
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
    rm -f "$root/etc/apt/sources.list"
    for part in sources.list sources.list.d apt.conf apt.conf.d auth.conf auth.conf.d \
        preferences.d trusted.gpg trusted.gpg.d keyrings; do
        [ ! -e "/etc/apt/$part" ] || cp -a "/etc/apt/$part" "$root/etc/apt/"
    done
    mkdir -p "$root/usr/share/keyrings"
    cp -an /usr/share/keyrings/. "$root/usr/share/keyrings/"
}

# enter COMMAND: in the root, as on a machine of its own.
enter() {
    unshare --mount --pid --fork --kill-child sh -eu -c '
        root=$1
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        cd "$root"
        exec env -i HOME=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
            ${3:+TESTS="$3"} ${http_proxy:+http_proxy="$http_proxy"} \
            ${https_proxy:+https_proxy="$https_proxy"} \
            chroot "$root" sh -c "cd /srv/kvterrace && $2"
    ' sh "$root" "$1" "${TESTS:-}"
}

# What apt says is of interest when it fails.
enter_quietly() {
    enter "$1" >"$work/apt.log" 2>&1 && return
    tail -n 20 "$work/apt.log"
    return 1
}

run "debootstrap --variant=minbase $suite" make_root || finish
copy_settings
if [ -n "$packages" ]; then
    mkdir -p "$root/srv/kvterrace"
    cp "$tree/tests/package_life.sh" "$packages"/*.deb "$root/srv/kvterrace/"
    run "apt-get update" enter_quietly "apt-get update" || finish
    run "the packages' life" enter "sh package_life.sh" || finish
    finish
fi
git clone -q --no-hardlinks "$tree" "$root/srv/kvterrace"
git -C "$root/srv/kvterrace" remote remove origin

printf '%s\n' "$commands" >"$work/commands"
for extra in "$@"; do printf '%s\n' "$extra" >>"$work/commands"; done
# Not a pipe: finish must be able to end this shell.
while read -r line <&3; do
    case "$line" in
    apt-get*) run "$line" enter_quietly "$line" || finish ;;
    *) run "$line" enter "$line" || finish ;;
    esac
done 3<"$work/commands"
finish
