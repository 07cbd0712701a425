#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The linter on small trees: every rule must report its breach, and a clean tree must pass."""

import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests"))
sys.dont_write_bytecode = True
import lint  # noqa: E402

CLEAN = {
    "include/kvterrace/a.h": "int kvt_a(void);\n",
    "codecs/b.h": '#include <kvterrace/a.h>\n#include "../include/kvterrace/a.h"\n',
    "codecs/b.c": '#include "b.h"\n#include <string.h>\nint codecs_b(int x)\n{\n    return x;\n}\n',
    "estimator/measure/c.c": '#include "codecs/b.h"\n/* strcpy(a, b) in a comment */\n',
    "store/core/d.c": 'const char *d = "gets(";\nvoid *e(void)\n{\n    return malloc(1);\n}\n',
    "lab/bench/f.c": '#include "../../include/kvterrace/a.h"\n',
    "tests/unit/g.c": 'int g(void)\n{\n    return getenv("A") != 0;\n}\n',
    "docs/ARCHITECTURE.md": "short\n",
}


class LintTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name
        for path, text in CLEAN.items():
            self.put(path, text)

    def put(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)

    def check(self, **options):
        options.setdefault("long_functions", {})
        return lint.check_tree(self.root, with_format=False, **options).rows

    def assert_found(self, path, line, part):
        rows = self.check()
        self.assertEqual([(row[0], row[1]) for row in rows], [(path, line)], rows)
        self.assertIn(part, rows[0][2])

    def test_clean(self):
        self.assertEqual(self.check(), [])

    def test_a_part_has_a_budget(self):
        rows = "part,folders,unit,most\nlower,include codecs,C lines,9\ndocs,docs,words,1\n"
        self.put("tests/budget.csv", rows)
        self.assertEqual(self.check(), [])
        self.put("docs/decisions/0001-x.md", "many words that count in their own row alone\n")
        self.put("docs/README.txt", "no page\n")
        self.assertEqual(self.check(), [])
        self.put("codecs/h.h", "int h(void);\n")
        self.assert_found("tests/budget.csv", 1, "lower: 10 C lines, 9 are allowed")
        self.put("tests/budget.csv", rows.replace("9", "10").replace("docs,docs", "docs,pages"))
        self.assert_found("tests/budget.csv", 1, "pages/ is not in the tree")

    def test_files_of_a_folder(self):
        for number in range(lint.LIMITS["files"]):
            self.put(f"store/read/f{number}.c", "int x;\n")
        self.assertEqual(self.check(), [])
        self.put("store/read/more.h", "int x;\n")
        self.assert_found("store/read", 1, "files: 41, 40 are allowed")
        self.put("tests/limits.csv", "limit,room,most\nfiles,store/read,41\n")
        self.assertEqual(self.check(), [])
        os.remove(os.path.join(self.root, "store/read/more.h"))
        self.assert_found("tests/limits.csv", 1, "files,store/read needs no row")

    def test_public_functions_have_callers(self):
        text = "/* %s. */\nKVT_API int kvt_%s(void);\n"
        self.put("include/kvterrace/a.h", "".join(text % (name, name)
                                                  for name in ("one", "two", "x_init", "x_free")))
        self.put("examples/a.c", "int main(void)\n{\n    return kvt_one();\n}\n")
        self.assert_found("include", 1, "uncalled: 1, 0 are allowed: kvt_two")
        self.put("tools/two.c", "int (*two)(void) = kvt_two;\n")
        self.assertEqual(self.check(), [])

    def test_verdicts_wait_until_a_day(self):
        path = "lab/results/verdicts.md"
        self.put(path, "| a | until it rains | 7 | stays |\n| b | 1 | 2 | until 9999-01-01: x |\n")
        self.assertEqual(self.check(), [])
        for words in ("until 2026-01-31: x", "until the next issue"):
            self.put(path, f"| b | 1 | 2 | {words} |\n")
            self.assert_found(path, 1, "no day, or one that has passed")

    def test_circles(self):
        for one, other in zip("wxyz", "xyzw"):
            self.put(f"codecs/{one}.c", f"int codecs_{other}(void);\nint codecs_{one}(void);\n"
                     f"int codecs_{one}(void)\n{{\n    return codecs_{other}();\n}}\n")
        rows = self.check(build=self.build())
        self.assertEqual([row[:2] for row in rows], [("codecs", 1)], rows)
        self.assertIn("circle: 4, 3 are allowed: codecs/w.c codecs/x.c", rows[0][2])

    def test_names_begin_with_their_room(self):
        self.put("codecs/x.c", "int other(void);\nint other(void)\n{\n    return 2;\n}\n")
        rows = self.check(build=self.build())
        self.assertEqual([row[:2] for row in rows], [("codecs", 1)], rows)
        self.assertIn("names: 1, 0 are allowed: other", rows[0][2])

    def test_one_header_of_the_laboratory(self):
        self.put("store/lend/scratch.h", "int lent(void);\n")
        self.put("lab/private.h", '#include "store/lend/scratch.h"\n')
        self.put("lab/bench/h.c", '#include "lab/private.h"\n')
        self.assertEqual(self.check(), [])
        self.put("lab/bench/h.c", '#include "store/lend/scratch.h"\n')
        self.assert_found("lab/bench/h.c", 1, "must not include")

    def test_include_direction(self):
        for room, header in (("codecs", "store/core/x.h"), ("tiers/pool", "codecs/b.h"),
                             ("policy", "estimator/predict/x.h"),
                             ("estimator/profile", "store/core/x.h"),
                             ("tiers/devices", "tiers/pool/x.h"),
                             ("estimator/predict", "policy/x.h"), ("store/core", "replay/x.h"),
                             ("base", "store/core/x.h"), ("store/core", "estimator/quality/x.h"),
                             ("tools", "store/core/x.h"), ("include", "base/x.h")):
            with self.subTest(room=room, header=header):
                self.setUp()
                if not header.endswith("b.h"):
                    self.put(header, "int x;\n")
                self.put(f"{room}/bad.c", f'int y;\n#include "{header}"\n')
                self.assert_found(f"{room}/bad.c", 2, f"{room} must not include {header}")

    def test_folder_that_is_no_room(self):
        self.put("tiers/bad.c", "int y;\n")
        self.assert_found("tiers/bad.c", 1, "tiers is no room")

    def test_include_by_angle_brackets(self):
        self.put("codecs/bad.c", "#include <store/core/x.h>\n")
        self.put("store/core/x.h", "int x;\n")
        self.assert_found("codecs/bad.c", 1, "must not include")

    def test_include_missing(self):
        self.put("codecs/bad.c", '#  include "nowhere.h"\n')
        self.assert_found("codecs/bad.c", 1, "not in the tree")

    def test_banned_calls(self):
        for call in sorted(lint.BANNED_CALLS) + sorted(lint.TEST_ONLY_CALLS):
            with self.subTest(call=call):
                self.setUp()
                self.put("store/core/bad.c", f"int x;\nint y = {call} (1);\n")
                self.assert_found("store/core/bad.c", 2, call)

    def test_heap(self):
        for room in sorted(lint.HEAPLESS_ROOMS):
            with self.subTest(room=room):
                self.setUp()
                self.put(f"{room}/bad.c", "void *p(void)\n{\n    return malloc(1);\n}\n")
                self.assert_found(f"{room}/bad.c", 3, "does not use the heap")

    def test_constructor(self):
        self.put("tiers/pool/bad.c", "__attribute__((constructor)) static void f(void);\n")
        self.assert_found("tiers/pool/bad.c", 1, "constructor")

    def test_function_length(self):
        body = "    x++;\n" * (lint.FUNCTION_LINES + 1)
        self.put("store/core/bad.c", "static int long_one(int x,\n    int y)\n{\n" + body + "}\n")
        self.assert_found("store/core/bad.c", 3, "long_one has 71 lines")
        allow = {"store/core/bad.c:long_one": 71}
        self.assertEqual(self.check(long_functions=allow), [])
        allow = {"store/core/bad.c:long_one": 90}
        self.assertIn("shrink", self.check(long_functions=allow)[0][2])
        allow = {"store/core/bad.c:long_one": 71, "store/core/bad.c:gone": 80}
        self.assertIn("gone", self.check(long_functions=allow)[0][2])

    def test_sizes_and_text(self):
        cases = (("x" * 101 + "\n", 1, "columns"), ("int x; \n", 1, "blanks"),
                 ("int x;", 1, "newline"), ("\tint x;\n", 1, "tab"),
                 ("/* caf\u00e9 */\n", 1, "ASCII"), ("int x;\n" * 801, 801, "801 lines"),
                 ("\n/* TO" "DO: more */\n", 2, "unfinished"),
                 ("/* see /wo" "rk/main */\n", 1, "path of one machine"),
                 ("/* http://py" "pi.example.com/simple */\n", 1, "registry"))
        for text, line, part in cases:
            with self.subTest(part=part):
                self.setUp()
                self.put("store/core/bad.c", text)
                self.assert_found("store/core/bad.c", line, part)

    def test_names(self):
        self.put("tiers/pool/b.c", "int x;\n")
        self.assert_found("tiers/pool/b.c", 1, "taken by codecs/b.c")

    def test_license(self):
        line = f"/* {lint.LICENSE_LINE} */\n"
        for path, text in CLEAN.items():
            if path.endswith((".c", ".h")):
                self.put(path, line + text)
        self.put("tools/script.sh", f"#!/bin/sh\n# {lint.LICENSE_LINE}\n")
        self.put("LICENSE", "Apache License\n")
        self.assertEqual(self.check(), [])
        self.put("store/core/bad.c", "int x;\nint y;\n" + line)
        self.assert_found("store/core/bad.c", 1, "SPDX")

    def test_paths(self):
        self.put("docs/one.md", "store/core/d.c, `codecs/b.{c,h}`, codecs/*.h, lab/bench/, docs/ "
                 "and tests/<kind>/test_*.c, tests/$name.c, tests/fuzz/TARGET.zst, away/none.c\n")
        self.put("tests/unit/packed.txt.zst", "")
        self.put("store/core/e.c", "/* tests/unit/packed.txt */\n")
        self.assertEqual(self.check(), [])
        for token in ("store/gone.c", "codecs/b.{c,gone}", "codecs/*.py", "rese" "arch/policy.md",
                      "lab/bench/gone/"):
            for path, text in (("docs/one.md", f"text\nsee {token}, section 4.\n"),
                               ("store/core/bad.c", f"int x;\n/* ({token}) */\n"),
                               ("profiles/a.csv", f"a,b\n# {token}\n")):
                with self.subTest(token=token, path=path):
                    self.setUp()
                    self.put(path, text)
                    self.assert_found(path, 2, "is not in the tree")

    def test_guides(self):
        good = "`codecs_b`, `kvt_a(1)`, codecs/b.c, f.c, `KVT_CODEC_NAME`, NAME.c, `make ENGINES=x`"
        self.put("docs/ADD_PART.md", f"{good}\n")
        self.assertEqual(self.check(), [])
        for gone in ("`codecs_gone`", "`kvt_a`, `no_name()`", "`Parts`", "`KVT_GONE`", "gone.c"):
            with self.subTest(gone=gone):
                self.put("docs/ADD_PART.md", f"{good}\n{gone}\n")
                self.assert_found("docs/ADD_PART.md", 2, "is not in the tree")

    def test_api_comments(self):
        text = "/* Says it. */\nKVT_API int kvt_one(void);\n"
        self.put("examples/call.c", "void *calls[] = {kvt_one, kvt_two};\n")
        self.put("include/kvterrace/a.h", text + "\n/* More.\n */\nKVT_API void kvt_two(\n);\n")
        self.assertEqual(self.check(), [])
        for between in ("", "\n", "typedef int kvt_three;\n"):
            with self.subTest(between=between):
                self.put("include/kvterrace/a.h", text + between + "KVT_API void kvt_two(void);\n")
                self.assert_found("include/kvterrace/a.h", 3 + between.count("\n"), "kvt_two has")

    def test_architecture(self):
        self.put("docs/ARCHITECTURE.md", "line\n" * 181)
        self.assert_found("docs/ARCHITECTURE.md", 181, "three pages")

    def test_example(self):
        self.put("examples/example.c", "int main(void)\n{\n    /* README: from here */\n"
                 "    return 0;\n    /* README: to here */\n}\n")
        self.put("README.md", "text\n```c\n#include <x.h>\nreturn 0;\n```\n")
        self.assertEqual(self.check(), [])
        self.put("README.md", "text\n```c\nreturn 1;\n```\n")
        self.assert_found("README.md", 1, "example.c")

    def build(self, kind="Release"):
        """Objects as CMake lays them out."""
        folder = os.path.join(self.root, "build")
        for room in lint.PURE_ROOMS:
            if not os.path.isdir(os.path.join(self.root, room)):
                continue
            os.makedirs(os.path.join(folder, "CMakeFiles", f"kvt_{room}.dir", room))
            for name in os.listdir(os.path.join(self.root, room)):
                if name.endswith(".c"):
                    target = os.path.join(folder, "CMakeFiles", f"kvt_{room}.dir", room, name)
                    subprocess.run(["cc", "-O2", "-c", os.path.join(self.root, room, name), "-I",
                                    os.path.join(self.root, "include"), "-o", target + ".o"],
                                   check=True)
        with open(os.path.join(folder, "CMakeCache.txt"), "w", encoding="utf-8") as file:
            file.write(f"CMAKE_BUILD_TYPE:STRING={kind}\n")
        return folder

    def test_fields_of_public_structs(self):
        fields = "    int a, b;\n    void (*call)(int, int); /* one, two */\n" * 13
        text = "typedef struct kvt_x {\n" + fields + "%s} kvt_x;\n"
        self.put("include/kvterrace/x.h", text % "    int y;\n")
        self.assertEqual(self.check(), [])
        self.put("include/kvterrace/x.h", text % "    int y, z;\n")
        self.assert_found("include/kvterrace/x.h", 1, "41 fields")

    def test_purity(self):
        self.put("policy/one.c", "int policy_two(void);\nint policy_one(void)\n{\n"
                 "    return policy_two();\n}\n")
        self.put("policy/two.c", "int policy_two(void)\n{\n    return 2;\n}\n")
        folder = self.build()
        self.assertEqual(self.check(build=folder), [])

    def test_purity_breach(self):
        self.put("policy/one.c", "#include <time.h>\nlong policy_one(void)\n{\n"
                 "    return time(0);\n}\n")
        folder = self.build()
        rows = self.check(build=folder)
        self.assertEqual([row[:2] for row in rows], [("policy/one.c", 1)], rows)
        self.assertIn("must not call time", rows[0][2])

    def test_purity_needs_release(self):
        self.put("policy/one.c", "int policy_one;\n")
        self.assertIn("Release", self.check(build=self.build("Debug"))[0][2])

    def test_purity_missing_object(self):
        self.put("policy/one.c", "int policy_one;\n")
        folder = self.build()
        self.put("policy/later.c", "int policy_later;\n")
        self.assertIn("build first", self.check(build=folder)[0][2])


if __name__ == "__main__":
    unittest.main()
