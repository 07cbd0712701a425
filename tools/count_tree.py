#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what the tree consists of, so that a change of its structure can be judged.

    tools/count_tree.py [--root DIR] [--build DIR] [--json]

Lines are physical lines of the files that git tracks. The product is every room without tests/ and
docs/: C, Python, shell, HTML, script and style. A room is a folder that holds C files. With
--build, a Release build of the same tree, the exported symbols and the arrows between the files of
store/ are counted as well: an arrow goes from a file to the one that defines a symbol which it
takes. Only the standard library, git and nm are used.

tests/budget.csv says how much each part of the tree may have: lines of C of some folders, or words
of their pages (those of docs/decisions count there alone). tests/lint.py calls over_budget().
"""

import argparse
import collections
import csv
import glob
import json
import os
import re
import subprocess
import sys

PRODUCT_SUFFIXES = (".c", ".h", ".cu", ".py", ".sh", ".html", ".js", ".css")
NOT_PRODUCT = ("tests", "docs", "cmake", "examples", ".ci", "profiles")
LIBRARY = ("include", "base", "codecs", "basis", "policy", "gpu", "tiers", "estimator", "remote",
           "store", "sparse")
# Rooms of estimator/ that only the command links.
NOT_LIBRARY = re.compile(r"^estimator/(exchange|model|quality)/")
ASSERTING = ("policy", "store", "tiers/pool", "tiers")
FUNCTION_PARAMETERS = 5
FILE_LINES = 500


def tracked_files(root):
    output = subprocess.run(["git", "-C", root, "ls-files"], stdout=subprocess.PIPE, text=True,
                            check=True).stdout
    return [name for name in output.splitlines() if os.path.isfile(os.path.join(root, name))]


def split_comments(text):
    """The text without its comments, and the number of lines that hold a comment alone."""
    pattern = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
    code = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group())
                       if match.group().startswith("/") else match.group(), text)
    blank = [not line.strip() for line in text.split("\n")]
    empty = [not line.strip() for line in code.split("\n")]
    return code, sum(1 for was, now in zip(blank, empty) if now and not was)


def functions_of(code):
    """(name, parameters, lines) of every body that starts with a brace in the first column."""
    lines, found, start = code.split("\n"), [], None
    for number, line in enumerate(lines):
        if line.rstrip() == "{":
            start = number
        elif line.rstrip() == "}" and start is not None:
            head = " ".join(lines[max(0, start - 12):start]).split(";")[-1].split("}")[-1]
            match = re.search(r"(\w+)\s*\((.*)\)\s*$", head)
            given = match.group(2).strip() if match else ""
            depth = count = 0
            for letter in given:
                depth += (letter in "([") - (letter in ")]")
                count += letter == "," and depth == 0
            parameters = 0 if given in ("", "void") else count + 1
            found.append((match.group(1) if match else "?", parameters, number - start - 1))
            start = None
    return found


def count_sources(root, files):
    rooms = collections.defaultdict(collections.Counter)
    long_files, wide = [], 0
    for name in files:
        top = name.split("/")[0]
        if not name.endswith(PRODUCT_SUFFIXES) or top in NOT_PRODUCT:
            continue
        with open(os.path.join(root, name), encoding="utf-8") as file:
            text = file.read()
        room = rooms[os.path.dirname(name) or "."]
        lines = text.count("\n")
        room["lines"] += lines
        room["files"] += 1
        if top in LIBRARY and not NOT_LIBRARY.match(name):
            room["library"] += lines
        if lines > FILE_LINES:
            long_files.append(name)
        if not name.endswith((".c", ".h")):
            continue
        code, comments = split_comments(text)
        room["comments"] += comments
        room["c_lines"] += lines
        room["asserts"] += len(re.findall(r"(?<![\w_])assert\s*\(", code))
        for _, parameters, length in functions_of(code):
            room["functions"] += 1
            room["longest"] = max(room["longest"], length)
            wide += parameters > FUNCTION_PARAMETERS
    return rooms, long_files, wide


def count_public(root, files):
    """Functions that the public headers declare."""
    found = set()
    for name in files:
        if name.startswith("include/") and name.endswith(".h"):
            with open(os.path.join(root, name), encoding="utf-8") as file:
                code, _ = split_comments(file.read())
            found |= set(re.findall(r"\bKVT_API\b[^(;]*?\b(kvt_\w+)\s*\(", code))
    return sorted(found)


def read_budget(root):
    """Rows of tests/budget.csv."""
    with open(os.path.join(root, "tests", "budget.csv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def lies_in(name, folders):
    """Whether a file lies in one of the folders; docs/ does not stand for docs/decisions/."""
    found = [folder for folder in folders if name.startswith(folder + "/")]
    return bool(found) and (found != ["docs"] or not name.startswith("docs/decisions/"))


def count_budget(root, files):
    """Each row of the budget with what the tree has of it, as a number."""
    sizes = {}
    for name in files:
        if not name.endswith((".c", ".h", ".cu", ".md")):
            continue
        with open(os.path.join(root, name), encoding="utf-8") as file:
            text = file.read()
        sizes[name] = len(text.split()) if name.endswith(".md") else text.count("\n")
    rows = []
    for row in read_budget(root):
        folders = row["folders"].split()
        suffixes = (".md",) if row["unit"] == "words" else (".c", ".h", ".cu")
        rows.append({"part": row["part"], "folders": folders, "unit": row["unit"],
                     "most": int(row["most"]),
                     "has": sum(size for name, size in sizes.items()
                                if name.endswith(suffixes) and lies_in(name, folders))})
    return rows


def over_budget(root, files):
    """Sentences for the rows of the budget that the tree has more of, and for folders without."""
    rows = count_budget(root, files)
    return [f"{row['part']}: {row['has']} {row['unit']}, {row['most']} are allowed"
            for row in rows if row["has"] > row["most"]] + \
           [f"{row['part']}: {folder}/ is not in the tree" for row in rows
            for folder in row["folders"] if not os.path.isdir(os.path.join(root, folder))]


def symbols_of(path):
    output = subprocess.run(["nm", "--format=posix", path], stdout=subprocess.PIPE, text=True,
                            check=True).stdout
    defined, wanted = set(), set()
    for line in output.splitlines():
        symbol, kind = line.split()[:2]
        if kind in "TDBR":
            defined.add(symbol)
        elif kind == "U":
            wanted.add(symbol)
    return defined, wanted


def circles_of(arrows):
    """Strongly connected groups of more than one file (Tarjan)."""
    index, low, stack, on, groups = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in sorted(arrows[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                on.discard(group[-1])
                if group[-1] == node:
                    break
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return groups


def back_arrows(arrows, group):
    """How many arrows run back inside a circle, in the order that Eades' heuristic finds."""
    left, first, last = set(group), [], []
    while left:
        out = {node: len(arrows[node] & left - {node}) for node in left}
        into = {node: sum(node in arrows[other] for other in left - {node}) for node in left}
        sinks = sorted(node for node in left if out[node] == 0)
        sources = sorted(node for node in left if into[node] == 0)
        if sinks:
            last.insert(0, sinks[0])
            left.discard(sinks[0])
        elif sources:
            first.append(sources[0])
            left.discard(sources[0])
        else:
            best = max(sorted(left), key=lambda node: out[node] - into[node])
            first.append(best)
            left.discard(best)
    place = {node: at for at, node in enumerate(first + last)}
    return sum(place[other] < place[node] for node in group for other in arrows[node]
               if other in place)


def read_objects(root, build):
    """Symbols of the objects of a build, by the source file of the tree that each is made of."""
    found = {}
    for path in sorted(glob.glob(os.path.join(build, "**", "kvt_*.dir", "**", "*.c.o"),
                                 recursive=True)):
        base, inside = re.split(r"CMakeFiles/kvt_\w+\.dir/", os.path.relpath(path, build), 1)
        source = base + inside[:-len(".o")]
        if "_killable.dir/" not in path and os.path.exists(os.path.join(root, source)):
            found[source] = symbols_of(path)
    return found


def count_circles(objects, folder):
    """Files, arrows between them and circles of the files of a folder."""
    known = {name: both for name, both in objects.items() if name.startswith(folder + "/")}
    owner = {symbol: name for name, (defined, _) in known.items() for symbol in defined}
    arrows = {name: {owner[symbol] for symbol in wanted if owner.get(symbol, name) != name}
              for name, (_, wanted) in known.items()}
    groups = circles_of(arrows)
    return {"files": len(known), "arrows": sum(len(to) for to in arrows.values()),
            "circles": groups, "back_arrows": sum(back_arrows(arrows, group) for group in groups)}


def count_exported(build):
    """External symbols of both libraries, and how many of them lack the prefix."""
    result = {}
    for name, flags in (("libkvterrace.a", ["-g"]), ("libkvterrace.so", ["-D"])):
        output = subprocess.run(["nm", *flags, "--defined-only", "--format=posix",
                                 os.path.join(build, name)], stdout=subprocess.PIPE, text=True,
                                check=True).stdout
        symbols = {line.split()[0] for line in output.splitlines() if len(line.split()) >= 2}
        result[name] = {"exported": len(symbols),
                        "without_prefix": sum(not item.startswith("kvt_") for item in symbols)}
    return result


def count_tree(root, build):
    files = tracked_files(root)
    rooms, long_files, wide = count_sources(root, files)
    total = collections.Counter()
    for room in rooms.values():
        total.update({key: value for key, value in room.items() if key != "longest"})
    result = {"kind": "tree", "files_tracked": len(files), "product_lines": total["lines"],
              "library_lines": total["library"], "functions": total["functions"],
              "public_functions": len(count_public(root, files)),
              "files_over_500_lines": sorted(long_files),
              "functions_over_5_parameters": wide,
              "rooms": {name: dict(room) for name, room in sorted(rooms.items())},
              "budget": count_budget(root, files)}
    if build:
        result["store"] = count_circles(read_objects(root, build), "store")
        result["exported"] = count_exported(build)
    return result


def print_table(result):
    print(f"{'room':24}{'files':>7}{'lines':>8}{'library':>9}{'comments':>10}"
          f"{'asserts/fn':>12}{'longest':>9}")
    for name, room in result["rooms"].items():
        share = room.get("comments", 0) / room["c_lines"] if room.get("c_lines") else 0.0
        density = room.get("asserts", 0) / room["functions"] if room.get("functions") else 0.0
        print(f"{name:24}{room['files']:7}{room['lines']:8}{room.get('library', 0):9}"
              f"{share:10.1%}{density:12.2f}{room.get('longest', 0):9}")
    print(f"product {result['product_lines']} lines, library {result['library_lines']}, "
          f"{result['functions']} functions, {result['functions_over_5_parameters']} of them with "
          f"more than {FUNCTION_PARAMETERS} parameters")
    print(f"{result['public_functions']} public functions, {result['files_tracked']} tracked files,"
          f" {len(result['files_over_500_lines'])} product files over {FILE_LINES} lines")
    for row in result["budget"]:
        print(f"{row['part']:24}{row['has']:8} of {row['most']:7} {row['unit']}")
    if "store" in result:
        store = result["store"]
        sizes = ", ".join(str(len(group)) for group in store["circles"]) or "none"
        print(f"store: {store['files']} files, {store['arrows']} arrows, {store['back_arrows']} "
              f"back; circles of {sizes} files")
        for name, row in result["exported"].items():
            print(f"{name}: {row['exported']} exported, {row['without_prefix']} without kvt_")


def main():
    parser = argparse.ArgumentParser(description="counts lines, functions and arrows of the tree")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(
        os.path.abspath(__file__))), help="the source tree, a git checkout")
    parser.add_argument("--build", help="a Release build of it, for symbols and arrows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    try:
        result = count_tree(options.root, options.build)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"count_tree.py: {error}", file=sys.stderr)
        return 2
    if options.json:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        print_table(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
