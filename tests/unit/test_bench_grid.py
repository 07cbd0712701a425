#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lab/grid.py: its cells, what a cell is replayed with, ratios and totals on planted figures, a
quick run as JSON, a run that is interrupted, wrong arguments.

    test_bench_grid.py COMMAND

The runs are of the tuning half alone, and without real traces.
"""

import argparse
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "..", "lab")]
from command_case import COMMAND, CommandCase  # noqa: E402
import grid  # noqa: E402

WAIT_SECONDS = 300
POLICIES = {*grid.FIXED, *grid.CHOOSING}
SESSIONS = [cell for cell in grid.CELLS if cell.family == "sessions"]
FACTORS = {"turns": (1, 3, 8, 16), "zipf": (0, 0.6, 0.9, 1.2), "capacity": (2, 20, 80, 200),
           "ssd": (0, 0.5, 3, 14)}


class CellsTest(unittest.TestCase):
    def test_any_two_levels_meet(self):
        for one, other in itertools.combinations(FACTORS, 2):
            for levels in itertools.product(FACTORS[one], FACTORS[other]):
                met = [cell for cell in SESSIONS
                       if (getattr(cell, one), getattr(cell, other)) == levels]
                self.assertEqual(len(met), 4)
                self.assertEqual(sum(cell.quick for cell in met), 1)

    def test_forms_and_loads_are_spread(self):
        """They are balanced, and neither goes along with a level of another factor."""
        lossless = [cell for cell in SESSIONS if cell.lossless]
        self.assertEqual(len(lossless), 32)
        self.assertEqual(sum(cell.load > 0.5 for cell in SESSIONS), 32)
        self.assertEqual(sum(cell.load > 0.5 for cell in lossless), 16)
        for factor, levels in FACTORS.items():
            for level in levels:
                self.assertEqual(sum(getattr(cell, factor) == level for cell in lossless), 8)

    def test_every_family_has_both_halves(self):
        self.assertGreaterEqual(len(grid.CELLS), 80)
        families = {cell.family for cell in grid.CELLS}
        self.assertEqual(families, {"sessions", "long", "drift", "scan", "crowd", "lossy", "small",
                                    "cold", *grid.TRACES})
        for family in families:
            cells = [cell for cell in grid.CELLS if cell.family == family]
            self.assertGreaterEqual(len(cells), 4)
            self.assertEqual(2 * sum(grid.half_of(cell) == "hidden" for cell in cells), len(cells))
            self.assertTrue(any(cell.quick for cell in cells))
            self.assertTrue(all(0 < cell.load < 1 for cell in cells))
        self.assertEqual(len({cell.name for cell in grid.CELLS}), len(grid.CELLS))

    def test_the_draw_stays(self):
        """The sum over the names of the hidden cells, as it was when the seed was written down. A
        cell that changes its half, or its name, changes it."""
        total = 0
        for name in grid.HIDDEN:
            value = 0xCBF29CE484222325
            for byte in name.encode():
                value = (value ^ byte) * 0x100000001B3 & grid.MASK
            total = total + value & grid.MASK
        self.assertEqual(total, 0x853D8E883B618D4B)

    def test_forms_are_the_shipped_ones(self):
        with open(os.path.join(HERE, "..", "..", "profiles", "ladder-codec-trial.json"),
                  encoding="utf-8") as file:
            shipped = json.load(file)["tables"]["ladder"]
        self.assertEqual(grid.LADDER[1], shipped[1])

    def test_scans_have_their_share(self):
        for cell in grid.CELLS:
            if cell.family == "scan":
                found = grid.workload_settings(cell, True)
                scans = found["workload.scan_rate"] * 300 / 600
                self.assertAlmostEqual(scans / (scans + found["workload.rate"]), cell.strength)


    def test_lossy_cells_have_all_kinds_of_tiers(self):
        lossy = [cell for cell in grid.CELLS if cell.worth]
        self.assertEqual({cell.worth for cell in lossy}, {0.2, 1, 5})
        self.assertEqual({cell.ssd for cell in lossy}, {0.0, 3.0, 14.0})
        self.assertTrue(any(cell.dram > 0.5 for cell in lossy))
        self.assertEqual({cell.source for cell in lossy}, {None, "conversation", "toolagent"})


# ---- planted figures ----


def job(ours, bound_s, unstable=None):
    """A seed: TTFTs of ours and of a best rival, whose other form is no better."""
    ttft_s, mine = ours
    names = grid.sample_of({
        "ttft_s_mean": 0, "wait_s_mean": 0, "service_ttft_s_mean": 0, "used_token_ratio": 0,
        "hit_token_ratio": {"dram": 0, "ssd": 0}, "bytes_read": {"dram": 0, "ssd": 0},
        "bytes_written": {"dram": 0, "ssd": 0}, "puts": 0, "refused": 0, "puts_busy": 0,
        "evictions": 0, "moves_aborted": 0, "requests": 1})
    planted = {("slow", "raw"): 9.0, ("unstable", "raw"): unstable, ("rival", "raw"): 2.0 * ttft_s,
               ("rival", "lossless"): ttft_s, (grid.OURS, "raw"): mine}
    return ({"bound_s": bound_s, "kept_bound_s": bound_s, "told_s": bound_s, "requests": 1},
            {key: {**names, "cost_s": value, "ttft_s": value, "service_s": value or 0}
             for key, value in planted.items()})


def planted(ours, bound_s):
    """Ours beside a best rival of 1, 2 and 4 s."""
    return grid.judge([job(pair, bound_s, 0.1 if pair[0] != 2.0 else None)
                       for pair in zip((1.0, 2.0, 4.0), ours)])


class FiguresTest(unittest.TestCase):
    def test_interval_is_students(self):
        """1, 2, 3 have the standard error 1/sqrt(3), and t is 4.303 at two degrees of freedom."""
        mean, low, high = grid.interval_of([1.0, 2.0, 3.0])
        self.assertAlmostEqual(mean, 2)
        self.assertAlmostEqual(high - 2, 4.303 / math.sqrt(3))
        self.assertAlmostEqual(2 - low, 4.303 / math.sqrt(3))
        self.assertEqual(grid.interval_of([0.9, 0.9]), (0.9, 0.9, 0.9))
        self.assertEqual(grid.interval_of([1.0]), (1.0, None, None))

    def test_ratio_is_paired_with_the_best_rival(self):
        """The best rival has the least mean in its better form; one without a mean is none. The
        ratio is the mean of the seeds' ratios, which differs from the ratio of the means."""
        found = planted((1.2, 2.0, 4.0), 0.5)
        self.assertEqual(len(found["rows"]), 4)
        self.assertEqual((found["best"]["policy"], found["best"]["form"]), ("rival", "lossless"))
        self.assertEqual(found["best"]["ratio"], (1, 1, 1))
        mean, low, _ = found["ours"]["ratio"]
        self.assertAlmostEqual(mean, 3.2 / 3)
        self.assertAlmostEqual(mean - low, 4.303 * math.sqrt(0.04 / 3 / 3))
        self.assertAlmostEqual(found["bound"], 0.5)

    def test_totals_count_what_is_lost_and_has_room(self):
        cells = [planted((1.1, 2.2, 4.4), 1.0),
                 planted((1.0, 2.0, 4.0), 2.3),  # the rival's 7/3 s lie within 5 % of that bound
                 planted((0.8, 1.6, 3.2), 1.0), planted((1.02, 2.04, 4.08), 2.3)]
        totals = grid.sum_up(6, 1, list(zip(grid.CELLS, cells)))
        self.assertEqual((totals["cells"], totals["skipped"], totals["unfinished"]), (6, 1, 1))
        self.assertEqual(totals["intervals_above_1_02"], 1)  # one that ends at 1.02 lies not above
        self.assertEqual(totals["cells_with_room"], 2)
        self.assertAlmostEqual(totals["geometric_mean_with_room"], math.sqrt(1.1 * 0.8))
        self.assertEqual([row["cell"] for row in totals["worst"]],
                         [grid.CELLS[i].name for i in (0, 3, 1, 2)])

    def test_share_of_what_the_future_would_gain(self):
        """LRU at 2, ours at 1.5, told the future 1: half of the gain; no share where that is less
        than 5 %, and none without LRU."""
        rows = {name: {"mean": {"cost_s": value}}
                for name, value in (("lru", 2.0), (grid.OURS, 1.5))}
        self.assertAlmostEqual(grid.share_of({"rows": rows, "told": 1.0}), 0.5)
        self.assertIsNone(grid.share_of({"rows": rows, "told": 1.95}))
        self.assertIsNone(grid.share_of(planted((1.0, 2.0, 4.0), 1.0)))

    def test_losses_count_by_what_they_are_worth(self):
        found = {"ttft_s_mean": 3.0, "wait_s_mean": 1.0, "service_ttft_s_mean": 2.0,
                 "quality_mean": 0.99, "used_token_ratio": 0, "puts": 0, "refused": 0,
                 "puts_busy": 0, "evictions": 0, "moves_aborted": 0, "requests": 1,
                 **{name: {"dram": 0, "ssd": 0}
                    for name in ("hit_token_ratio", "bytes_read", "bytes_written")}}
        self.assertAlmostEqual(grid.sample_of(found, 50.0)["cost_s"], 2.5)
        self.assertAlmostEqual(grid.sample_of(found)["cost_s"], 3.0)

    def test_no_mean_of_ours_is_a_loss(self):
        found = planted((0.1, 0.1, None), 1.0)
        totals = grid.sum_up(1, 0, [(grid.CELLS[0], found)])
        self.assertIsNone(found["ours"]["ratio"][0])
        self.assertEqual((totals["intervals_above_1_02"], totals["cells_with_room"]), (1, 0))

    def test_reasons_name_the_cause(self):
        found = planted((2.0, 3.0, 5.0), 1.0)
        ours, best = found["ours"]["mean"], found["best"]["mean"]
        ours["loaded"], best["loaded"] = 0.4, 0.6
        self.assertIn("it loads fewer tokens: loaded 40.0 against 60.0 % of the tokens",
                      grid.explain(found))
        ours["loaded"], best["found_dram"] = 0.6, 0.5
        self.assertIn("it finds fewer tokens in DRAM", grid.explain(found))
        ours["wait_s"], ours["service_s"] = 5.0, 0.0
        self.assertIn("its requests wait longer", grid.explain(found))


# ---- runs ----


class GridTest(CommandCase):
    def start(self, *arguments, **streams):
        environment = {k: v for k, v in os.environ.items() if k != "KVT_DATA_DIR"}
        return subprocess.Popen([sys.executable, grid.__file__, "--kvterrace", COMMAND, *arguments],
                                text=True, cwd=self.folder, env=environment, **streams)

    def grid(self, *arguments, code=0):
        run = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = run.communicate(timeout=WAIT_SECONDS)
        self.assertEqual(run.returncode, code, errors)
        return output, errors

    def test_halves_are_disjoint(self):
        def names(*arguments):
            return {cell["cell"]: cell["half"]
                    for cell in json.loads(self.grid("--list", "--json", *arguments)[0])["cells"]}

        tuning, hidden = names("--half", "tuning"), names("--half", "hidden")
        self.assertFalse(tuning.keys() & hidden.keys())
        self.assertEqual({**tuning, **hidden}, names())
        self.assertEqual(set(hidden.values()), {"hidden"})

    def test_what_a_cell_is_replayed_with(self):
        """Capacity and its split, forms, servers for the load; no setting of the engine."""
        options = argparse.Namespace(kvterrace=COMMAND, quick=True, data=None)
        replays, documents = grid.Replays(options, self.folder), []
        cell = next(one for one in grid.CELLS if one.name == "turns8-zipf0.6-cap20-ssd3")

        def remember(*arguments):
            documents.append(grid.Replays.run(replays, *arguments))
            return documents[-1]

        with mock.patch.object(replays, "run", remember):
            facts, samples = replays.job(cell, 5)
        self.assertEqual({policy for policy, _ in samples}, POLICIES)
        self.assertEqual(len(samples), len(POLICIES) + len(grid.FIXED))
        self.assertGreater(facts["told_s"], 0)
        document = documents[1]
        footprint = document["workload"]["distinct_blocks"] * 512 * 131072
        tiers = document["configuration"]["tiers"]
        self.assertLess(abs(tiers["dram"]["capacity_bytes"] - 0.04 * footprint), 16)
        self.assertLess(abs(tiers["ssd"]["capacity_bytes"] - 0.16 * footprint), 16)
        self.assertEqual(tiers["ssd"]["write_bytes_per_s"], 3e9)
        self.assertEqual([row["name"] for row in document["configuration"]["variants"]],
                         ["raw", "lossless"])
        self.assertEqual(facts["servers"], document["configuration"]["servers"])
        plain = self.run_json("replay", "--workload", "poisson", "--policy", "lru", "--set",
                              "workload.requests=10")["configuration"]
        for name in ("alpha_s", "half_life_s", "hysteresis", "tick_s", "low_watermark",
                     "moves_per_tick", "warmup", "prefill"):
            self.assertEqual(document["configuration"][name], plain[name])
        # Without a cache the servers have the cell's load at most in the busiest part.
        nothing = [row for row in documents[-1]["results"] if row["policy"] == "none"][0]
        self.assertLessEqual(nothing["rho"], cell.load)
        self.assertGreater(nothing["rho"], cell.load / 4)

    def check_rows(self, document):
        by_cell = {}
        exact = {cell["cell"] for cell in document["cells"] if not cell["worth_percent"]}
        for row in document["rows"]:
            self.assertEqual(row["half"], "tuning")
            if row["cell"] in exact:
                self.assertGreaterEqual(row["cost_s"] or math.inf, row["bound"] * (1 - 1e-9))
            by_cell.setdefault(row["cell"], {})[row["policy"]] = row
        for cell in document["cells"]:
            if cell["skipped"]:
                self.assertNotIn(cell["cell"], by_cell)
                continue
            rows = by_cell[cell["cell"]]
            self.assertEqual(set(rows), POLICIES)
            rivals = [row["cost_s"] for name, row in rows.items()
                      if name != "utility" and row["cost_s"] is not None]
            best = rows[cell["best_rival"]]
            self.assertEqual(best["cost_s"], min(rivals))
            self.assertEqual(best["ratio_to_best"], 1)
            self.assertEqual(rows["utility"]["ratio_to_best"], cell["ratio"])
            self.assertLessEqual(cell["ratio_low"], cell["ratio"])
            self.assertEqual(cell["room"], best["cost_s"] > 1.05 * cell["bound"])
            self.assertGreaterEqual(cell["bound_without_moves"], cell["bound"] * (1 - 1e-9))

    def test_a_quick_run(self):
        output, errors = self.grid("--quick", "--half", "tuning", "--seeds", "2", "--json",
                                   "--data", "nothing")
        document = json.loads(output)
        self.assertIn("budget: ", errors)
        self.assertIn("are skipped: there is no ", errors)
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
        cell = next(one.name for one in grid.CELLS
                    if one.quick and grid.half_of(one) == "tuning")
        arguments = ["--quick", "--cell", cell, "--seeds", "3", "--json"]
        one = json.loads(self.grid(*arguments, "--threads", "1")[0])
        many = json.loads(self.grid(*arguments, "--threads", "3")[0])
        self.assertEqual(one["rows"], many["rows"])
        self.assertEqual([c["cell"] for c in one["cells"]], [cell])

    def test_an_interrupted_run_prints_what_it_has(self):
        with open(self.path("errors"), "w", encoding="utf-8") as errors:
            bench = self.start("--half", "tuning", "--seeds", "2", "--data", "nothing", "--json",
                               stdout=subprocess.PIPE, stderr=errors)
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
        self.assertIn("no cell is named", self.grid("--cell", "nothing", code=2)[1])
        self.assertIn("'tuning', 'hidden'", self.grid("--half", "both", code=2)[1])
        self.grid("--seeds", "101", code=2)
        hidden = min(grid.HIDDEN)
        self.grid("--cell", hidden, "--half", "tuning", code=2)


if __name__ == "__main__":
    unittest.main()
