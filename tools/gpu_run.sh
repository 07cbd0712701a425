#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [--quick]: the tests of a GPU, then `kvlab gpu`, from the folder that this script is in, on
# a machine that has a driver alone. At most 8 minutes; --quick: about two. Results go to $OUT, or
# to the current folder: gpu.json and gpu.txt. Exit code 0; 1: a test failed, or a bar was not
# reached; 77: no GPU answers.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-$PWD}
quick=${1:-}
began=$(date +%s)
limit=480
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

left() { echo $((limit - $(date +%s) + began)); }

# The programs with the bundle's libraries: by this machine's C library, or, where that is too old,
# by the bundle's own.
mkdir "$scratch/bin"
loader=$(ls "$here"/lib/base/ld-linux* | head -n 1)
if [ -z "${KVT_BUNDLE_BASE:-}" ] &&
    LD_LIBRARY_PATH="$here/lib" "$here/bin/kvlab" --version >/dev/null 2>&1; then
    command="export LD_LIBRARY_PATH=\"$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\"; exec"
else
    paths="$here/lib/base:$here/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
    command="exec \"$loader\" --library-path \"$paths\""
fi
for program in "$here"/bin/*; do
    name=${program##*/}
    printf '#!/bin/sh\n%s "%s" "$@"\n' "$command" "$program" >"$scratch/bin/$name"
    chmod +x "$scratch/bin/$name"
done
cd "$scratch" || exit 1
"$scratch/bin/kvlab" --version || exit 1

"$here/gpu.sh" "$scratch/bin" 100
tests=$?
if [ $tests -eq 77 ]; then
    echo "skipped: kvlab gpu, for the same reason"
    exit 77
fi
seconds=$(($(left) - 60))
[ $seconds -gt 10 ] || seconds=10
timeout -k 5 "$(left)" "$scratch/bin/kvlab" gpu $quick --seconds "$seconds" --json --quiet \
    >"$scratch/gpu.json" 2>"$scratch/errors"
code=$?
cp "$scratch/gpu.json" "$out/gpu.json" || echo "no room for the results in $out"
[ $code -eq 0 ] || sed -n '1,5p' "$scratch/errors"

# A line for each row: what was asked and reached, or why it was not run.
awk -F'": ' '
    function value(text) { gsub(/^"|",?$|,$/, "", text); return text }
    /^ *"bar": /      { bar = value($2) }
    /^ *"case": /     { name = value($2) }
    /^ *"variant": /  { variant = value($2) }
    /^ *"side": /     { side = value($2) }
    /^ *"measure": /  { measure = value($2) }
    /^ *"asked": /    { asked = value($2) }
    /^ *"bound": /    { bound = value($2) }
    /^ *"reached": /  { reached = value($2) }
    /^ *"met": /      { met = value($2) }
    /^ *"not_run": /  { why = value($2)
        head = bar ": " name ", " variant ", " side
        if (why != "null") print "skipped  " head ": " why
        else if (met == "null") print "         " head
        else print (met == "true" ? "reached  " : "MISSED   ") head ": " measure " " reached \
            " (" bound " " asked ")"
    }' "$scratch/gpu.json" | tee "$out/gpu.txt"
echo "$(($(date +%s) - began)) s"
[ $tests -eq 0 ] && [ $code -eq 0 ] && ! grep -q '^MISSED' "$out/gpu.txt"
