#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# bootstrap.sh [build|python|wheel|lint|fuzz|deb]: installs the Debian packages that are needed and
# missing: for the library and the command (build), for the Python package too, for a wheel of it,
# for the tests too (without a word), for lint, fuzzing and Debian packages. Does nothing, quickly,
# when none is missing. Exit 2 when packages are missing and cannot be installed; for build, those
# of tests and Python are only left out then.
# What apt says goes to build/setup-*.log (tools/step.sh).
set -u
here=$(cd "$(dirname "$0")" && pwd)
logs=$(cd "$here/.." && pwd)/build

# redis-tools: its redis-check-rdb is a server when it is called redis-server, for tests and a
# bench; the package redis-server would start one for good.
# zstd: tests call the program.
# zlib1g-dev: traces may be packed with gzip; and a static link of libsqlite3 takes libz, whose
# package libsqlite3-dev does not name.
packages="gcc libc6-dev make cmake pkg-config python3 libzstd-dev liburing-dev libsqlite3-dev
zlib1g-dev libxxhash-dev libjansson-dev libinih-dev libopenblas-dev libssl-dev"
of_python="python3-dev python3-cffi"
of_tests="g++ libcmocka-dev redis-tools zstd"
wanted=""
case "${1:-}" in
build) wanted="$of_python $of_tests" ;;
python) packages="$packages $of_python" ;;
wheel) packages="$packages $of_python python3-venv" ;;
lint) packages="$packages $of_python $of_tests clang-format" ;;
deb) packages="$packages debhelper lintian" ;;
fuzz) packages="$packages $of_python $of_tests clang libclang-rt-dev" ;;
"") packages="$packages $of_python $of_tests" ;;
*)
    echo "usage: bootstrap.sh [build|python|wheel|lint|fuzz|deb]" >&2
    exit 2
    ;;
esac

# By name: another package may provide one (pkgconf for pkg-config, libclang-rt-14-dev for ...-dev).
is_installed() {
    case "$1" in
    pkg-config) command -v pkg-config >/dev/null ;;
    gcc | g++ | make | cmake | python3 | clang | clang-format | zstd) command -v "$1" >/dev/null ;;
    libclang-rt-dev)
        ls "$(clang -print-resource-dir 2>/dev/null)"/lib/linux/libclang_rt.fuzzer-*.a \
            >/dev/null 2>&1
        ;;
    libzstd-dev) pkg-config --exists libzstd ;;
    liburing-dev) pkg-config --exists liburing ;;
    libsqlite3-dev) pkg-config --exists sqlite3 ;;
    zlib1g-dev) pkg-config --exists zlib ;;
    libxxhash-dev) pkg-config --exists libxxhash ;;
    libjansson-dev) pkg-config --exists jansson ;;
    libinih-dev) pkg-config --exists inih ;;
    libopenblas-dev) pkg-config --exists openblas ;;
    libssl-dev) pkg-config --exists openssl ;;
    redis-tools) command -v redis-check-rdb >/dev/null || command -v valkey-server >/dev/null ;;
    libcmocka-dev) pkg-config --exists cmocka ;;
    # The Python package is built by an interpreter that has cffi and its headers.
    python3-cffi) has_python "True" ;;
    python3-dev) has_python "os.path.exists(sysconfig.get_path('include') + '/Python.h')" ;;
    # Debian's python3 has venv, and without this package nothing to fill one with.
    python3-venv) "${PYTHON:-python3}" -c "import ensurepip, venv" >/dev/null 2>&1 ;;
    debhelper) command -v dh >/dev/null ;;
    lintian) command -v lintian >/dev/null ;;
    libc6-dev) test -e /usr/include/stdio.h ;;
    esac
}

has_python() {
    for python in python3 /usr/bin/python3; do
        "$python" -c "import cffi, os, sys, sysconfig; sys.exit(not ($1))" >/dev/null 2>&1 &&
            return 0
    done
    return 1
}

# Those that are missing of the packages named.
list_missing() {
    missing=""
    for package in "$@"; do
        is_installed "$package" 2>/dev/null || missing="$missing $package"
    done
}

check_cmake() {
    version=$(cmake --version | sed -n 's/^cmake version //p')
    lowest=$(printf '%s\n3.25\n' "$version" | sort -V | head -n 1)
    if [ "$lowest" != 3.25 ]; then
        echo "cmake $version is too old: 3.25 is needed" >&2
        exit 2
    fi
}

# Goes on without packages that are wanted alone.
leave_out() {
    # shellcheck disable=SC2086 # lists of words on purpose
    list_missing $packages
    [ -z "$missing" ] || return 1
    # shellcheck disable=SC2086
    list_missing $wanted
    echo "$1 The tests and the Python package are left out where they need these:$missing" >&2
    check_cmake
    exit 0
}

give_up() {
    [ -z "$wanted" ] || leave_out "$1"
    echo "$1 These packages are missing:" >&2
    echo "   $missing" >&2
    echo "Install them, for example: apt-get install$missing" >&2
    exit 2
}

# shellcheck disable=SC2086
list_missing $packages $wanted
if [ -z "$missing" ]; then
    check_cmake
    exit 0
fi

command -v apt-get >/dev/null || give_up "There is no apt-get here."
if [ "$(id -u)" -eq 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n env"
else
    give_up "Only root can install packages, and sudo asks for a password or is absent."
fi

# libclang-rt-dev is named by version; clang's own package knows which one.
install_list=$missing
case " $missing " in
*" libclang-rt-dev "*)
    install_list=$(echo "$missing" | sed 's/ libclang-rt-dev//')
    want_runtime=1
    ;;
*) want_runtime=0 ;;
esac

apt_update() {
    "$here/step.sh" "$logs/setup-update.log" "Updating apt's lists" \
        $as_root apt-get update -q || give_up "apt-get update failed."
}
apt_install() {
    # shellcheck disable=SC2086 # a list of words on purpose
    "$here/step.sh" "$logs/setup-install.log" "Installing $# packages with apt" \
        $as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

echo "Missing packages:$missing" >&2
ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1 || apt_update
# shellcheck disable=SC2086
if [ -n "$install_list" ] && ! apt_install $install_list; then
    # Old lists name versions that the mirror no longer has.
    apt_update
    # shellcheck disable=SC2086
    apt_install $install_list || give_up "apt-get install failed."
fi
if [ "$want_runtime" -eq 1 ]; then
    major=$(clang -dumpversion | cut -d. -f1)
    apt_install "libclang-rt-$major-dev" || give_up "apt-get install failed."
fi

# shellcheck disable=SC2086
list_missing $packages $wanted
[ -z "$missing" ] || give_up "Some packages did not become usable."
check_cmake
