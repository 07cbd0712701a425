#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvterrace size: its figures beside those of kvterrace replay, its advice beside the cheapest
cell, its configuration files, intervals, samples and interruptions.

    test_tools_size.py COMMAND
"""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, CommandCase  # noqa: E402

MONTH_HOURS = 24 * 30.4
PRICES = {"dram": 0.0088 * 730, "ssd": 0.000082 * 730, "gpu": 5.0}
LOAD = ["--workload", "poisson", "--set", "workload.requests=600", "--set",
        "workload.contexts=60", "--set", "workload.tokens_median=6000", "--set",
        "workload.tokens_max=16000"]
GRID = ["--dram", "4GiB,16GiB", "--ssd", "0,20GB,80GB"]
MACHINE = ["--machine", "dram 16GiB, ssd 40GB at 3GB/s writing 2GB/s x2"]
SPEEDS = ["--set", "tier.ssd.read_bandwidth=6GB/s", "--set", "tier.ssd.write_bandwidth=4GB/s"]


class SizeTest(CommandCase):
    def trace(self, name, requests=400, step_ms=3000):
        """Sessions of four turns, with arrivals on a grid as Mooncake has them."""
        rows = []
        for i in range(requests):
            session, turn = i // 4, i % 4
            blocks = [1] + [1000 + 100 * (session % 37) + b for b in range(4 * (turn + 1))]
            rows.append((step_ms * (session // 2 + 3 * turn), blocks))
        rows.sort(key=lambda row: row[0])
        return self.put(name, "".join(json.dumps({
            "timestamp": at, "input_length": 512 * len(blocks) - 7, "output_length": 9,
            "hash_ids": blocks}) + "\n" for at, blocks in rows))

    def replayed(self, load, dram, ssd, *more):
        """What kvterrace replay says of a cell, and its cost by the documented formula."""
        tiers = ["--set", f"tier.dram.capacity={dram}", "--set", f"tier.ssd.capacity={ssd}"]
        rows = {}
        document = self.run_json("replay", *load, *tiers, *(SPEEDS if ssd else []), "--policy",
                                 "none,lru,utility", *more)
        for run in document["results"]:
            busy = run["service_ttft_s_mean"] * run["requests"] / run["span_s"]
            gpu = busy * MONTH_HOURS * PRICES["gpu"]
            cost = gpu
            if run["policy"] != "none":
                cost += (dram * PRICES["dram"] + ssd * PRICES["ssd"]) * 1e-9
            rows[run["policy"]] = (run["service_ttft_s_mean"], run["ttft_s_percentiles"], cost)
        return rows

    def check_against_replay(self, load):
        """Every cell is what replay finds, and the advice is the cheapest of replay's costs."""
        document = self.run_json("size", *load, *MACHINE, *GRID, "--draws", "0")
        self.assertEqual(document["schema"], "kvterrace-size-1")
        self.assertFalse(document["interrupted"])
        cells = {(row["dram_bytes"], row["ssd_bytes"], row["policy"]): row
                 for row in document["cells"]}
        self.assertEqual(len(cells), 1 + 2 * 6)
        costs = {}
        for dram, ssd in {key[:2] for key in cells if key[2] != "none"}:
            for policy, (_, percentiles, cost) in self.replayed(load, dram, ssd).items():
                cell = cells[(0, 0, "none") if policy == "none" else (dram, ssd, policy)]
                self.assertAlmostEqual(cell["ttft_s_p99"], percentiles[99], 9)
                total = cell["cost_per_month"]["total"]
                self.assertLess(abs(total - cost), 0.01 * cost, (dram, ssd, policy))
                costs[policy, dram, ssd] = cost
        advised = [row for row in document["cells"] if row["advised"]]
        self.assertEqual(len(advised), 1)
        least = min(cost for (policy, _, _), cost in costs.items() if policy != "none")
        own = costs[advised[0]["policy"], advised[0]["dram_bytes"], advised[0]["ssd_bytes"]]
        self.assertLess(own, 1.0101 * least)
        return document, advised[0]

    def test_generated(self):
        document, advised = self.check_against_replay(LOAD)
        self.assertTrue(document["pays"])
        self.assertEqual(len(document["verdict"]), 3)
        self.assertIn("Set " if advised["ssd_bytes"] <= 80e9 else "Buy ", document["verdict"][0])
        self.assertIn(f"store.policy = {advised['policy']}", document["verdict"][0])
        self.assertNotIn("[", document["verdict"][1])
        self.assertIsNone(document["saved_over"]["none"]["ttft_s_mean"]["low"])

    def test_trace(self):
        load = ["--trace", self.trace("t.jsonl")]
        self.check_against_replay(load)

    def test_words(self):
        run = self.run_command("size", *LOAD, *MACHINE, *GRID, "--draws", "3")
        lines = run.stdout.splitlines()
        self.assertRegex(lines[0], r"^(Set|Buy) .* of 6 cells at \$\d+ a month ")
        self.assertRegex(lines[1], r"^It saves [\d.]+ \[-?[\d.]+, [\d.]+\] s of [\d.]+ s to the ")
        self.assertTrue(lines[2].startswith("Where it does not pay: "))
        for option in ("--model, --gpu", "--servers", "--set store.ladder", "--machine, --config",
                       "--limit", "--price", "--draws"):
            self.assertIn(f"\n{option} ", run.stdout)
        self.assertIn("ssd of any size reads at 6 GB/s and writes at 4 GB/s", run.stdout)
        self.assertEqual(run.stderr, "")

    def test_intervals(self):
        """An interval holds its value, and the same command gives the same one on any threads."""
        documents = [self.run_json("size", *LOAD, *MACHINE, *GRID, "--draws", "4", "--threads",
                                   threads) for threads in ("1", "3")]
        for key in ("cells", "verdict", "saved_over"):
            self.assertEqual(documents[0][key], documents[1][key])
        for over in ("none", "lru"):
            for saved in documents[0]["saved_over"][over].values():
                self.assertLess(saved["low"], saved["value"])
                self.assertLess(saved["value"], saved["high"])

    def test_prices(self):
        """Where memory costs too much nothing is bought; where it costs nothing, the most saves."""
        dear = self.run_json("size", *LOAD, *MACHINE, *GRID, "--draws", "0", "--price",
                             "dram=1e6,ssd=1e6")
        self.assertFalse(dear["pays"])
        self.assertTrue(dear["verdict"][0].startswith("Buy nothing"))
        self.assertIn("6 of the 6 cells cost more", dear["verdict"][2])
        free = self.run_json("size", *LOAD, *MACHINE, *GRID, "--draws", "0", "--price",
                             "dram=0,ssd=0,gpu_hour=2")
        best = next(row for row in free["cells"] if row["advised"])
        self.assertEqual(best["cost_per_month"]["gpu"], best["cost_per_month"]["total"])
        for row in free["cells"]:
            self.assertLessEqual(best["cost_per_month"]["total"] * 0.99,
                                 row["cost_per_month"]["total"])

    def test_grid(self):
        """Around the machine: a quarter to twice its DRAM, and of its SSD, with none at all."""
        document = self.run_json("size", *LOAD[:4], "--draws", "0", "--set",
                                 "workload.tokens_max=9000", "--machine", "dram 4GiB, ssd 8GB")
        drams = sorted({row["dram_bytes"] for row in document["cells"]})
        ssds = sorted({row["ssd_bytes"] for row in document["cells"]})
        self.assertEqual(len(document["cells"]), 1 + 2 * (len(drams) - 1) * len(ssds))
        self.assertLessEqual({0, *(g << 30 for g in (1, 2, 4, 8))}, set(drams))
        self.assertLessEqual({0, 2e9, 4e9, 8e9, 16e9}, set(ssds))
        for sizes in (drams[1:], ssds[1:]):
            self.assertEqual([b / a for a, b in zip(sizes, sizes[1:])], [2] * (len(sizes) - 1))
        # It grows until the cheapest cell lies inside, or there is nothing left to hold.
        advised = next(row for row in document["cells"] if row["advised"])
        self.assertTrue(advised["dram_bytes"] < drams[-1] or
                        drams[-1] >= document["workload"]["footprint_bytes"])
        none = self.run_json("size", *LOAD[:4], "--draws", "0", "--machine", "dram 4GiB, ssd 0")
        self.assertEqual({row["ssd_bytes"] for row in none["cells"]}, {0})

    def test_between(self):
        """Between no SSD and a quarter of the machine's there is what a small working set costs."""
        load = ["--trace", self.trace("t.jsonl"), "--draws", "0", "--machine",
                "dram 4GiB, ssd 16TB at 6GB/s"]
        document = self.run_json("size", *load)
        advised = next(row for row in document["cells"] if row["advised"])
        self.assertGreater(advised["ssd_bytes"], 0)
        self.assertLess(advised["ssd_bytes"], 4e12)
        wide = self.run_json("size", *load, "--dram", "8GiB,16GiB,32GiB,64GiB", "--ssd",
                             "0,125GB,250GB,500GB,1TB,4TB")
        least = min(row["cost_per_month"]["total"] for row in wide["cells"])
        self.assertLess(advised["cost_per_month"]["total"], 1.05 * least)

    def test_sample(self):
        """A part of the sessions in as small a part of the room finds as much again."""
        load = [*LOAD, "--set", "workload.contexts=400", "--set", "workload.requests=4000", "--set",
                "workload.zipf=0.5", "--draws", "0"]
        whole = self.run_json("size", *load, *MACHINE, *GRID)
        part = self.run_json("size", *load, *MACHINE, *GRID, "--sample", "40%")
        facts = part["workload"]
        self.assertEqual(facts["requests"], whole["workload"]["requests"])
        self.assertLess(facts["sessions_sampled"], facts["sessions"])
        for key in ("room", "pace"):
            self.assertTrue(0.3 < facts[key] < 0.5, facts)
            self.assertEqual(whole["workload"][key], 1)
        self.assertIn("so that room, working set and load", json.dumps(part["assumptions"]))
        for one, other in zip(whole["cells"], part["cells"]):
            self.assertEqual((one["cell"], one["policy"]), (other["cell"], other["policy"]))
            self.assertLess(abs(one["hit_token_ratio"] - other["hit_token_ratio"]), 0.1, one)

    def check_configuration(self, document):
        """check-config takes kv.ini, and its replay is of the advised cell and policy. A store that
        a file describes has codecs whose speeds are measured anew, beside whatever else runs."""
        self.run_command("check-config", "kv.ini")
        advised = next(row for row in document["cells"] if row["advised"])
        again = self.run_json("replay", *LOAD[:2], "--config", "kv.ini")
        self.assertEqual(again["results"][0]["policy"], advised["policy"])
        for tier in ("dram", "ssd"):
            room = again["configuration"]["tiers"].get(tier, {"capacity_bytes": 0})
            self.assertLess(abs(room["capacity_bytes"] - advised[f"{tier}_bytes"]), 1 << 20)
        mean = again["results"][0]["ttft_s_mean"]
        self.assertLess(abs(mean - advised["ttft_s_mean"]), 0.5 * advised["ttft_s_mean"])
        with open(self.path("kv.ini"), encoding="utf-8") as file:
            return file.read()

    def test_configuration_of_a_machine(self):
        document = self.run_json("size", *LOAD, *MACHINE, "--draws", "0", "-o", "kv.ini",
                                 "--servers", "3")
        text = self.check_configuration(document)
        self.assertIn("\n[replay]\nservers = 3\n", text)
        self.assertIn("; A store needs a [device.NAME]", text)
        huge = self.run_json("size", *LOAD, "--dram", "900TiB", "--ssd", "80GB", "--draws", "0",
                             "--price", "dram=0", "-o", "kv.ini")
        self.assertIn("Buy 921600 GiB of DRAM", huge["verdict"][0])
        self.assertIn("read_bandwidth", self.check_configuration(huge))

    def test_configuration_of_a_file(self):
        """A device stays where the advice needs no more of it, and goes where it needs more."""
        self.put("own.ini", "[store]\ncatalog = c.db\nhysteresis = 1.5\n[tier.dram]\n"
                            "capacity = 512MiB\n[device.a]\ntier = ssd\nbackend = file\npath = a\n"
                            "capacity = 1GiB\nprewrite = no\n")
        base = ["size", *LOAD, "--config", "own.ini", "--draws", "0", "-o", "kv.ini", "--dram",
                "512MiB"]
        for ssd, wanted in (("0.5GiB", "[device.a]\nbackend = file\n"), ("64GB", "\n[tier.ssd]"),
                            ("0", "\n[store]\n")):
            with self.subTest(ssd=ssd):
                document = self.run_json(*base, "--ssd", ssd)
                text = self.check_configuration(document)
                self.assertIn(wanted, text)
                self.assertEqual("[device.a]" in text, ssd == "0.5GiB")
                self.assertIn("hysteresis = 1.5" if "utility" in text else "lru", text)
        self.assertFalse(os.path.exists(self.path("a")))

    def test_page(self):
        run = self.run_command("size", *LOAD, *MACHINE, *GRID, "--draws", "0", "--report", "p.html")
        self.assertIn("report: p.html", run.stderr)
        with open(self.path("p.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn('"schema":"kvterrace-size-1"', page)
        self.fails("report and output are both x", "size", *LOAD, "--report", "x", "-o", "x")

    def test_interrupted(self):
        """On a terminal a bar says which cell is under way; what was finished is printed."""
        master, slave = pty.openpty()
        load = [*LOAD, "--set", "workload.requests=60000"]
        with open(self.path("out"), "w+", encoding="utf-8") as out:
            run = subprocess.Popen([COMMAND, "size", *load, *MACHINE, "--threads", "2", "--json"],
                                   cwd=self.folder, stdout=out, stderr=slave,
                                   stdin=subprocess.DEVNULL)
            os.close(slave)
            text, end = b"", time.monotonic() + 300
            try:
                while b", 8 GiB" not in text:
                    self.assertLess(time.monotonic(), end, text[-200:])
                    if select.select([master], [], [], 1)[0]:
                        text += os.read(master, 65536)
                run.send_signal(signal.SIGINT)
                self.assertEqual(run.wait(300), 130)
                if select.select([master], [], [], 1)[0]:
                    text += os.read(master, 65536)
            finally:
                if run.poll() is None:
                    run.kill()
                    run.wait()
                os.close(master)
            out.seek(0)
            document = json.load(out)
        self.assertTrue(document["interrupted"])
        self.assertTrue(2 <= len(document["cells"]) < 41, len(document["cells"]))
        self.assertIn(b"simulations were finished", text)


if __name__ == "__main__":
    unittest.main()
