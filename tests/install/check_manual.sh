#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_manual.sh COMMAND MAN BASH ZSH: page and completions name every command and option that the
# command knows, and the one for bash completes.
set -eu
command=$1 man=$2 completion=$3 zsh=$4

fail() {
    echo "check_manual.sh: $1" >&2
    exit 1
}

# What a --help lists: commands, then options.
commands_of() {
    "$command" "$@" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p'
}
options_of() {
    "$command" "$@" --help | sed -n 's/^  *\(-[A-Za-z?], \)\{0,1\}\(--[a-z-]*\).*/\2/p' |
        grep -v -e '^--help$' -e '^--version$'
}

checked=0
check_options() {
    for option in $(options_of "$@"); do
        for file in "$man" "$completion" "$zsh"; do
            sed 's/\\-/-/g' "$file" | grep -q -e "$option" || fail "$file lacks $option of $*"
        done
        checked=$((checked + 1))
    done
}
for first in $(commands_of); do
    check_options "$first"
    grep -q "^.SS \"kvterrace $(echo "$first" | sed 's/-/\\\\-/g')\"" "$man" ||
        fail "the page has no section for $first"
    if [ "$first" = profile ]; then
        for second in $(commands_of "$first"); do
            check_options "$first" "$second"
        done
    fi
done
[ "$checked" -gt 100 ] || fail "only $checked options were found"
if command -v zsh >/dev/null; then zsh -n "$zsh"; fi

# shellcheck disable=SC1090
. "$completion"
# expect WANTED WORD...: the completions of the last word contain the wanted one.
expect() {
    local wanted=$1
    shift
    COMP_WORDS=("$@")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _kvterrace
    printf '%s\n' "${COMPREPLY[@]}" | grep -qx -e "$wanted" || fail "$* does not lead to $wanted"
}
expect replay kvterrace re
expect devices kvterrace profile dev
expect --report kvterrace replay --rep
expect live kvterrace replay --mode = l
expect utility kvterrace replay --policy u
expect lru,utility kvterrace replay --policy lru,u
expect lru,gdsf kvterrace replay --policy = lru,
expect poisson kvterrace replay --workload po
expect planes:k4v4,g64 kvterrace encode --variant pl
expect store.policy= kvterrace replay --set store.pol
expect lru kvterrace replay --set store.policy = l
expect yes kvterrace replay --set store.lossless =
expect workload kvterrace settings wor
expect version kvterrace ver
expect replay kvterrace help rep
expect --database kvterrace profile quality --data
expect --output kvterrace profile dumps --out
expect settings kvterrace sett
expect check-config kvterrace check
expect /etc/passwd kvterrace replay --trace /etc/passw
expect /etc/passwd kvterrace inspect /etc/passw
echo "$checked options in page and completions"
