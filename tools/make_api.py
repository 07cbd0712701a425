#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the reference of the public headers as one page.

    tools/make_api.py INCLUDE-FOLDER FILE

Each header gives its head comment, then its declarations in their order with their comments. The
page says nothing that the headers do not say. Only the standard library is used.
"""

import os
import re
import sys

FIRST = "kvterrace.h"
INTRODUCTION = """# The interface of kvterrace

Made from the public headers by tools/make_api.py. EMBEDDING.md beside this page has the rules that
hold for all calls.
"""
TOKEN = re.compile(r"(?P<comment>/\*.*?\*/)|(?P<directive>#(?:[^\n]*\\\n)*[^\n]*)|(?P<code>\S)",
                   re.S)


def end_of_code(text, position):
    """Behind a declaration or definition that starts at position."""
    depth = 0
    for match in re.finditer(r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|[{}();]", text[position:], re.S):
        sign, end = match.group(), position + match.end()
        if sign in ("{", "("):
            depth += 1
        elif sign in ("}", ")"):
            depth -= 1
            body = text[position:end]
            if sign == "}" and depth == 0 and re.match(r"static inline", body):
                return end
        elif sign == ";" and depth == 0:
            return end
    raise ValueError(f"no end: {text[position:position + 60]}")


def read_items(text):
    """(kind, text) of a header in its order; kinds are comment, define and code. An empty line
    before an item gives ("gap", "") so that a comment can be told from one that stands alone."""
    text = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "\n", text, flags=re.S)
    position, items = 0, []
    while True:
        match = TOKEN.search(text, position)
        if not match:
            return items
        if "\n\n" in text[position:match.start()]:
            items.append(("gap", ""))
        position = match.end()
        if match.lastgroup == "code":
            position = end_of_code(text, match.start())
            # A comment on the last line belongs to the declaration.
            rest = re.match(r"[ \t]*/\*.*?\*/", text[position:])
            position += rest.end() if rest else 0
            items.append(("code", text[match.start():position]))
        elif match.lastgroup == "comment":
            items.append(("comment", match.group()))
        elif re.match(r"#define \w+(\([^)]*\))? +\S", match.group()):
            items.append(("define", match.group()))


def comment_lines(comment):
    lines = comment[2:-2].split("\n")
    return [re.sub(r"^ ?\* ?", "", line).rstrip() if number else line.strip()
            for number, line in enumerate(lines)]


def render_comment(comment):
    """Prose as paragraphs; what is indented stays as it is laid out."""
    out, fenced = [], False
    for line in comment_lines(comment) + [""]:
        indented = line.startswith("  ")
        if fenced and line and not indented or fenced and line == "" and out[-1] == "":
            out += ["```", ""]
            fenced = False
        if indented and not fenced:
            out += ["", "```text"]
            fenced = True
        out.append(line if fenced else re.sub(r"([*<])", r"\\\1", line))
    if fenced:
        out.append("```")
    text = "\n".join(out).strip()
    return re.sub(r"\n+```(\n|$)", r"\n```\1", re.sub(r"\n{3,}", "\n\n", text))


def name_of(kind, code):
    """The name that a declaration is known by."""
    if kind == "define":
        return re.match(r"#define (\w+)", code).group(1)
    bare = re.sub(r"/\*.*?\*/", " ", code, flags=re.S)
    if bare.startswith("typedef"):
        callback = re.search(r"\(\*(kvt_\w+)\)", bare) if "{" not in bare else None
        if callback:
            return callback.group(1)
        function = re.match(r"typedef [\w ]*?\*?(kvt_\w+)\(", bare)
        return function.group(1) if function else re.search(r"(\w+)\s*;\s*$", bare).group(1)
    function = re.search(r"\b(kvt_\w+)\(", bare)
    if function and "{" not in bare[:function.start()]:
        return function.group(1)
    return re.search(r"KVT_\w+", bare).group()


def render_item(kind, code, comment):
    shown = re.sub(r"\n\{.*", ";", code, flags=re.S) if code.startswith("static inline") else code
    shown = re.sub(r"(?:KVT_API|KVT_NODISCARD)\s+", "", shown)
    lines = [f"### `{name_of(kind, code)}`", "", "```c", shown, "```"]
    return "\n".join(lines + (["", render_comment(comment)] if comment else []))


def make_header(name, text):
    items = read_items(text)
    out, pending = [f"## kvterrace/{name}"], None
    left_out = r"SPDX-License|define KVT_(API|NODISCARD)|\Astruct \w+;"
    items = [item for item in items if not re.search(left_out, item[1])]
    for kind, body in items:
        if kind in ("gap", "comment") and pending:
            section = re.fullmatch(r"/\* -+ (.*?) -+ \*/", pending)
            out.append(f"**{section.group(1).capitalize()}**" if section
                       else render_comment(pending))
            pending = None
        if kind == "comment":
            pending = body
        elif kind != "gap":
            out.append(render_item(kind, body, pending))
            pending = None
    if pending:
        out.append(render_comment(pending))
    return "\n\n".join(out)


def make_page(folder):
    names = sorted((name for name in os.listdir(folder) if name.endswith(".h")),
                   key=lambda name: (name != FIRST, name))
    parts, functions = [], []
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text = file.read()
        parts.append(make_header(name, text))
        functions += [name_of("code", code) for kind, code in read_items(text)
                      if kind == "code" and code.startswith("KVT_API")]
    index = "Functions: " + ", ".join(f"[{name}](#{name})" for name in sorted(functions)) + "."
    return "\n\n".join([INTRODUCTION.strip(), index, *parts]) + "\n"


def main():
    if len(sys.argv) != 3:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 2
    page = make_page(sys.argv[1])
    os.makedirs(os.path.dirname(os.path.abspath(sys.argv[2])), exist_ok=True)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
