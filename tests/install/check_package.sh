#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_package.sh BUILD_DIR CC CXX [SANITIZE]: installs a finished build with `make install` to a
# temporary prefix inside it, whose name has blanks, builds programs against that by pkg-config and
# by find_package, runs them, and checks which symbols the two libraries give out.
set -eu
build=$(cd "$1" && pwd)
cc=$2 cxx=$3 sanitize=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "$build/install-test.XXXXXX")
trap 'rm -rf "$work"' EXIT INT TERM
prefix="$work/the first"

flags="-O1 -Wall -Wextra -Werror"
[ -z "$sanitize" ] || flags="$flags -fsanitize=$sanitize"

say() { echo "== $*"; }

say "install"
source=$(cd "$here/../.." && pwd)
# Of this build as it stands: what is in it is what is checked.
env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -C "$source" -o docs install V=1 PREFIX="$prefix" \
    BUILD="$(realpath --relative-to="$source" "$build")" >"$work/install.log"
# An installed tree may be moved.
mv "$prefix" "$work/moved on"
prefix="$work/moved on"
pc=$(find "$prefix" -name kvterrace.pc)
lib=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH="${pc%/*}${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

say "headers"
"$here/check_headers.sh" "$prefix/include" "$cc" "$cxx"

# The examples come with the package; they are built from there, outside the checkout.
doc=$prefix/share/doc/kvterrace
examples=$doc/examples

# compile LANGUAGE EXAMPLE PROGRAM LIBRARY...: compiles one and runs it.
compile() {
    case $1 in
    c) compiler=$cc standard=c11 ;;
    c++) compiler=$cxx standard=c++17 ;;
    esac
    example=$examples/$2 program=$work/$3
    shift 3
    # shellcheck disable=SC2086 # a list of words on purpose
    "$compiler" "-std=$standard" $flags "$example" -o "$program" "$@"
    "$program"
}

# What pkg-config says is escaped for a shell to read.
say "pkg-config, shared"
version=$(pkg-config --modversion kvterrace)
eval "set -- $(pkg-config --cflags --libs kvterrace)"
compile c example.c example "$@" | tee "$work/out"
grep -q "^kvterrace $version: " "$work/out"
compile c++ example_cpp.cpp example_cpp "$@"
compile c embed_policy.c embed_policy "$@"
compile c records.c records "$@"
compile c sparse.c sparse "$@"
compile c operate.c operate "$@"
compile c engine.c engine "$@" | tee "$work/out"
grep -q "^8 of 8 layers as computed" "$work/out"
grep -q '^kvterrace_hits_total{tier="ssd"' "$work/out"

say "pkg-config, static"
libraries=$LD_LIBRARY_PATH
unset LD_LIBRARY_PATH
# The README's line: the program finds the library where it was linked.
rpath=-Wl,-rpath,$(pkg-config --variable=libdir kvterrace)
eval "set -- $(pkg-config --cflags --libs kvterrace) $rpath"
compile c example.c example "$@"
eval "set -- $(pkg-config --static --cflags --libs kvterrace |
    sed 's/-lkvterrace/-l:libkvterrace.a/')"
compile c example.c example "$@"
# The decision engine alone needs nothing that the rest of the library needs.
compile c embed_policy.c embed_policy "-I$prefix/include" "$lib/libkvterrace.a" -lm
export LD_LIBRARY_PATH="$libraries"

say "find_package"
sanitize_flags=${sanitize:+-fsanitize=$sanitize}
cmake -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" \
    -DKVT_EXAMPLES="$examples" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_FLAGS="$sanitize_flags" \
    -DCMAKE_CXX_FLAGS="$sanitize_flags" >"$work/configure.log" ||
    { cat "$work/configure.log"; exit 1; }
cmake --build "$work/consumer" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
for program in example_kvterrace example_static example_cpp_kvterrace example_cpp_static; do
    "$work/consumer/$program"
done

say "symbols"
object=$(find "$lib" -maxdepth 1 -name 'libkvterrace.so.*.*.*')
soname=$(objdump -p "$object" | sed -n 's/^ *SONAME *//p')
[ "$soname" = "libkvterrace.so.${version%.*}" ] || { echo "soname is $soname"; exit 1; }
nm -D --defined-only "$object" | awk '{ print $NF }' >"$work/symbols"
node=KVTERRACE_$(printf '%s' "${version%.*}" | sed 's/\./\\./g')
foreign=$(grep -v -e "^kvt_[a-z0-9_]*@@$node\$" -e "^$node\$" -e "^$node@@$node\$" \
    "$work/symbols" || true)
[ -z "$foreign" ] || { echo "symbols that are not the interface: $foreign"; exit 1; }
# The static library gives out the same, and both what the headers declare and no other name.
sed -n 's/^\(kvt_[a-z0-9_]*\)@@.*/\1/p' "$work/symbols" | sort >"$work/shared"
nm -g --defined-only "$lib/libkvterrace.a" | awk 'NF == 3 { print $3 }' | sort >"$work/static"
cat "$prefix"/include/kvterrace/*.h | tr '\n' ' ' | tr ';' '\n' |
    sed -n 's/.*KVT_API [^(]*[ *]\(kvt_[a-z0-9_]*\)(.*/\1/p' | sort -u >"$work/declared"
echo "$(wc -l <"$work/declared") functions declared"
[ "$(wc -l <"$work/declared")" -gt 50 ] || { echo "the headers were not understood"; exit 1; }
for kind in shared static; do
    diff "$work/declared" "$work/$kind" ||
        { echo "the $kind library does not give out what the headers declare"; exit 1; }
done

say "the reference"
if [ -e "$doc/docs/API.md" ]; then
    sed -n 's/^### `\(kvt_[a-z0-9_]*\)`$/\1/p' "$doc/docs/API.md" | sort -u >"$work/named"
    missing=$(comm -23 "$work/declared" "$work/named")
    [ -z "$missing" ] || { echo "API.md has no entry for: $missing"; exit 1; }
else
    ! command -v python3 >/dev/null || { echo "there is no API.md"; exit 1; }
fi

say "the command, far from the checkout"
command=$prefix/bin/kvterrace
"$command" --version
mkdir "$work/away"
cd "$work/away"
"$command" profile import profiles/devices.json --quiet --database p.db
"$command" replay --workload poisson --policy lru --set workload.requests=5 --quiet \
    --set replay.ladder=profiles/ladder-codec-trial.json >"$work/out"
"$command" profile quality --model reference_model/model --quiet --quick --contexts=1 \
    --answer-tokens 0 \
    --text recall=reference_model/texts/recall-512.jsonl --database p.db >"$work/out"
# A file of the working directory comes first.
mkdir profiles
echo nonsense >profiles/devices.json
! "$command" profile import profiles/devices.json --quiet --database q.db 2>"$work/out" ||
    { echo "the installed file was preferred"; exit 1; }

say "documents, manual page, completions"
for name in README.md LICENSE NOTICE SECURITY.md CONTRIBUTING.md docs/CONFIGURATION.md \
    docs/EMBEDDING.md docs/decisions/0002-stripe-remainder.md; do
    [ -s "$doc/$name" ] || { echo "$name is not installed"; exit 1; }
done
man=$prefix/share/man/man1/kvterrace.1
if [ -e "$man" ]; then
    bash=$prefix/share/bash-completion/completions/kvterrace
    zsh=$prefix/share/zsh/site-functions/_kvterrace
    "$here/check_manual.sh" "$command" "$man" "$bash" "$zsh"
    settings=$prefix/share/man/man5/kvterrace.5
    [ "$(grep -c '^\\fB' "$settings")" -gt 100 ] || { echo "kvterrace(5) lacks settings"; exit 1; }
    grep -q '^\\fBloss_limit\\fR' "$settings" || { echo "kvterrace(5) lacks loss_limit"; exit 1; }
else
    ! command -v python3 >/dev/null || { echo "there is no manual page"; exit 1; }
fi
