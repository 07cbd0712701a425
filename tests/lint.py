#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of the source tree that a compiler does not make.

    tests/lint.py [--root DIR] [--build DIR] [--no-format]

Findings go to stdout as `file:line: text`; exit 1 when there is any, 2 when a tool is missing.
--build names a Release build; with it the objects of the pure rooms are checked with nm.
Only the standard library is used.
"""

import argparse
import csv
import datetime
import fnmatch
import os
import re
import shutil
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(SOURCE, "tools"))
import count_tree  # noqa: E402

# Which room may include headers of which other one; a folder is a room. Everyone may include
# include/, base/ and itself. Rooms stand in the order of their floors.
STORE = ["store/core", "store/catalog", "store/learn", "store/background", "store/hosts",
         "store/read", "store/gpu", "store/ring", "store/lend", "store/watch", "store/follow"]
LIBRARY = ["codecs", "codecs/kernels", "basis", "policy", "gpu", "tiers/seal", "tiers/devices",
           "tiers/pool", "estimator/profile", "estimator/measure", "estimator/predict", "remote",
           *STORE, "sparse/decide", "sparse"]
# Beside the library, in whatever program measures or reads profiles.
BESIDE = {"estimator/exchange", "estimator/model", "estimator/quality"}
# The laboratory sees public headers, the rooms beside the library, replay/ and one private header,
# which stands for itself and has what it needs of the library.
LAB = BESIDE | {"replay", "replay/rivals", "tools/command", "lab/harness", "lab/bench",
                "lab/decode", "lab/experiments", "lab/private.h"}
ROOM_INCLUDES = {
    "include": set(),
    "base": set(),
    "base/number": set(),
    "codecs": {"codecs/kernels"},
    "codecs/kernels": {"codecs"},
    "basis": {"codecs"},
    "policy": set(),
    "replay/rivals": {"policy", "sparse/decide"},
    "gpu": {"codecs", "codecs/kernels"},
    "tiers/seal": {"tiers/devices"},
    "tiers/devices": {"gpu", "tiers/seal"},
    "tiers/pool": {"tiers/devices", "tiers/seal"},
    "estimator/profile": {"codecs", "basis", "tiers/devices", "tiers/pool"},
    "estimator/measure": {"codecs", "codecs/kernels", "gpu", "tiers/devices", "tiers/pool",
                          "estimator/profile"},
    "estimator/predict": {"codecs", "estimator/profile", "estimator/measure"},
    "estimator/model": {"codecs", "codecs/kernels"},
    "remote": set(),
    "serve/wire": set(),
    "serve/server": {"serve/wire"},
    "serve/client": {"serve/wire", "codecs/view_rows.h"},
    "estimator/exchange": {"estimator/profile"},
    "estimator/quality": {"codecs", "codecs/kernels", "basis", "estimator/profile",
                          "estimator/exchange", "estimator/model"},
    **{room: set(LIBRARY) - {"policy", "sparse", "sparse/decide"} for room in STORE},
    "sparse/decide": set(),
    "sparse": {"codecs", "codecs/kernels", "sparse/decide", "tiers/devices", "tiers/pool",
               "store/lend"},
    "replay": set(LIBRARY) | {"estimator/exchange", "replay/rivals"},
    "replay/loop": set(LIBRARY) | BESIDE | {"replay"},
    "lab": LAB,
    "lab/harness": LAB,
    "lab/bench": LAB,
    "lab/experiments": LAB,
    "lab/decode": LAB,
    "lab/private.h": set(LIBRARY) | {"base", "base/number"},
    "tools": {"tiers/devices", "estimator/profile", "estimator/measure", "estimator/predict",
              "replay", "replay/loop", "serve/server", "tools/command", "tools/inspect"} | BESIDE,
    "tools/command": {"estimator/model", "estimator/quality"},
    "tools/inspect": set(LIBRARY) | {"tools/command"},
    "python": set(),
}
# Rooms that may not include base/ either: public headers alone, but for what stands above.
PUBLIC_ROOMS = {"include", "python", "lab", "lab/harness", "lab/bench", "lab/experiments",
                "lab/decode"}
ROOMS = set(ROOM_INCLUDES)
NO_ROOMS = {"tests", "examples"}

# What the objects of a pure room may take from outside the room: no I/O, clock, lock or heap.
PURE_COMMON = ["memcpy", "memmove", "memset", "memcmp", "memchr", "__assert_fail",
               "__stack_chk_fail", "_GLOBAL_OFFSET_TABLE_"]
PURE_ROOMS = {
    "base/number": PURE_COMMON,
    "sparse/decide": PURE_COMMON,
    "policy": PURE_COMMON + ["policy_rivals"],  # a weak table of other programs
    "replay/rivals": PURE_COMMON,
    "codecs": PURE_COMMON + ["ZSTD_*", "XXH*", "str*", "snprintf", "__cpu_model",
                             "__cpu_features2", "kernel_ptx_*"],  # texts, of cmake/ptx.cmake
}

# Pure rooms that may call another pure one.
PURE_BELOW = {"policy": ["base/number"], "sparse/decide": ["base/number"],
              "replay/rivals": ["base/number", "policy", "sparse/decide"]}

# Rooms that never call the heap: policy asks the allocator it was given, codecs get scratch from
# their caller, headers hold no bodies that allocate. The other rooms allocate at open and per
# operation, and free what they allocate.
HEAPLESS_ROOMS = {"include", "base/number", "codecs", "codecs/kernels", "basis", "policy",
                  "replay/rivals", "sparse/decide"}
HEAP_CALLS = ["malloc", "calloc", "realloc", "reallocarray", "aligned_alloc", "posix_memalign",
              "strdup", "strndup", "asprintf", "vasprintf", "free", "mmap"]

BANNED_CALLS = {
    "sprintf": "use snprintf",
    "vsprintf": "use vsnprintf",
    "strcpy": "use memcpy or snprintf",
    "stpcpy": "use memcpy or snprintf",
    "strcat": "use snprintf",
    "strncat": "use snprintf",
    "strtok": "use strcspn or strtok_r",
    "atoi": "use a parser that reports errors",
    "atol": "use a parser that reports errors",
    "atof": "use a parser that reports errors",
    "gets": "use getline",
    "alloca": "use a bounded array or the heap",
    "rand": "randomness comes from a seed that is an argument",
    "srand": "randomness comes from a seed that is an argument",
    "random": "randomness comes from a seed that is an argument",
}
TEST_ONLY_CALLS = {
    "getenv": "settings come from the configuration, not from the environment",
    "system": "no shell",
}

# Calls that base/ makes for all rooms, so that the library has one clock that a test can replace.
BASE_ONLY_CALLS = {
    "clock_gettime": "base/clock.h reads the clock",
    "nanosleep": "base_sleep sleeps",
    "clock_nanosleep": "base_sleep_until sleeps",
    "usleep": "base_sleep sleeps",
    "pthread_cond_timedwait": "base_condition_wait_until waits",
}

# The bench of codecs takes the instruction set from the environment, as the tests do (KVT_CPU).
# OpenBLAS is told about kernels in the environment alone, and a service about systemd's socket.
TEST_CALLS_ALLOWED = {(os.path.join("lab", "kvlab_cases.c"), "getenv"),
                      (os.path.join("tools", "command", "variants.c"), "getenv"),
                      (os.path.join("tools", "serve_command.c"), "getenv")}

LINE_COLUMNS = 100
FUNCTION_LINES = 70
FILE_LINES = 800
# What a reader can hold of a room: files of a folder, files that call each other in a circle, names
# that an object exports without kvt_ or its room's word in front; and public functions that nobody
# calls. tests/limits.csv has the rooms that are not there yet; its numbers only fall.
LIMITS = {"files": 40, "circle": 3, "names": 0, "uncalled": 0}
LIMITED_FOLDERS = ("store/", "tiers/", "policy", "sparse", "estimator/", "lab")
CALLERS = ("examples", "python", "tools", "lab")
ARCHITECTURE_LINES = 180
STRUCT_FIELDS = 40

# Functions that are longer, with their length: "file:function". Entries go away or shrink; one
# that is no longer needed, or larger than the function, is a finding itself.
LONG_FUNCTIONS = {}

# Written so that this file does not find itself.
MACHINE_PATHS = re.compile("|".join([r"(?<![\w.])/wo" r"rk/", r"/tmp/bu" r"ild", r"(?<![\w.])/ro"
                                     r"ot/", r"(?<![\w.])/ho" r"me/\w"]))
REGISTRY_HOSTS = re.compile(r"https?://[\w.-]*(regi" r"stry|mir" r"ror|artifac" r"tory|nex" r"us|py"
                            r"pi)[\w.-]*", re.I)
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")

EXAMPLE = os.path.join("examples", "example.c")

# A path in a comment or a document begins with a folder of the tree, or with one that lay beside it
# once. `*` and `{a,b}` are patterns; a word with a placeholder (<kind>, $name, TARGET) is no path.
GONE_FOLDERS = {"research", "shared", "design"}
PATH_TOKEN = re.compile(r"(?<![\w./$<>{}~*\"-])(\.?[a-z_]+)/[\w./{}*,<>$+-]*")
PLACEHOLDER = re.compile(r"[<>$+]|(?<![a-zA-Z])[A-Z]{4,}\.(?!md)")
PATHS_UNCHECKED = {os.path.join("tests", "budget.csv"), os.path.join("tests", "limits.csv"),
                   os.path.join("tests", "unit", "test_lint.py")}
API_DECLARATION = re.compile(r"^KVT_API\b", re.M)

C_SUFFIXES = (".c", ".h", ".cu")
TEXT_SUFFIXES = (".c", ".h", ".cu", ".cc", ".cpp", ".py", ".sh", ".cmake", ".txt", ".in", ".map",
                 ".js", ".css")
TEXT_NAMES = ("Makefile", "run", "drives")
LICENSE_LINE = "SPDX-License-Identifier: Apache-2.0"
LICENSED_SUFFIXES = (".c", ".h", ".cu", ".cc", ".cpp", ".py", ".sh", ".cmake", ".in", ".map",
                     ".js", ".css")
LICENSED_NAMES = ("Makefile", "CMakeLists.txt", "run", "drives")
SKIPPED_FOLDERS = ("build*", ".git", ".cache", "__pycache__")


class Findings:
    def __init__(self):
        self.rows = []

    def add(self, path, line, text):
        self.rows.append((path, line, text))

    def print_sorted(self):
        for path, line, text in sorted(self.rows):
            print(f"{path}:{line}: {text}")


def list_files(root):
    """Every file below root, as paths relative to it, build folders left out."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders
                            if not any(fnmatch.fnmatch(name, skip) for skip in SKIPPED_FOLDERS))
        for name in sorted(files):
            found.append(os.path.relpath(os.path.join(folder, name), root))
    return found


def blank_out(text):
    """Replaces comments, strings and character constants by blanks; lines and columns stay."""
    pattern = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def room_of(path):
    """The room of a file: the longest folder of it that is one, else the first folder."""
    parts = path.split(os.sep)
    for count in (2, 1):
        if "/".join(parts[:count]) in ROOMS:
            return "/".join(parts[:count])
    return parts[0]


def find_include(root, path, name, quoted):
    """The file of the tree that an include names, relative to root; None for a system header."""
    places = [os.path.dirname(path)] if quoted else []
    for place in places + ["", "include"]:
        candidate = os.path.normpath(os.path.join(place, name))
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def check_includes(root, path, text, findings):
    room = room_of(path)
    if room not in ROOMS:
        if room not in NO_ROOMS:
            findings.add(path, 1, f"{os.path.dirname(path)} is no room")
        return
    allowed = ROOM_INCLUDES[room] | {room, "include"}
    allowed |= set() if room in PUBLIC_ROOMS else {"base", "base/number"}
    for match in re.finditer(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"\n]+)[>\"]", text, re.M):
        line = line_of(text, match.start())
        quoted = match.group(1) == '"'
        target = find_include(root, path, match.group(2), quoted)
        if target is None:
            if quoted:
                findings.add(path, line, f'"{match.group(2)}" is not in the tree')
            continue
        if room_of(target) not in allowed and target not in allowed:
            findings.add(path, line, f"{room} must not include {target}")


def check_calls(path, code, findings):
    room = room_of(path)
    banned = dict(BANNED_CALLS)
    if room != "tests":
        banned.update(TEST_ONLY_CALLS)
    if room not in ("tests", "examples", "base"):
        banned.update(BASE_ONLY_CALLS)
    if room in HEAPLESS_ROOMS:
        banned.update({name: f"{room} does not use the heap" for name in HEAP_CALLS})
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(banned) + r")\s*\(")
    for match in pattern.finditer(code):
        # A member of a struct that has a call's name is declared as `(*name)(`.
        name = match.group(1)
        if (path, name) in TEST_CALLS_ALLOWED:
            continue
        findings.add(path, line_of(code, match.start()), f"{name}: {banned[name]}")
    for match in re.finditer(r"__attribute__\s*\(\(\s*(constructor|destructor)", code):
        findings.add(path, line_of(code, match.start()),
                     f"{match.group(1)}: a static archive drops it; use a table")


def check_functions(path, code, findings, long_functions):
    """A function's body starts with a brace in the first column and ends with one."""
    lines = code.split("\n")
    start = None
    for number, line in enumerate(lines):
        if line.rstrip() == "{":
            start = number
        elif line.rstrip() == "}" and start is not None:
            length = number - start - 1
            head = " ".join(lines[max(0, start - 8):start])
            names = re.findall(r"(\w+)\s*\([^;{}]*$", head.split(";")[-1].split("}")[-1])
            name = names[0] if names else "?"
            key = f"{path}:{name}"
            allowed = long_functions.pop(key, None)
            limit = allowed or FUNCTION_LINES
            if length > limit:
                findings.add(path, start + 1, f"{name} has {length} lines; {limit} are allowed")
            elif allowed is not None and length < allowed:
                findings.add(path, start + 1, f"{name} has {length} lines; shrink its entry in "
                             "LONG_FUNCTIONS")
            start = None


def check_text(path, text, findings):
    limit = None if path.endswith(".map") else LINE_COLUMNS
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if limit and len(line) > limit:
            findings.add(path, number, f"{len(line)} columns; {limit} are allowed")
        if line != line.rstrip():
            findings.add(path, number, "blanks at the end of the line")
        if not line.isascii():
            findings.add(path, number, "a character that is not ASCII")
        if path.endswith(C_SUFFIXES) and "\t" in line:
            findings.add(path, number, "a tab")
    if len(lines) - 1 > FILE_LINES:
        findings.add(path, len(lines) - 1, f"{len(lines) - 1} lines; {FILE_LINES} are allowed")
    if text and not text.endswith("\n"):
        findings.add(path, len(lines), "no newline at the end")


def check_words(path, text, findings):
    for number, line in enumerate(text.split("\n"), 1):
        for pattern, reason in ((MACHINE_PATHS, "a path of one machine"),
                                (REGISTRY_HOSTS, "the host of a package registry"),
                                (UNFINISHED, "unfinished work")):
            match = pattern.search(line)
            if match:
                findings.add(path, number, f"{reason}: {match.group()}")


def expand_braces(pattern):
    """a/{b,c}.h as a/b.h and a/c.h."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    return [one for part in match.group(1).split(",")
            for one in expand_braces(pattern[:match.start()] + part + pattern[match.end():])]


def check_paths(path, text, names, findings):
    """Paths that a text names are in the tree; a file may lie there compressed (.zst)."""
    tops = {name.split(os.sep)[0] for name in names if os.sep in name} | GONE_FOLDERS
    for match in PATH_TOKEN.finditer(text):
        token = match.group().rstrip(".,/")
        if match.group(1) not in tops or "/" not in token or PLACEHOLDER.search(token):
            continue
        for one in expand_braces(token):
            pattern = re.compile(re.escape(one).replace(r"\*", "[^/]*") + r"(\.zst)?")
            if one not in names and not any(pattern.fullmatch(name) for name in names):
                findings.add(path, line_of(text, match.start()), f"{one} is not in the tree")


def check_guide(path, text, names, words, findings):
    """The files and the names in code of a page on adding something are there; NAME is its
    reader's."""
    files = {os.path.basename(name) for name in names}
    for match in re.finditer(r"`[^`\n]+`|\b\w+\.(?:c|h|py)\b", text):
        token = match.group()
        wanted = re.findall(r"\w*[A-Za-z]_[A-Za-z]\w*|[A-Z]\w*[a-z]\w*", token)
        missing = [token] if token[0] != "`" and token not in files else []
        missing += [name for name in wanted if token[0] == "`" and name not in words]
        for name in missing:
            if "NAME" not in name:
                findings.add(path, line_of(text, match.start()), f"{name} is not in the tree")


def check_api_comments(path, text, findings):
    """A comment stands right before every public function."""
    lines = text.split("\n")
    for match in API_DECLARATION.finditer(text):
        line = line_of(text, match.start())
        if not lines[line - 2].endswith("*/"):
            name = re.search(r"\b(kvt_\w+)\(", text[match.start():])
            findings.add(path, line, f"{name.group(1) if name else '?'} has no comment before it")


def check_fields(path, code, findings):
    """A struct of a public header has no more fields than a reader can hold in mind."""
    for match in re.finditer(r"^typedef struct (\w+) \{\n(.*?)^\}", code, re.M | re.S):
        fields, before = match.group(2), None
        while before != fields:
            before, fields = fields, re.sub(r"\([^()]*\)", "", fields)
        count = fields.count(";") + fields.count(",")
        if count > STRUCT_FIELDS:
            findings.add(path, line_of(code, match.start()),
                         f"{match.group(1)} has {count} fields; {STRUCT_FIELDS} are allowed")


def check_license(path, text, findings):
    """Every source, script and build file names the licence at its head."""
    if not path.endswith(LICENSED_SUFFIXES) and os.path.basename(path) not in LICENSED_NAMES:
        return
    if LICENSE_LINE not in "\n".join(text.split("\n", 2)[:2]):
        findings.add(path, 1, f"line 1 (of a script line 2) is not the comment {LICENSE_LINE}")


def check_names(paths, findings):
    seen = {}
    for path in paths:
        if not path.endswith(C_SUFFIXES):
            continue
        name = os.path.basename(path)
        if name in seen:
            findings.add(path, 1, f"the name is taken by {seen[name]}")
        seen.setdefault(name, path)


def check_example(root, findings):
    """The C program in the README is the one that the tests build."""
    readme, example = os.path.join(root, "README.md"), os.path.join(root, EXAMPLE)
    if not os.path.exists(readme) or not os.path.exists(example):
        return
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    with open(example, encoding="utf-8") as file:
        body = file.read()
    start, end = body.find("README: from here */\n"), body.find("    /* README: to here")
    wanted = "".join(line[4:] if line.startswith("    ") else line
                     for line in body[start:end].splitlines(True)[1:])
    for match in re.finditer(r"^```c\n(.*?)^```", text, re.M | re.S):
        if wanted and wanted in match.group(1):
            return
    findings.add("README.md", 1, f"no ```c block holds the marked lines of {EXAMPLE}")


def check_format(root, paths, findings):
    sources = [path for path in paths if path.endswith(C_SUFFIXES)]
    if not sources:
        return
    result = subprocess.run(["clang-format", "--dry-run", "-Werror", *sources], cwd=root,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seen = set()
    for match in re.finditer(r"^(\S+?):(\d+):\d+: (?:error|warning): (.*)$", result.stderr, re.M):
        if match.group(1) not in seen:
            findings.add(match.group(1), int(match.group(2)), "not formatted; run `make format`")
        seen.add(match.group(1))
    if result.returncode != 0 and not seen:
        findings.add(".clang-format", 1, result.stderr.strip().split("\n")[0])


def read_symbols(objects):
    """The symbols that the objects define, and those that each of them takes from elsewhere."""
    defined, wanted = set(), []
    for name in objects:
        output = subprocess.run(["nm", "--format=posix", name], stdout=subprocess.PIPE, text=True,
                                check=True).stdout
        for line in output.splitlines():
            symbol, kind = line.split()[:2]
            if kind in "Uwv":
                wanted.append((name, symbol))
            else:
                defined.add(symbol)
    return defined, wanted


def pure_objects(root, build, room, findings):
    """The objects of a room; one that is missing is a finding."""
    found = []
    folder = os.path.join(build, "CMakeFiles", f"kvt_{os.path.basename(room)}.dir")
    for name in sorted(list_files(os.path.join(root, room))):
        item = os.path.join(folder, room, name + ".o")
        if name.endswith(".c") and os.path.exists(item):
            found.append(item)
        elif name.endswith(".c"):
            findings.add(os.path.join(room, name), 1, f"{item} is missing; build first")
    return found


def check_purity(root, build, findings):
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as cache:
        text = cache.read()
    if not re.search(r"^CMAKE_BUILD_TYPE:\w+=Release$", text, re.M):
        findings.add("tests/lint.py", 1, f"{build} is not a Release build; purity needs one")
        return
    for room, allowed in PURE_ROOMS.items():
        defined = set()
        for part in PURE_BELOW.get(room, []) + [room]:
            objects = pure_objects(root, build, part, findings)
            more, wanted = read_symbols(objects)
            defined |= set(more)
        folder = os.path.join(build, "CMakeFiles", f"kvt_{os.path.basename(room)}.dir")
        for item, symbol in wanted:
            if symbol in defined or any(fnmatch.fnmatchcase(symbol, mask) for mask in allowed):
                continue
            source = os.path.relpath(item, folder)[:-len(".o")]
            findings.add(source, 1, f"{room} is pure and must not call {symbol}")


def measure_room(root, paths, build):
    """What stands beside LIMITS: its number, and which files or names it counts."""
    measured = {}
    for path in paths:
        if path.endswith(C_SUFFIXES) and room_of(path).startswith(LIMITED_FOLDERS):
            measured.setdefault(("files", room_of(path)), []).append(os.path.basename(path))
    called = set()
    for path in paths:
        if path.startswith(CALLERS) and path.endswith((*C_SUFFIXES, ".cpp", ".py")):
            with open(os.path.join(root, path), encoding="utf-8") as file:
                called.update(re.findall(r"\b(?:guarded_)?(kvt_\w+)", file.read()))
    measured["uncalled", "include"] = [name for name in count_tree.count_public(root, paths)
                                       if name not in called and
                                       not name.endswith(("_init", "_init_sized", "_free"))]
    objects = count_tree.read_objects(root, build) if build else {}
    objects = {path: both for path, both in objects.items() if room_of(path) in ROOMS}
    for folder in {path.split("/")[0] for path in objects}:
        circles = count_tree.count_circles(objects, folder)["circles"]
        measured["circle", folder] = max(circles, key=len, default=[])
    for path, (defined, _) in objects.items():
        words = ("kvt_", "main", "PyInit_", *room_of(path).split("/"))
        measured.setdefault(("names", room_of(path)), []).extend(
            name for name in sorted(defined) if not name.startswith(words))
    return measured


def check_limits(root, paths, build, findings):
    table, where = {}, os.path.join("tests", "limits.csv")
    if where in paths:
        with open(os.path.join(root, where), encoding="utf-8", newline="") as file:
            table = {(row["limit"], row["room"]): int(row["most"]) for row in csv.DictReader(file)}
    for (limit, room), found in sorted(measure_room(root, paths, build).items()):
        most = table.pop((limit, room), LIMITS[limit])
        if len(found) > most:
            findings.add(room, 1, f"{limit}: {len(found)}, {most} are allowed: {' '.join(found)}")
        elif most > LIMITS[limit] >= len(found):
            findings.add(where, 1, f"{limit},{room} needs no row")
    for limit, room in table if build else []:
        findings.add(where, 1, f"{limit},{room}: there is none")


def check_verdicts(root, paths, findings):
    """A verdict that waits has a day, and is given by then: "until 2027-03-31: ..."."""
    path = os.path.join("lab", "results", "verdicts.md")
    if path not in paths:
        return
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            verdict = line.rstrip(" |\n").split("|")[-1]
            day = re.search(r"\buntil (\d{4}-\d\d-\d\d)?", verdict)
            if day and (day.group(1) or "") < datetime.date.today().isoformat():
                findings.add(path, number, "until: no day, or one that has passed")


def check_budget(root, paths, findings):
    """tests/budget.csv: how much each part of the tree may have."""
    path = os.path.join("tests", "budget.csv")
    if path not in paths:
        return
    for sentence in count_tree.over_budget(root, paths):
        findings.add(path, 1, sentence + "; a record in docs/decisions raises it")


def check_tree(root, build=None, with_format=True, long_functions=None):
    """All checks; returns the findings."""
    findings = Findings()
    left = dict(LONG_FUNCTIONS if long_functions is None else long_functions)
    guides, words = {}, set()
    paths = list_files(root)
    has_license = "LICENSE" in paths
    names = set(paths)
    for path in paths:
        while (path := os.path.dirname(path)):
            names.add(path)
    for path in paths:
        is_text = path.endswith(TEXT_SUFFIXES) or os.path.basename(path) in TEXT_NAMES
        if not is_text and not path.endswith((".md", ".json", ".ini", ".csv")):
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        check_words(path, text, findings)
        if fnmatch.fnmatch(path, os.path.join("docs", "ADD_*.md")):
            guides[path] = text
        if is_text:
            words.update(re.findall(r"\w+", text))
        if path not in PATHS_UNCHECKED:
            check_paths(path, text, names, findings)
        if is_text:
            check_text(path, text, findings)
            if has_license:
                check_license(path, text, findings)
        if room_of(path) == "include":
            check_api_comments(path, text, findings)
        if path.endswith(C_SUFFIXES):
            code = blank_out(text)
            check_includes(root, path, text, findings)
            check_calls(path, code, findings)
            if room_of(path) == "include":
                check_fields(path, code, findings)
            check_functions(path, code, findings, left)
        if path == os.path.join("docs", "ARCHITECTURE.md"):
            lines = text.count("\n")
            if lines > ARCHITECTURE_LINES:
                findings.add(path, lines, f"{lines} lines; three pages are {ARCHITECTURE_LINES}")
    for path, text in guides.items():
        check_guide(path, text, names, words, findings)
    for key in left:
        findings.add("tests/lint.py", 1, f"LONG_FUNCTIONS names {key}, which is not there")
    check_limits(root, paths, build, findings)
    check_verdicts(root, paths, findings)
    check_budget(root, paths, findings)
    check_names(paths, findings)
    check_example(root, findings)
    if with_format:
        check_format(root, paths, findings)
    if build:
        check_purity(root, build, findings)
    return findings


def main():
    parser = argparse.ArgumentParser(description="checks that a compiler does not make")
    parser.add_argument("--root", default=SOURCE, help="the source tree")
    parser.add_argument("--build", help="a Release build, for the purity of codecs and policy")
    parser.add_argument("--no-format", action="store_true", help="leave clang-format out")
    options = parser.parse_args()
    tools = ([] if options.no_format else ["clang-format"]) + (["nm"] if options.build else [])
    for tool in tools:
        if not shutil.which(tool):
            print(f"lint.py: {tool} is not installed", file=sys.stderr)
            return 2
    findings = check_tree(options.root, options.build, not options.no_format)
    findings.print_sorted()
    count = len(findings.rows)
    print(f"lint: {count} finding{'' if count == 1 else 's'}", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
