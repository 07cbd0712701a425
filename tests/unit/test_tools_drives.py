#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of kvlab on several drives: layered loads, rings, layouts, decisions of the gate.

    test_tools_drives.py COMMAND
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import WORKLOAD, CommandCase  # noqa: E402


# Two drives of memory; the machine's emulated ones may be somebody else's.
TWO = [word for name in ("a", "b") for text in (
    "tier=ssd", "backend=memory", "capacity=256MiB", "read_bandwidth=200MB/s",
    "write_bandwidth=200MB/s") for word in ("--set", f"device.{name}.{text}")]


class DrivesTest(CommandCase):
    def test_bench_slack(self):
        """Decisions of drives, and of a simulation, are made again from their lines."""
        document = self.run_json("kvlab", "slack", "--quick", "--hit-rate", "50", "--asked", "60",
                                 "--decisions", "decisions", *TWO)
        decided = document["decided"][0]
        self.assertGreater(decided["decisions"], 0)
        self.assertEqual((decided["lines"], decided["differ"]), (decided["decisions"], 0))
        self.assertEqual(self.run_json("kvlab", "slack", "--check", "decisions")["decided"],
                         document["decided"])
        with open(self.path("decisions")) as file:
            text = file.read()
        self.assertIn(" waits ", text)
        self.put("changed", text.replace(" waits ", " begins ", 1))
        result = self.run_command("kvlab", "slack", "--check", "changed", code=1)
        self.assertIn("changed: 1 decisions differ", result.stderr)
        self.put("cut", text[:-2])
        result = self.run_command("kvlab", "slack", "--check", "cut", code=1)
        self.assertIn(f"cut: line {decided['lines']} is none", result.stderr)
        self.fails("No such file", "kvlab", "slack", "--check", "absent", code=1)
        self.fails("No such file", "kvlab", "slack", "--quick", "--decisions", "absent/file", *TWO,
                   code=1)
        layered = ["replay", *WORKLOAD, "--policy", "lru", "--set", "tier.dram.capacity=1GiB",
                   "--set", "tier.ssd.capacity=64GiB", "--set", "replay.overlap=yes", "--set",
                   "replay.layers=32", "--set", "replay.layered=yes", "--set", "tier.ssd.mix=0.6"]
        logs = []
        for name in ("plan", "same"):
            self.run_json(*layered, "--plan-log", name)
            with open(self.path(name)) as file:
                logs.append(file.read())
        self.assertEqual(logs[0], logs[1])
        decided = self.run_json("kvlab", "slack", "--check", "plan")["decided"][0]
        self.assertGreater(decided["decisions"], 0)
        self.assertGreater(decided["lines"], decided["decisions"])  # moves
        self.assertEqual(decided["differ"], 0)

    def test_bench_ablation(self):
        document = self.run_json("kvlab", "ablation", "--quick", *TWO)
        rows = document["results"]
        self.assertEqual([row["left_out"] for row in document["coarse"]],
                         ["profiles/smollm2-135m-instruct.json is not here"])
        self.assertEqual([row["parts"] for row in rows],
                         ["serial", "serial, 4 bits", "+ layerwise", "+ ring", "ring, slack",
                          "+ slots, placement", "+ slack", "+ 4 bits"])
        self.assertEqual([(row["device"], row["judged"], row["begins_at"], row["gain"] > 0)
                          for row in document["alignment"]],
                         [("disk", False, begin << 10, True) for begin in (4, 16, 64, 128)])
        for row in rows:
            self.assertGreater(row["bubble_ms"], 0)
            self.assertGreater(row["alone_ms"], 0)
            self.assertGreaterEqual(row["ttft_ms"], row["bubble_ms"])
            self.assertEqual(row["variant"] != "raw", "4 bits" in row["parts"])

    def test_bench_ring(self):
        document = self.run_json("kvlab", "ring", "--quick")
        for row in document["results"]:
            self.assertLessEqual(row["calls_per_layer"], 4 if row["initiator"] != "gets" else 1e9)
        kernels = [row for row in document["results"] if row["initiator"] == "gpu"]
        self.assertEqual([row["not_run"] is None for row in document["gpu"]],
                         [True, True] if kernels else [False])

    def test_bench_objects(self):
        sets = []
        for name, more in (("a", []), ("b", ["read_bandwidth=200MB/s"])):
            for text in ["tier=ssd", "backend=memory", "capacity=256MiB", *more]:
                sets += ["--set", f"device.{name}.{text}"]
        document = self.run_json("kvlab", "objects", "--quick", *sets)
        layouts = ["proportional", "equal", "round_robin", "tensor", "entry"]
        pairs = [(layout, slots) for layout in layouts for slots in (False, True)]
        self.assertEqual([(row["layout"], row["slots"]) for row in document["results"]], pairs)
        self.assertEqual([(row["tensor_bytes"], row["layout"], row["slots"])
                          for row in document["slots"]],
                         [(bytes, *pair) for bytes in (32768, 131072) for pair in pairs])
        for row in document["results"]:
            self.assertEqual(row["tokens"], 1024)
            self.assertGreaterEqual(row["requests_per_layer"], 4)
            for key in ("read_bytes_per_s", "ratio", "first_layer_ms"):
                self.assertGreater(row[key], 0)
        for row in document["slots"]:
            self.assertLessEqual(row["padding"], 0.05)
            # Never in pieces: one extent a drive. Long entries run out of slots on so small drives.
            if row["slots"] and row["tensor_bytes"] == 32768:
                self.assertLessEqual(row["extents"], 2)
        self.assertIn(document["best"][0]["layout"], layouts)


if __name__ == "__main__":
    unittest.main()
