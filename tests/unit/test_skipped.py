#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/skipped.sh names what ctest's last run skipped, with reasons, and nothing else."""
import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ONE = """{0}/9 Testing: unit/{1}
{0}/9 Test: unit/{1}
Command: "x"
Output:
----------------------------------------------------------
{2}
<end of output>
Test Passed.
"""


def summary(*tests):
    with tempfile.TemporaryDirectory() as build:
        if tests:
            os.makedirs(os.path.join(build, "Testing", "Temporary"))
            path = os.path.join(build, "Testing", "Temporary", "LastTest.log")
            with open(path, "w", encoding="utf-8") as log:
                log.write("".join(ONE.format(i + 1, *t) for i, t in enumerate(tests)))
        return subprocess.run([os.path.join(ROOT, "tests", "skipped.sh"), build],
                              capture_output=True, text=True, check=False)


class Skipped(unittest.TestCase):
    def test_reasons_are_named(self):
        ran = summary(("a", "[  PASSED  ] 3 test(s)."), ("b", "skipped: no module 'torch'"),
                      ("c", "[  PASSED  ] 3 test(s).\n[  SKIPPED ] 2 test(s), listed below:"))
        self.assertEqual(ran.returncode, 0)
        self.assertIn("  unit/b: no module 'torch'\n  unit/c, 2 of its cases\n", ran.stdout)
        self.assertNotIn("unit/a", ran.stdout)

    def test_nothing_is_said_of_nothing(self):
        self.assertEqual(summary(("a", "[  PASSED  ] 3 test(s).")).stdout, "")

    def test_without_a_run(self):
        self.assertEqual(summary().returncode, 2)


if __name__ == "__main__":
    unittest.main()
