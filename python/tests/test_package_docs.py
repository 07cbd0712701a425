# SPDX-License-Identifier: Apache-2.0
"""The Python of README.md and docs/PYTHON.md runs as it is printed: the blocks of a page in turn,
in one module. A block that opens a file which is not there is compiled alone."""

import contextlib
import io
import os
import re
import unittest

import package_case  # noqa: F401  (the path to the package)

ROOT = os.environ.get("KVT_SOURCE_DIR",
                      os.path.join(os.path.dirname(__file__), "..", ".."))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.S | re.M)


def blocks_of(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        return BLOCK.findall(file.read())


class Pages(unittest.TestCase):
    def run_page(self, page):
        """What its blocks print."""
        names, printed, ran = {}, io.StringIO(), 0
        for number, block in enumerate(blocks_of(page), 1):
            code = compile(block, f"{page}, block {number}", "exec")
            if ".open(" in block:
                continue
            with contextlib.redirect_stdout(printed):
                exec(code, names)  # the page is ours
            ran += 1
        self.assertGreater(ran, 0, page)
        return printed.getvalue()

    def test_readme(self):
        self.assertEqual(self.run_page("README.md").split(), ["Outcome.STORED", "True"])

    def test_python(self):
        self.assertEqual(self.run_page("docs/PYTHON.md"), "")


if __name__ == "__main__":
    unittest.main()
