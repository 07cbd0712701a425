#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make_deb.sh BUILD [VERSION]: Debian packages of this tree, into BUILD/deb: libkvterraceABI,
# libkvterrace-dev and kvterrace (packaging/debian), looked at by lintian. VERSION is the packages',
# by default the library's. They are built from the files that git knows, or from all where there
# is no git, in a folder of their own.
set -eu
build=$1
tree=$(cd "$(dirname "$0")/.." && pwd)
header=$tree/include/kvterrace/kvterrace.h
number() { sed -n "s/^#define KVT_VERSION_$1 //p" "$header"; }
abi=$(number MAJOR).$(number MINOR)
version=${2:-$abi.$(number PATCH)}

out=$(mkdir -p "$build/deb" && cd "$build/deb" && pwd)
stage=$out/kvterrace-$version
rm -rf "$stage"
mkdir "$stage"
if git -C "$tree" rev-parse HEAD >/dev/null 2>&1; then
    git -C "$tree" ls-files -z
else
    (cd "$tree" && find . -path ./build -prune -o -type f -print0)
fi | tar -C "$tree" --null -T - -c | tar -C "$stage" -x

# The names that follow the version, and the date of the newest changes.
mv "$stage/packaging/debian" "$stage/debian"
cd "$stage/debian"
sed -i "s/@ABI@/$abi/" control
mv library.install "libkvterrace$abi.install"
cp ../examples/systemd/kvterrace.service kvterrace.service
day=$(sed -n 's/^## [0-9.]*, \([0-9-]*\)$/\1/p' "$tree/CHANGELOG.md" | head -n 1)
cat >changelog <<END
kvterrace ($version) unstable; urgency=medium

  * Changes are in /usr/share/doc/kvterrace/CHANGELOG.md.

 -- $(sed -n 's/^Maintainer: //p' control)  $(date -R -u -d "$day")
END
cd ..
dpkg-buildpackage -b -us -uc
cd "$out"
rm -rf "$stage"
lintian --fail-on error,warning "kvterrace_${version}_$(dpkg --print-architecture).changes"
