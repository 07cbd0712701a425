#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LMCache's own check of a second level, unmodified, through both plug-in points."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

ENGINE = "lmcache"
KEYS = 8


def specification(kind, settings, **parameters):
    name = {"plugin": "KvterraceL2Adapter", "native_plugin": "KvterraceConnector"}[kind]
    return json.dumps({"type": kind, "module_path": "kvterrace.lmcache", "class_name": name,
                       "adapter_params": {"settings": settings, **parameters}})


class BasicCheck(unittest.TestCase):
    def check(self, kind, settings, *options):
        """Runs the check in a process of its own; every phase passes for every key."""
        done = subprocess.run(
            [sys.executable, "-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter",
             "--num-keys", str(KEYS), "--l2-adapter", specification(kind, settings), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        for phase in (r"LOOKUP \(absent\)", "STORE", r"LOOKUP \(exist\)", "LOAD"):
            self.assertRegex(done.stdout, rf"\| {phase} .*\b{KEYS}/{KEYS} ", done.stdout)
        self.assertRegex(done.stdout, rf"Validation \(content\): {KEYS}/{KEYS}")
        self.assertNotIn("Test Failed", done.stdout)
        self.assertIsNone(re.search(r"\bERROR\b", done.stdout), done.stdout)

    def test_plugin(self):
        self.check("plugin", {"tier.dram.capacity": "64MiB"})

    def test_native_plugin(self):
        self.check("native_plugin", {"tier.dram.capacity": "64MiB"})

    def test_both_on_a_file(self):
        with tempfile.TemporaryDirectory(prefix="kvt-engines-") as folder:
            for kind in ("plugin", "native_plugin"):
                device = {"device.ssd.tier": "ssd", "device.ssd.backend": "file",
                          "device.ssd.path": os.path.join(folder, kind),
                          "device.ssd.capacity": "64MiB"}
                self.check(kind, device, "--kv-dtype", "bfloat16", "--obj-size", "131072")


if __name__ == "__main__":
    unittest.main()
