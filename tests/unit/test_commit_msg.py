#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The check of commit messages takes good subjects and refuses each kind of bad one."""

import os
import subprocess
import sys
import tempfile
import unittest

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools",
                     "commit_msg.py")


def check(message):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(message)
        file.flush()
        result = subprocess.run([sys.executable, CHECK, file.name], stderr=subprocess.PIPE,
                                text=True)
    return result.returncode, result.stderr


class CommitMessage(unittest.TestCase):
    def test_good(self):
        for message in ("store: continue the recost walk when a new epoch starts\n",
                        "lab, estimator: remove the reader of old traces\n\nIt hit nothing.\n",
                        "base: read the clock, wait and convert half floats in one place\n",
                        "Merge branch 'x'\n", "# a comment\npolicy: add a bound\n"):
            self.assertEqual(check(message), (0, ""), message)

    def test_bad(self):
        for message, text in (("", "no subject"), ("# a comment alone\n", "no subject"),
                              ("wip\n", "not `room"), ("store: fix\n", "what changes"),
                              ("store: fixed a leak of staging\n", "imperative"),
                              ("store: Fix a leak of staging\n", "imperative"),
                              ("store: mend a leak.\n", "full stop"),
                              ("store: mend a leak; add a test\n", "several"),
                              ("store: mend a leak and add a test and a page\n", "several"),
                              ("store: " + "mend " * 14 + "\n", "columns"),
                              ("store: mend a leak\nat once\n", "line 2")):
            code, said = check(message)
            self.assertEqual(code, 1, message)
            self.assertIn(text, said)


if __name__ == "__main__":
    unittest.main()
