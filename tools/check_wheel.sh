#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_wheel.sh BUILD [PYTHON...]: checks the wheel in BUILD/wheels as its users meet it.
#
# The stable interface (abi3audit), the tag (auditwheel) and the size; then, for each interpreter,
# a new environment with nothing but the wheel and what it requires: import, version, put, get, a
# file as SSD that a second process finds again. Interpreters are those named; without any, each
# python3.N from 3.11 on that is on the PATH or that pyenv has.
set -eu
build=$(cd "$1" && pwd)
shift
top=$(cd "$(dirname "$0")/.." && pwd)
tools=$build/wheel-tools
wheel=$(ls "$build"/wheels/kvterrace-*.whl)
most=40000000 # bytes
fail() { echo "check_wheel: $*" >&2; exit 1; }

[ "$(echo "$wheel" | wc -l)" = 1 ] || fail "more than one wheel"
size=$(wc -c < "$wheel")
[ "$size" -le $most ] || fail "the wheel has $size bytes, more than $most"
"$tools/bin/abi3audit" --strict "$wheel" > /dev/null 2>&1 || fail "abi3audit finds something"
tag=$("$tools/bin/auditwheel" show "$wheel" | tr -d '\n' | grep -o 'manylinux_[0-9_]*_x86_64' |
    head -n 1) || fail "auditwheel names no manylinux tag"
echo "$(basename "$wheel"): $size bytes, $tag, abi3audit clean"

version=$(sed -n 's/^#define KVT_VERSION_\(MAJOR\|MINOR\|PATCH\) *\([0-9]*\).*/\2/p' \
    "$top/include/kvterrace/kvterrace.h" | paste -sd.)
if [ $# = 0 ]; then
    for minor in 11 12 13 14 15; do
        for one in "$(command -v python3.$minor || true)" \
            "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.$minor.*/bin/python3; do
            # A shim of pyenv's is there for interpreters that it does not run here.
            [ -x "$one" ] && "$one" -c '' 2> /dev/null && set -- "$@" "$one" && break
        done
    done
fi
[ $# != 0 ] || fail "no Python of 3.11 or newer"

work=$(mktemp -d "${TMPDIR:-/tmp}/kvt-wheel-XXXXXX")
trap 'rm -rf "$work"' EXIT
cat > "$work/use.py" <<'PYTHON'
import sys
import kvterrace
import kvterrace.codec

wanted, folder, first = sys.argv[1], sys.argv[2], sys.argv[3] == "first"
assert kvterrace.__version__ == wanted, kvterrace.__version__
space = kvterrace.Space(model="wheel", dtype="bf16", block_tokens=16)
layout = kvterrace.Layout(layers=2, kv_heads=2, head_dim=32, dtype="bf16", tokens=16)
key, data = space.key("a"), bytes(index * 7 & 0xff for index in range(layout.bytes))
settings = {"device.d.path": folder + "/disk", "device.d.tier": "ssd",
            "device.d.backend": "file", "device.d.capacity": "32MiB"}
with kvterrace.Store(policy="lru", settings=settings, catalog=folder + "/catalog") as store:
    if first:
        assert store.get(key) is None and store.put(key, data, layout)
        store.flush()
    assert store.get(key) == data
    record = kvterrace.codec.encode(data, layout, "lossless")
    assert bytes(kvterrace.codec.decode(record)) == data
PYTHON
for python in "$@"; do
    name=$("$python" -c 'import platform; print(platform.python_version())')
    "$python" -m venv "$work/$name" || fail "Python $name makes no environment"
    "$work/$name/bin/pip" install --quiet --disable-pip-version-check "$wheel" ||
        fail "pip of Python $name does not install the wheel"
    mkdir "$work/store-$name"
    for time in first again; do
        (cd "$work" && "$work/$name/bin/python" -I use.py "$version" "$work/store-$name" $time) ||
            fail "Python $name: the $time process fails"
    done
    for run in "$work/$name/bin/kvterrace" "$work/$name/bin/python -m kvterrace"; do
        (cd "$work" && env -i HOME="$work" $run version) | grep -q "kvterrace $version" ||
            fail "Python $name: $run does not run the command"
    done
    echo "Python $name: kvterrace $version: put, get, codec, command; a second process finds it"
done
