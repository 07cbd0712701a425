#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The soak of the package in short form; `make soak-python` runs it at length."""

import os
import subprocess
import sys
import unittest
import unittest.mock

from package_case import PackageCase

import soak

SOAK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "soak.py")


class Soak(PackageCase):
    def test_a_short_soak(self):
        done = subprocess.run([sys.executable, SOAK, "--seconds", "0", "--tasks", "600"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=600, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("3 rounds of 600 tasks", done.stdout)

    def test_growth_is_found(self):
        steady = [(10, 5, 1 << 30)] * 9
        self.assertEqual(soak.growth(steady), [])
        self.assertEqual(len(soak.growth(steady[:-1] + [(11, 6, 1 << 30)])), 2)
        with unittest.mock.patch.dict(os.environ):
            os.environ.pop("KVT_SOAK_ANY_MEMORY", None)  # a sanitizer's run sets it
            self.assertEqual(len(soak.growth(steady[:6] + [(10, 5, 2 << 30)] * 3)), 1)

    def test_wrong_bytes_are_found(self):
        with soak.kvterrace.Store(tier_dram_capacity="4MiB", policy="lru") as store:
            one = soak.Soak(store, 1)
            one.check(3, one.contents[3], "here")
            self.assertEqual(one.faults, [])
            one.check(3, one.contents[4], "here")
            self.assertEqual((len(one.faults), one.ending.is_set()), (1, True))


if __name__ == "__main__":
    unittest.main()
