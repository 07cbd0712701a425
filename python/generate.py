#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the C source of the extension module `kvterrace._kvt` from the public headers.

    generate.py INCLUDE_DIR BRIDGE_DIR OUTPUT.c [CC]

Nothing of the interface is written down here. The preprocessor reads the headers; what they
declare becomes cffi's cdef. Each function whose first parameter is a store, queue, event reader or
policy gets a guarded twin, `guarded_NAME`, which takes a handle of bridge.h instead. The functions
that cffi has parsed are compared with those that a second reading of the headers finds; a
difference ends the build.
"""

import os
import re
import subprocess
import sys

import cffi

# Types whose functions get guarded twins; of kvt_policy one call at a time is let in.
GUARDED = {"kvt_store": "shared", "kvt_queue": "shared", "kvt_events": "alone",
           "kvt_policy": "alone"}
# These end an object: bridge.h waits for calls inside before it makes them.
ENDINGS = {"kvt_store_close", "kvt_queue_close", "kvt_events_close", "kvt_policy_close"}


def list_headers(include):
    folder = os.path.join(include, "kvterrace")
    return sorted(name for name in os.listdir(folder) if name.endswith(".h"))


def read_header(include, name):
    with open(os.path.join(include, "kvterrace", name), encoding="utf-8") as file:
        return file.read()


def preprocess(include, compiler):
    """The declarations of the public headers alone, macros expanded, each header once."""
    lines = "".join(f"#include <kvterrace/{name}>\n" for name in list_headers(include))
    text = subprocess.run([compiler, "-E", "-U__GNUC__", "-I", include, "-x", "c", "-"],
                          input=lines, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)
    if text.returncode != 0:
        raise SystemExit(f"generate.py: the preprocessor fails: {text.stderr}")
    folder = os.path.realpath(os.path.join(include, "kvterrace")) + os.sep
    kept, inside = [], False
    for line in text.stdout.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            inside = os.path.realpath(marker.group(1)).startswith(folder)
        elif inside and line.strip():
            kept.append(line)
    return "\n".join(kept) + "\n"


def drop_bodies(text):
    """Inline functions as declarations: a body is from its brace to the one that closes it."""
    out, position = [], 0
    for match in re.finditer(r"^static inline ", text, re.M):
        if match.start() < position:
            continue
        out.append(text[position:match.start()])
        brace = text.index("{", match.end())
        out.append(text[match.end():brace].strip() + ";\n")
        depth, position = 1, brace + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
    return "".join(out) + text[position:]


def macros(include):
    """A line of cdef for each macro with a numeric value; the compiler supplies the value."""
    lines = []
    for name in list_headers(include):
        for match in re.finditer(r"^#define (KVT_\w+)[ \t]+(\S.*)$", read_header(include, name),
                                 re.M):
            value = match.group(2).split("/*")[0].strip()
            if value.startswith("__attribute__"):
                continue
            real = re.fullmatch(r"[0-9]+\.[0-9]*(e[0-9]+)?", value)
            lines.append(f"static const double {match.group(1)};" if real
                         else f"#define {match.group(1)} ...")
    return "\n".join(lines) + "\n"


def declared_names(include):
    """The functions of the headers by a reading of its own, without the preprocessor."""
    names = set()
    for name in list_headers(include):
        text = re.sub(r"/\*.*?\*/", " ", read_header(include, name), flags=re.S)
        for match in re.finditer(r"^(?:KVT_API|static inline)\b[^;{(]*?\b(kvt_\w+)\s*\(", text,
                                 re.M):
            names.add(match.group(1))
    return names


def functions(cdef):
    """(result, name, [(type, name)]) of each function."""
    for match in re.finditer(r"^([\w \t\n*]+?)\b(kvt_\w+)\s*\(([^;()]*)\);", cdef, re.M):
        result = " ".join(match.group(1).split())
        if result.startswith("typedef") or "struct" == result:
            continue
        parameters = []
        for one in match.group(3).split(","):
            one = " ".join(one.split())
            if one != "void":
                split = re.fullmatch(r"(.*?)(\w+)", one)
                parameters.append((split.group(1).strip(), split.group(2)))
        yield result, match.group(2), parameters


def guards(cdef):
    """Declarations and bodies of the guarded twins."""
    declarations, bodies = [], []
    for result, name, parameters in functions(cdef):
        first = re.fullmatch(r"(?:const )?(?:struct )?(\w+) \*", parameters[0][0]) \
            if parameters else None
        if not first or first.group(1) not in GUARDED or name in ENDINGS:
            continue
        handle = GUARDED[first.group(1)]
        taken, given = ["kvtpy_handle *guard"], [f"({parameters[0][0]})object"]
        for type_, parameter in parameters[1:]:
            if type_ == "const kvt_key *":  # bytes of Python go in as they are
                taken.append(f"const uint8_t *{parameter}")
                given.append(f"(const kvt_key *){parameter}")
            else:
                taken.append(f"{type_} {parameter}")
                given.append(parameter)
        head = f"{result} guarded_{name}({', '.join(taken)})"
        declarations.append(head + ";")
        call = f"{name}({', '.join(given)})"
        outside = {"kvt_status": "return KVT_E_STATE;", "void": "return;",
                   "int": "return -1;"}.get(result, "return 0;")
        body = [f"static {head}", "{",
                f"    void *object = kvtpy_enter_{handle}(guard);",
                f"    if (object == NULL) {outside}"]
        if result == "void":
            body += [f"    {call};", f"    kvtpy_leave_{handle}(guard);"]
        else:
            body += [f"    {result} value = {call};", f"    kvtpy_leave_{handle}(guard);",
                     "    return value;"]
        bodies.append("\n".join(body + ["}"]))
    return "\n".join(declarations) + "\n", "\n\n".join(bodies) + "\n"


BRIDGES = ["bridge.h", "tasks.h"]


def bridge_cdef(folder):
    """What the bridges declare for Python stands between two marks in each."""
    found = []
    for name in BRIDGES:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found.append(re.search(r"/\* cdef: from here \*/(.*?)/\* cdef: to here \*/",
                                   file.read(), re.S).group(1))
    return "".join(found)


def make(include, bridge, output, compiler):
    cdef = drop_bodies(preprocess(include, compiler))
    declarations, bodies = guards(cdef)
    ffi = cffi.FFI()
    ffi.cdef(macros(include) + cdef)
    parsed = {name.split(" ", 1)[1] for name in ffi._parser._declarations
              if name.startswith("function ")}
    wanted = declared_names(include)
    if parsed != wanted or not wanted:
        lacking, beyond = sorted(wanted - parsed), sorted(parsed - wanted)
        raise SystemExit("generate.py: the cdef and the headers differ; "
                         f"lacking: {lacking}; not in the headers: {beyond}")
    ffi.cdef(bridge_cdef(bridge) + declarations)
    includes = "".join(f"#include <kvterrace/{name}>\n" for name in list_headers(include))
    includes += "".join(f'#include "{name}"\n' for name in BRIDGES)
    ffi.set_source("kvterrace._kvt", includes + bodies, py_limited_api=True)
    ffi.emit_c_code(output)
    print(f"generate.py: {len(wanted)} functions, {declarations.count(';')} guarded")


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        raise SystemExit(__doc__)
    make(*sys.argv[1:4], sys.argv[4] if len(sys.argv) == 5 else "cc")
