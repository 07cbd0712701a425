#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The binding is made from the headers: what it cannot read ends the build."""

import os
import shutil
import subprocess
import sys
import unittest

from package_case import PackageCase

ROOM = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCE = os.path.dirname(ROOM)


class Generate(PackageCase):
    def generate(self, change):
        """Runs the generator on the headers with one change; (exit code, what it says)."""
        folder = self.folder()
        include = os.path.join(folder, "include")
        shutil.copytree(os.path.join(SOURCE, "include"), include)
        change(os.path.join(include, "kvterrace", "names.h"))
        output = os.path.join(folder, "binding.c")
        done = subprocess.run([sys.executable, os.path.join(ROOM, "generate.py"), include,
                               os.path.join(ROOM, "src"), output], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        text = ""
        if done.returncode == 0:
            with open(output, encoding="utf-8") as file:
                text = file.read()
        return done.returncode, done.stdout, text

    def edit(self, old, new):
        def change(path):
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertIn(old, text)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace(old, new, 1))
        return change

    def test_new_functions_come_in(self):
        code, said, text = self.generate(self.edit(
            "KVT_API KVT_NODISCARD kvt_status kvt_touch(",
            "KVT_API KVT_NODISCARD kvt_status kvt_brand_new(kvt_store *store, const kvt_key *key);"
            "\nKVT_API KVT_NODISCARD kvt_status kvt_touch("))
        self.assertEqual(code, 0, said)
        self.assertIn("guarded_kvt_brand_new(kvtpy_handle *guard, const uint8_t *key)", text)

    def test_a_function_that_the_cdef_lacks_fails(self):
        code, said, _ = self.generate(self.edit(
            "KVT_API KVT_NODISCARD kvt_status kvt_touch(",
            "#if 0\nKVT_API kvt_status kvt_hidden(int number);\n#endif\n"
            "KVT_API KVT_NODISCARD kvt_status kvt_touch("))
        self.assertNotEqual(code, 0)
        self.assertIn("lacking: ['kvt_hidden']", said)

    def test_a_function_without_a_mark_fails(self):
        code, said, _ = self.generate(self.edit(
            "KVT_API KVT_NODISCARD kvt_status kvt_touch(", "kvt_status kvt_touch("))
        self.assertNotEqual(code, 0)
        self.assertIn("not in the headers: ['kvt_touch']", said)


if __name__ == "__main__":
    unittest.main()
