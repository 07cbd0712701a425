#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The grid's command: its list, a quick run as JSON, a run that is interrupted, wrong arguments.

    test_bench_grid.py COMMAND

The runs are of the tuning half alone, and without real traces.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, CommandCase  # noqa: E402

WAIT_SECONDS = 300
POLICIES = {"none", "lru", "lru-leaf", "gdsf", "s3fifo", "w-tinylfu", "pensieve", "adaptcache",
            "utility"}


class GridTest(CommandCase):
    def grid(self, *arguments, code=0):
        environment = {k: v for k, v in os.environ.items() if k != "KVT_DATA_DIR"}
        result = subprocess.run([COMMAND, "grid", *arguments], capture_output=True,
                                text=True, cwd=self.folder, env=environment, timeout=WAIT_SECONDS,
                                check=False)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def list(self, *arguments):
        return json.loads(self.grid("--list", "--json", *arguments).stdout)["cells"]

    def test_the_list_covers_what_was_promised(self):
        cells = self.list()
        self.assertGreaterEqual(len(cells), 80)
        sessions = [cell for cell in cells if cell["family"] == "sessions"]
        for key, levels in (("turns_mean", {1, 3, 8, 16}), ("zipf", {0, 0.6, 0.9, 1.2}),
                            ("capacity_percent", {2, 20, 80, 200}),
                            ("ssd_gb_per_s", {0, 0.5, 3, 14})):
            self.assertEqual({cell[key] for cell in sessions}, levels)
        self.assertEqual({cell["family"] for cell in cells},
                         {"sessions", "long", "drift", "scan", "crowd", "conversation",
                          "toolagent", "agentic"})
        self.assertTrue(any(cell["family"] == "long" and cell["ssd_gb_per_s"] == 0.5
                            for cell in cells))
        self.assertEqual({tuple(cell["forms"]) for cell in cells},
                         {("raw",), ("raw", "lossless")})

    def test_halves_are_disjoint(self):
        everything = {cell["cell"]: cell["half"] for cell in self.list()}
        tuning = {cell["cell"] for cell in self.list("--half", "tuning")}
        hidden = {cell["cell"] for cell in self.list("--half", "hidden")}
        self.assertFalse(tuning & hidden)
        self.assertEqual(tuning | hidden, set(everything))
        self.assertEqual(len(tuning), len(hidden))
        self.assertEqual({name for name, half in everything.items() if half == "hidden"}, hidden)

    def check_rows(self, document):
        by_cell = {}
        for row in document["rows"]:
            self.assertEqual(row["half"], "tuning")
            self.assertGreaterEqual(row["ttft_s_mean"] or math.inf, row["bound"] * (1 - 1e-9))
            by_cell.setdefault(row["cell"], {})[row["policy"]] = row
        for cell in document["cells"]:
            if cell["skipped"]:
                self.assertNotIn(cell["cell"], by_cell)
                continue
            rows = by_cell[cell["cell"]]
            self.assertEqual(set(rows), POLICIES)
            rivals = [row["ttft_s_mean"] for name, row in rows.items()
                      if name != "utility" and row["ttft_s_mean"] is not None]
            best = rows[cell["best_rival"]]
            self.assertEqual(best["ttft_s_mean"], min(rivals))
            self.assertEqual(best["ratio_to_best"], 1)
            self.assertEqual(rows["utility"]["ratio_to_best"], cell["ratio"])
            self.assertLessEqual(cell["ratio_low"], cell["ratio"])
            self.assertEqual(cell["room"], best["ttft_s_mean"] > 1.05 * cell["bound"])
            self.assertGreaterEqual(cell["bound_without_moves"], cell["bound"] * (1 - 1e-9))

    def test_a_quick_run(self):
        result = self.grid("--quick", "--half", "tuning", "--seeds", "2", "--json",
                           "--data", "nothing")
        document = json.loads(result.stdout)
        self.assertIn("budget: ", result.stderr)
        self.assertIn("are skipped: there is no ", result.stderr)
        self.assertEqual(document["schema"], "kvterrace-bench-grid-1")
        self.assertFalse(document["interrupted"])
        self.check_rows(document)
        totals = document["totals"]
        self.assertEqual(totals["cells"], len(document["cells"]))
        self.assertEqual(totals["skipped"], sum(c["skipped"] for c in document["cells"]))
        self.assertGreater(totals["skipped"], 0)
        room = [c["ratio"] for c in document["cells"] if c.get("room")]
        self.assertEqual(totals["cells_with_room"], len(room))
        self.assertAlmostEqual(totals["geometric_mean_with_room"],
                               math.exp(sum(map(math.log, room)) / len(room)), places=6)
        self.assertEqual(totals["intervals_above_1_02"],
                         sum(not c["skipped"] and c["ratio_low"] > 1.02
                             for c in document["cells"]))
        worst = [entry["ratio"] for entry in totals["worst"]]
        ratios = sorted((c["ratio"] for c in document["cells"] if not c["skipped"]), reverse=True)
        self.assertEqual(worst, ratios[:5])

    def test_threads_change_nothing(self):
        cell = [c["cell"] for c in self.list("--half", "tuning") if c["quick"]][0]
        arguments = ["--quick", "--cell", cell, "--seeds", "3", "--json"]
        one = json.loads(self.grid(*arguments, "--threads", "1").stdout)
        many = json.loads(self.grid(*arguments, "--threads", "3").stdout)
        self.assertEqual(one["rows"], many["rows"])
        self.assertEqual([c["cell"] for c in one["cells"]], [cell])

    def test_an_interrupted_run_prints_what_it_has(self):
        with open(self.path("errors"), "w", encoding="utf-8") as errors:
            bench = subprocess.Popen([COMMAND, "grid", "--half", "tuning", "--seeds", "2",
                                      "--data", "nothing", "--json"], stdout=subprocess.PIPE,
                                     stderr=errors, text=True, cwd=self.folder)
        try:
            end = time.monotonic() + WAIT_SECONDS
            while " 10 %: " not in open(self.path("errors"), encoding="utf-8").read():
                self.assertLess(time.monotonic(), end, "no tenth of the run was finished")
                time.sleep(0.01)
            bench.send_signal(signal.SIGINT)
            output, _ = bench.communicate(timeout=WAIT_SECONDS)
        finally:
            bench.kill()
            bench.wait()
        self.assertEqual(bench.returncode, 130)
        document = json.loads(output)
        self.assertTrue(document["interrupted"])
        finished = [c["cell"] for c in document["cells"] if c["finished"]]
        self.assertGreater(len(finished), 0)
        self.assertLess(len(finished), len(document["cells"]))
        self.assertEqual({row["cell"] for row in document["rows"]}, set(finished))
        with open(self.path("errors"), encoding="utf-8") as errors:
            self.assertIn("interrupted", errors.read())

    def test_wrong_arguments(self):
        self.assertIn("no cell is named", self.grid("--cell", "nothing", code=2).stderr)
        self.assertIn("one of all|tuning|hidden", self.grid("--half", "both", code=2).stderr)
        self.grid("--seeds", "101", code=2)
        hidden = self.list("--half", "hidden")[0]["cell"]
        self.grid("--cell", hidden, "--half", "tuning", code=2)


if __name__ == "__main__":
    unittest.main()
