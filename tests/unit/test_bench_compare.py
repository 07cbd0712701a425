#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lab/compare.py: pairing, choice and verdicts on planted figures, a quick comparison as JSON, one
that is interrupted, wrong arguments.

    test_bench_compare.py COMMAND
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "support"), os.path.join(HERE, "..", "..", "lab")]
from command_case import COMMAND, WORKLOAD as USUAL, CommandCase, rows_document  # noqa: E402
import compare  # noqa: E402

WAIT_SECONDS = 300
WORKLOAD = [*USUAL, "--set", "workload.requests=100"]
LADDER = rows_document(
    "[ladder]\nvariant,bits,loss,loss_upper,encode_bytes_per_s,decode_bytes_per_s,source\n"
    "raw,16,0,0,4.8e9,1e13,exact\nlossless,10.6,0,0,1.3e9,3e9,exact\n"
    "planes:k8v8 g64,8.5,0.001,0.0013,3.1e9,9e9,x\nplanes:k2v2 g64,2.5,0.066,0.1,3.3e9,15e9,x\n")


def close_to(one, other):
    return abs(one - other) < 1e-9


class FiguresTest(unittest.TestCase):
    def test_pairs_cancel_what_seeds_share(self):
        """Seeds differ a hundredfold, contenders by a tenth on each: only pairs show that."""
        theirs = [0.1 * 1.3 ** i for i in range(20)]
        difference, ratio = compare.bootstrap(theirs, [0.9 * value for value in theirs])
        self.assertTrue(close_to(ratio[0], 0.9) and close_to(ratio[1], 0.9))
        self.assertTrue(0 < difference[0] < difference[1])
        difference, ratio = compare.bootstrap(
            theirs, [value * (0.95 if i % 2 else 1.05) for i, value in enumerate(theirs)])
        self.assertTrue(ratio[0] < 1 < ratio[1])
        self.assertTrue(difference[0] < 0 < difference[1])

    def test_verdicts_need_quality_and_an_interval(self):
        def samples(ttft_s, *quality):
            return [compare.Sample(ttft_s, one, 0.5, 0.6) for one in quality]

        slow, fast = samples(9, 1, 1), samples(5, 1, 1)
        row = compare.judge(slow, fast)
        self.assertEqual(row["verdict"], "win")
        self.assertTrue(close_to(row["saved_s"], 4) and close_to(row["ratio"], 5 / 9))
        self.assertEqual(compare.judge(fast, slow)["verdict"], "lose")
        self.assertEqual(compare.judge(slow, samples(5, 1, 0.99))["verdict"], "unmatched")
        self.assertEqual(compare.judge(slow, slow)["verdict"], "tie")
        row = compare.judge(slow, [fast[0], fast[1]._replace(ttft_s=None)])
        self.assertEqual((row["verdict"], row["seeds_skipped"]), ("unstable", 1))
        row = compare.judge([slow[0], None], fast)
        self.assertEqual((row["verdict"], row["seeds"], row["seeds_skipped"]), ("unstable", 1, 0))
        self.assertIsNone(compare.judge([None], [None])["ratio"])

    def test_rungs_and_mixes(self):
        ladder = [{"loss": loss, "stored_share": share} for loss, share in
                  ((0, 1), (0, 0.7), (0.001, 0.5), (0.01, 0.3), (0.06, 0.2))]
        self.assertEqual(compare.rungs_of(ladder), [0, 1, 3, 4])
        mixes = compare.single_mixes(ladder, ["dram", "ssd"], False)
        self.assertEqual(len(mixes), 15)
        self.assertTrue(all(above[0] <= below[0] for above, below in mixes))
        self.assertEqual(len(compare.single_mixes(ladder, ["dram", "ssd"], True)), 5)

    def test_the_policies_are_those_that_there_are(self):
        listed = json.loads(subprocess.run([COMMAND, "settings", "--json"], check=True,
                                           stdout=subprocess.PIPE).stdout)["settings"]
        effect = next(one["effect"] for one in listed if one["name"] == "store.variant")
        self.assertEqual(set(effect.partition("=")[2].split("|")),
                         set(compare.BASELINES) - {"none", "adaptcache"})


class Planted(compare.Runs):
    """Seeds 1 and 2 evaluate, 3 and 4 tune. Nothing runs."""

    def __init__(self, quick=True):
        super().__init__(argparse.Namespace(seeds=2, first_seed=1, tuning_seeds=2, quick=quick))
        self.count_planted = 0

    def plant(self, role, ttft_s, *quality, sigma=0.7):
        """The evaluation seeds contradict: a choice that looks at them is another one."""
        self.count_planted += 1
        setup = compare.Setup("x", role, alpha=self.count_planted, spread=(sigma, 0.6))
        other = compare.Sample(None if ttft_s is None else 10 - ttft_s, 1, 0.5, 0.5)
        self.samples[setup] = {1: other, 2: other}
        for seed, one in zip((3, 4), quality):
            self.samples[setup][seed] = compare.Sample(ttft_s, one, 0.5, 0.5)
        return setup

    def try_all(self, setups, seeds, what):
        raise AssertionError(f"{what} is to run")


class ChoiceTest(unittest.TestCase):
    def test_the_fastest_that_is_as_good_everywhere(self):
        runs = Planted()
        floor = runs.plant("baseline", 5, 0.9, 0.95)
        runs.plant("ours", 1, 0.99, 0.94)
        wanted = runs.plant("ours", 2, 0.9, 0.95)
        runs.plant("ours", 3, 0.99, 0.99)
        runs.plant("ours", 0.1, 0.99, 0.99, sigma=0.2)
        runs.plant("mix", 0.1, 0.99, 0.99)
        runs.plant("ours", None, 0.99, 0.99)
        self.assertEqual(runs.pick(floor), wanted)
        self.assertIsNone(runs.pick(runs.plant("baseline", 5, 0.999, 0.999)))
        self.assertIsNone(runs.pick(runs.plant("baseline", None, 0.9, 0.9)))

    def test_exact_variants_match_exact_ones(self):
        runs = Planted()
        floor = runs.plant("baseline", 5, 1, 1)
        runs.plant("ours", 1, 1, 1)
        exact = runs.plant("ours", 2, 1, 1)
        runs.samples[exact._replace(limit=0)] = runs.samples.pop(exact)
        self.assertEqual(runs.pick(floor), exact._replace(limit=0))

    def test_the_fastest_rival_of_each_level(self):
        runs = Planted()
        rivals = [runs.plant("baseline", 5, 1, 1), runs.plant("baseline", 4, 1, 1),
                  runs.plant("baseline", 3, 0.98, 1), runs.plant("baseline", 1, 0.9, 0.9),
                  runs.plant("baseline", None, 1, 1)]
        matches = [compare.Match("baselines", one, one, None) for one in rivals]
        mix = runs.plant("mix", 0.5, 1, 1)
        matches.append(compare.Match("mixes", mix, mix, 1))
        found = [runs.fastest(matches, level) for level in compare.levels_of(True)]
        self.assertEqual(found, [rivals[1], rivals[1], rivals[2]])

    def test_pairs_promise_by_the_line_between(self):
        runs = Planted()
        fine, coarse = runs.plant("mix", 4, 0.999, 0.999), runs.plant("mix", 2, 0.991, 0.991)
        runs.plant("mix", 5, 0.99, 0.99)  # neither good enough nor faster
        (promised, one, other, share), = runs.pairs(list(runs.samples), 0.997)
        self.assertEqual((one, other), (fine, coarse))
        self.assertTrue(close_to(share, 0.25) and close_to(promised, 3.5))
        mixes = [one._replace(mix=((i, i, 0), (2, 2, 0))) for i, one in enumerate((fine, coarse))]
        self.assertEqual(runs.blend(*mixes, 1.5).mix, ((0, 1, 1), (2, 2, 0)))


class CompareTest(CommandCase):
    def start(self, *arguments, **streams):
        ladder = self.put("ladder.json", LADDER)
        return subprocess.Popen(
            [sys.executable, compare.__file__, "--kvterrace", COMMAND, *WORKLOAD, "--quick",
             "--set", f"replay.ladder={ladder}", "--set", "tier.dram.capacity=2GiB", "--set",
             "tier.ssd.capacity=6GiB", *arguments], text=True, cwd=self.folder, **streams)

    def compare(self, *arguments, code=0):
        run = self.start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, errors = run.communicate(timeout=WAIT_SECONDS)
        self.assertEqual(run.returncode, code, errors)
        return output, errors

    def replay(self, seed, *arguments):
        return self.run_json(
            "replay", *WORKLOAD, "--set", "replay.ladder=ladder.json", "--set",
            "tier.dram.capacity=2GiB", "--set", "tier.ssd.capacity=6GiB", "--set",
            "replay.sensitivity=0.7", "--set", "replay.repeatability=0.6", "--seed", str(seed),
            "--set", "tier.ssd.read_bandwidth=1GB/s", "--set", "tier.ssd.write_bandwidth=1GB/s",
            *arguments)["results"][0]

    def mean(self, *arguments):
        return sum(self.replay(seed, *arguments)["ttft_s_mean"] for seed in (30, 31, 32)) / 3

    def test_a_quick_comparison(self):
        arguments = ["--policy", "none,lru,adaptcache", "--speeds", "1", "--set",
                     "replay.seed=30", "--json"]
        output, errors = self.compare(*arguments, "--threads", "2")
        self.assertRegex(errors, "budget: at most [0-9]+ runs, about [0-9.]+ minutes on 2")
        document = json.loads(output)
        self.assertEqual(document["schema"], "kvterrace-compare-1")
        self.assertFalse(document["interrupted"])
        rows = document["baselines"]
        self.assertEqual(len(rows), 1 + 4 + 5)
        for row in rows:
            self.assertLessEqual(row["ratio_95"][0], row["ratio"])
            self.assertLessEqual(row["ratio"], row["ratio_95"][1])
            self.assertAlmostEqual(row["our_ttft_s_mean"] / row["ttft_s_mean"], row["ratio"])
            self.assertEqual(row["seeds"] + row["seeds_skipped"], 3)
        fastest = [level for row in rows for level in row["fastest_at_quality"]]
        self.assertEqual(sorted(fastest), [0.99, 0.997, 1.0])
        self.assertEqual(len(document["mixes"]), 3)
        for row in document["mixes"]:  # chosen on other seeds: near its level, not at it
            level = row["quality_level"]
            self.assertGreater(row["quality_mean"], level - 0.5 * (1 - level) - 1e-9)
        self.assertIn("adaptcache exact forms", {row["against"] for row in document["footprint"]})
        self.check_singles(document)

    def check_singles(self, document):
        """Figures are those of single runs on seeds 30 to 32; the load is that of runs without a
        cache."""
        rows = {row["against"]: row for row in document["baselines"]}
        exact = ["--set", "store.loss_limit=0", "--policy"]
        ours = self.mean(*exact, "utility")
        for name, policy in (("lru raw", "lru"), ("adaptcache exact forms", "adaptcache")):
            row = rows[name]
            self.assertEqual(row["ours"], "utility exact forms")
            self.assertAlmostEqual(row["ttft_s_mean"], self.mean(*exact, policy), 9)
            self.assertAlmostEqual(row["our_ttft_s_mean"], ours, 9)
            self.assertEqual((row["quality_mean"], row["our_quality_mean"]), (1, 1))
        row = rows["lru planes:k2v2,g64"]
        self.assertLess(row["quality_mean"], 0.999)
        self.assertAlmostEqual(row["ttft_s_mean"], self.mean(
            "--set", "store.loss_limit=1", "--variant", "planes:k2v2,g64", "--policy", "lru"), 9)
        self.assertNotEqual(row["ours"], "utility exact forms")
        self.assertEqual(rows["none"]["verdict"], "win")
        rhos = [self.replay(seed, "--policy", "none")["rho"] for seed in (30, 31, 32)]
        low, high = document["configuration"]["rho_without_cache"]
        self.assertAlmostEqual(low, min(rhos), 9)
        self.assertAlmostEqual(high, max(rhos), 9)

    def test_threads_change_nothing(self):
        """With a setting that one side obeys; and what is printed as text."""
        arguments = ["--policy", "none", "--speeds", "1,3", "--set", "store.hysteresis=1.5"]
        document = json.loads(self.compare(*arguments, "--threads", "1", "--json")[0])
        self.assertEqual([row["ssd_bytes_per_s"] for row in document["baselines"]], [1e9, 3e9])
        self.assertEqual([row["ssd_bytes_per_s"] for row in document["footprint"]], [3e9])
        output, _ = self.compare(*arguments, "--threads", "3")
        for row in [row for kind in compare.KINDS for row in document[kind]]:
            self.assertRegex(output, f"{row['against']} .* {row['our_ttft_s_mean']:.4g} .* "
                             f"{row['ratio_95'][1]:.4g} *{row['verdict']}")
        self.assertRegex(output, "[0-9]+ win, [0-9]+ tie, [0-9]+ lose")

    def test_an_interrupted_run_prints_what_it_has(self):
        with open(self.path("errors"), "w", encoding="utf-8") as errors:
            run = self.start("--policy", "lru", "--seeds", "900", "--json", "--threads", "1",
                             stdout=subprocess.PIPE, stderr=errors)
        try:
            end = time.monotonic() + WAIT_SECONDS
            while os.path.getsize(self.path("errors")) == 0:
                self.assertLess(time.monotonic(), end, "no budget was told")
                time.sleep(0.01)
            run.send_signal(signal.SIGINT)
            output, _ = run.communicate(timeout=WAIT_SECONDS)
        finally:
            run.kill()
            run.wait()
        self.assertEqual(run.returncode, 130)
        if output:
            self.assertIs(json.loads(output)["interrupted"], True)
        with open(self.path("errors"), encoding="utf-8") as errors:
            self.assertIn("interrupted; ", errors.read())

    def test_wrong_arguments(self):
        exact = self.put("exact.json", LADDER.partition(', {"variant": "planes:k8')[0] +
                         "]}}")
        for message, *arguments in (
                ("no effect on a generated", "--sessions", "4"),
                ("unknown policy 'mru'", "--policy", "mru"),
                ("oracle knows what comes", "--policy", "lru,oracle"),
                ("a baseline beside utility", "--policy", "utility"),
                ("store.alpha has no effect here", "--set", "store.alpha=3"),
                ("up to 8 numbers", "--speeds", "1,x"), ("up to 8 numbers", "--speeds", "0"),
                ("'0' is not from 1 to 64", "--threads", "0"), ("2 to 1000", "--seeds", "1"),
                ("NAME=VALUE", "--set", "x"),
                ("replay.sensitivity: 0 to 4", "--set", "replay.sensitivity=9"),
                ("needs a ladder with lossy forms", "--set", f"replay.ladder={exact}")):
            with self.subTest(arguments):
                self.assertIn(message, self.compare(*arguments, code=2)[1])


if __name__ == "__main__":
    unittest.main()
