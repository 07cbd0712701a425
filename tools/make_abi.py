#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sizes and offsets of the public structs, so that none changes unseen.

    make_abi.py table INCLUDE_DIR CC           prints the table: struct, its size, field=offset ...
    make_abi.py check INCLUDE_DIR CC TABLE     compiles the table against the headers

`check` makes a _Static_assert of each size and offset, and wants every public struct and field in
the table, and no other. A struct that is meant to change gets a new table by `table`, in the same
commit. The table is of machines with 64-bit pointers and longs.
"""

import os
import re
import subprocess
import sys


def read_structs(include):
    """(struct, [field]) of all headers, in their order."""
    folder = os.path.join(include, "kvterrace")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)
        for match in re.finditer(r"^typedef struct (kvt_\w+) \{(.*?)^\} \1;", text, re.M | re.S):
            yield match.group(1), list(read_fields(match.group(2)))


def read_fields(body):
    for statement in body.split(";"):
        pointer = re.search(r"\(\*(\w+)\)\s*\(", statement)
        if pointer:
            yield pointer.group(1)
            continue
        for one in re.sub(r"\[[^]]*\]", "", statement).split(","):
            field = re.search(r"(\w+)\s*$", one)
            if field:
                yield field.group(1)


def compile_lines(include, compiler, lines, arguments):
    """Compiles what includes all headers; ends with the compiler's words where it fails."""
    headers = [f"#include <kvterrace/{name}>"
               for name in sorted(os.listdir(os.path.join(include, "kvterrace")))]
    text = "\n".join(["#include <stddef.h>", "#include <stdio.h>"] + headers + lines) + "\n"
    done = subprocess.run([compiler, "-std=c11", f"-I{include}", "-x", "c", "-", *arguments],
                          input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise SystemExit("\n".join(errors[:20]) or done.stderr)


def print_table(include, compiler):
    program = ["int main(void) {"]
    for struct, fields in read_structs(include):
        program.append(f'printf("{struct},%zu", sizeof({struct}));')
        program += [f'printf(",{field}=%zu", offsetof({struct}, {field}));' for field in fields]
        program.append('puts("");')
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"make_abi.{os.getpid()}")
    try:
        compile_lines(include, compiler, program + ["return 0; }"], ["-o", path])
        subprocess.run([path], check=True)
    finally:
        if os.path.exists(path):
            os.remove(path)


def check_table(include, compiler, table):
    wanted, asserts = {}, []
    with open(table, encoding="utf-8") as file:
        for line in file.read().splitlines():
            struct, size, *places = line.split(",")
            wanted[struct] = [place.split("=")[0] for place in places]
            asserts.append(f'_Static_assert(sizeof({struct}) == {size}, "size of {struct}");')
            for place in places:
                field, offset = place.split("=")
                asserts.append(f"_Static_assert(offsetof({struct}, {field}) == {offset}, "
                               f'"offset of {struct}.{field}");')
    found = dict(read_structs(include))
    for struct in sorted(wanted.keys() | found.keys()):
        if wanted.get(struct) != found.get(struct):
            raise SystemExit(f"{struct}: the table has {wanted.get(struct)}, the headers "
                             f"{found.get(struct)}; tools/make_abi.py table makes a new one")
    compile_lines(include, compiler, asserts, ["-fsyntax-only"])
    print(f"{len(wanted)} structs, {len(asserts) - len(wanted)} fields")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "table":
        print_table(*sys.argv[2:])
    elif len(sys.argv) == 5 and sys.argv[1] == "check":
        check_table(*sys.argv[2:])
    else:
        raise SystemExit(__doc__)
