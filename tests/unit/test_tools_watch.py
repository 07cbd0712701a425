#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a store that runs shows in its file: Prometheus text that other readers take, and that
`kvterrace inspect` prints.

    test_tools_watch.py COMMAND

The client library of Prometheus reads the file too where it is installed.
"""

import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase  # noqa: E402

LIVE = ["replay", "--mode", "live", "--workload", "poisson", "--policy", "lru",
        "--set", "workload.contexts=50", "--set", "workload.requests=100",
        "--set", "workload.rate=50", "--set", "tier.dram.capacity=2GB",
        "--set", "replay.scale=0.001"]
SAMPLE = re.compile(r'kvterrace_[a-z0-9_]+(\{([a-z_]+="(\\.|[^"\\\n])*",?)+\})? [-+.0-9a-zA-Z]+\n')
OPERATION = re.compile(r"# operation( [a-z]+=\S+){11}\n")


class WatchCase(CommandCase):
    def live(self):
        """The text that a live replay leaves."""
        self.run_command(*LIVE, "--set", "store.watch_path=w.prom")
        with open(self.path("w.prom"), encoding="utf-8") as file:
            return file.read()

    def test_file(self):
        text = self.live()
        lines = text.splitlines(keepends=True)
        self.assertRegex(lines[0], r"^# kvterrace-watch-1 written=\d+ clock=\d+\n$")
        for line in lines[1:]:
            if not line.startswith(("# HELP ", "# TYPE ")):
                self.assertRegex(line, OPERATION if line.startswith("#") else SAMPLE)
        self.assertEqual(len([line for line in lines if line.startswith("# operation")]), 256)

    def test_other_reader(self):
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            self.skipTest("prometheus_client is not installed")
        families = {family.name: family for family in text_string_to_metric_families(self.live())}
        self.assertEqual(families["kvterrace_get_seconds"].type, "histogram")
        self.assertEqual(families["kvterrace_puts"].type, "counter")

    def test_inspect(self):
        text = self.live()
        document = self.run_json("inspect", "w.prom")
        self.assertEqual(document["kind"], "watch")
        self.assertEqual(len(document["operations"]), 256)
        self.assertEqual(len(document["metrics"]), len(re.findall(r"^[^#]", text, re.M)))
        gets = [row["value"] for row in document["metrics"] if row["name"] == "gets_total"]
        self.assertIn(f"kvterrace_gets_total {gets[0]}\n", text)
        self.assertEqual({type(row["bytes"]) for row in document["operations"]}, {int})
        printed = self.run_command("inspect", "w.prom").stdout
        self.assertRegex(printed, rf"(?m)^gets +{gets[0]},")
        self.assertRegex(printed, r"(?m)^dram +\d+ ")
        self.assertIn("the last 20 of 256 operations", printed)
        whole = self.run_command("inspect", "w.prom", "--entries").stdout
        self.assertEqual(len(whole.splitlines()), len(printed.splitlines()) + 256 - 20 - 1)

    def test_odd_files(self):
        head = "# kvterrace-watch-1 written=1 clock=2\n"
        self.put("label", head + 'kvterrace_device_up{device="a\\"b\\\\c\\nd",tier="ssd"} 1\n')
        row = self.run_json("inspect", "label")["metrics"][0]
        self.assertEqual(row, {"name": "device_up", "value": 1, "device": 'a"b\\c\nd',
                               "tier": "ssd"})
        self.assertIn("none", self.run_command("inspect", "label").stdout)
        self.put("forms", head + "".join(
            f'kvterrace_hits_total{{tier="{tier}",form="{form}"}} {hits}\n'
            for tier, form, hits in (("dram", "raw", 3), ("dram", "lossless", 1), ("ssd", "raw", 4),
                                     ("ssd", "kivi", 0))))
        self.assertRegex(self.run_command("inspect", "forms").stdout,
                         r"(?m)^hit as     raw 7, lossless 1$")
        self.put("bytes", head.encode() + b'kvterrace_x{a="\xff"} NaN\n# a remark\n\n')
        row = self.run_json("inspect", "bytes")["metrics"][0]
        self.assertEqual(row, {"name": "x", "value": None, "a": "(not UTF-8)"})
        for number, line in enumerate(
                ("kvterrace_x", "kvterrace_x{", 'kvterrace_x{a="b} 1', 'kvterrace_x{a="b"}1',
                 'kvterrace_x{a="b\\', "kvterrace_x one", "kvterrace_x 1 2 3", " 1",
                 "# operation kind", "# operation " + "a=b " * 40,
                 "x{" + ",".join(f'a{i}="b"' for i in range(40)) + "} 1")):
            self.put(f"bad{number}", head + "kvterrace_y 1\n" + line)
            self.fails(f"bad{number}:3: ", "inspect", f"bad{number}")

    def test_wrong_path(self):
        self.put("letter", "a letter to somebody\n")
        self.fails("watch_path letter", *LIVE, "--set", "store.watch_path=letter", code=2)
        with open(self.path("letter"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "a letter to somebody\n")
        self.fails("watch_interval", *LIVE, "--set", "store.watch_interval=3", code=2)


if __name__ == "__main__":
    unittest.main()
