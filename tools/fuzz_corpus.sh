#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fuzz_corpus.sh TARGET FILE...: adds inputs to the corpus of a fuzz target, which is one archive,
# tests/fuzz/corpus/TARGET.tar.zst. The same inputs give the same archive. Without files it lists
# the inputs. Needs GNU tar and zstd.
set -eu
[ $# -ge 1 ] || { echo "usage: fuzz_corpus.sh TARGET [FILE...]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
target=$1
shift
[ -e "$root/tests/fuzz/$target.c" ] || { echo "there is no tests/fuzz/$target.c" >&2; exit 2; }
archive=$root/tests/fuzz/corpus/$target.tar.zst
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/inputs"
[ ! -e "$archive" ] || zstd -dcq "$archive" | tar -C "$work/inputs" -xf -
for file in "$@"; do
    cp "$file" "$work/inputs/"
done
if [ $# -eq 0 ]; then
    ls "$work/inputs"
    exit 0
fi
ls "$work/inputs" >"$work/names"
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -C "$work/inputs" \
    -cf "$work/all.tar" -T "$work/names"
zstd -19 -qf "$work/all.tar" -o "$archive"
echo "$archive: $(wc -l <"$work/names") inputs"
