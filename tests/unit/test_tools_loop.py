#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole loop on the reference model: contexts through a real store, answers from what comes
back. Counts add up, exact forms give the exact answers, forms lie where the tiers say, a second run
makes the same requests, a cache saves the work of a first run, and bad input is refused before
anything is stored.

    test_tools_loop.py COMMAND

Nothing here depends on how long anything takes.
"""

import glob
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, CommandCase  # noqa: E402

SOURCE = os.environ["KVT_SOURCE_DIR"]
MODEL = os.path.join(SOURCE, "reference_model", "model")
TEXT = os.path.join(SOURCE, "reference_model", "texts", "recall-512.jsonl")
CONTENDERS = ["lru", "lru+kivi-4", "lru+kivi-2", "lru+mix", "adaptcache", "utility"]

SETTINGS = """
[tier.hbm]
capacity = 768KiB
emulated = yes
[tier.dram]
capacity = 1MiB
[tier.ssd]
capacity = 4MiB
[device.s]
tier = ssd
backend = file
path = s.bin
capacity = 32MiB
"""
LOOP = ["replay", "--mode", "live", "--workload", "poisson", "--config", "loop.ini", "--database",
        "p.db", "--model", MODEL, "--text", "recall=" + TEXT]
SHORT = ["--contexts", "10", "--loss", "rouge_l", "--set", "workload.requests=40", "--set",
         "workload.rate=20"]
LOSSY = ["--set", "store.loss_limit=0.5"]

RUN_MEMBERS = {
    "contender", "stores", "seed", "requests", "hits", "loads_declined", "same_answers",
    "ttft_s_mean", "ttft_s_p50", "ttft_s_p90", "ttft_s_p99", "wait_s_mean", "load_s_mean",
    "prefill_s_mean", "question_s_mean", "put_s_mean", "rho", "rouge_l", "rouge_l_p10", "f1",
    "top1", "recall", "loss", "loss_predicted", "load_predictions",
    "load_error_p50", "load_error_p90", "exact_checked",
    "exact_wrong", "tokens_wrong", "positions_checked", "positions_wrong", "puts", "puts_refused",
    "puts_busy", "puts_failed", "load_failures", "promotions", "demotions", "evictions",
    "bytes_read", "bytes_written", "capacity_bytes", "used_bytes", "emulated",
    "answers_fingerprint", "span_s", "paused_s", "leapt_s", "wall_s", "forms"}
FORM_MEMBERS = {
    "form", "hits", "stored", "staged", "same_answers", "contexts", "stored_share", "rouge_l", "f1",
    "top1", "recall", "loss", "loss_low", "loss_high", "loss_predicted", "loss_upper",
    "loss_within", "load_s_p50", "load_predicted_s_p50", "decode_s_p50"}


class LoopTest(CommandCase):
    def setUp(self):
        super().setUp()
        self.put("loop.ini", SETTINGS)

    def calibrate(self):
        self.run_command("profile", "calibrate", "--loss", "rouge_l", "--contexts", "3", "--model",
                         MODEL, "--text", "recall=" + TEXT, "--database", "p.db")
        self.run_command("profile", "quality", "--loss", "rouge_l", "--contexts", "3", "--model",
                         MODEL, "--text", "recall=" + TEXT, "--database", "p.db", "--variants",
                         "kivi:k4v4;kivi:k2v2;drop:stream,50")

    def expect_sound(self, run):
        """Counts of one run add up."""
        self.assertEqual(set(run), RUN_MEMBERS)
        self.assertEqual(run["requests"], 40)
        self.assertEqual(run["exact_wrong"], 0)
        self.assertEqual(run["tokens_wrong"], 0)
        self.assertEqual(run["positions_wrong"], 0)
        self.assertEqual(run["puts_failed"], 0)
        self.assertEqual(run["load_failures"], 0)
        hits = run["hits"]
        self.assertEqual(hits["total"], hits["hbm"] + hits["dram"] + hits["ssd"])
        for form in run["forms"]:
            self.assertEqual(set(form), FORM_MEMBERS)
            for counts in (form["hits"], form["stored"]):
                self.assertEqual(counts["total"],
                                 counts["hbm"] + counts["dram"] + counts["ssd"])
            if form["hits"]["total"] > 0:
                self.assertAlmostEqual(form["loss"], 1 - form["rouge_l"], 6)
        for tier in ("total", "hbm", "dram", "ssd"):
            self.assertEqual(hits[tier], sum(form["hits"][tier] for form in run["forms"]))
        exact = sum(form["hits"]["total"] for form in run["forms"]
                    if form["form"] in ("raw", "lossless"))
        self.assertEqual(run["exact_checked"], exact)
        for form in run["forms"]:
            if form["form"] in ("raw", "lossless") and form["hits"]["total"] > 0:
                self.assertEqual((form["rouge_l"], form["top1"], form["loss"]), (1, 1, 0))
                self.assertEqual(form["same_answers"], form["hits"]["total"])

    def test_contenders_on_the_same_requests(self):
        self.calibrate()
        document = self.run_json(*LOOP, *SHORT, *LOSSY, "--policy", ",".join(CONTENDERS),
                                 "--report", "loop.html")
        self.assertEqual(document["schema"], "kvterrace-loop-1")
        self.assertEqual([run["contender"] for run in document["results"]], CONTENDERS)
        self.assertEqual(document["workload"]["requests"], 40)
        self.assertEqual(sum(one["contexts"] for one in document["classes"]),
                         document["workload"]["contexts"])
        by_name = {run["contender"]: run for run in document["results"]}
        for run in document["results"]:
            self.expect_sound(run)
        lru = by_name["lru"]
        self.assertEqual([form["form"] for form in lru["forms"]], ["raw"])
        self.assertEqual((lru["rouge_l"], lru["f1"], lru["same_answers"]), (1, 1, 40))
        self.assertGreater(lru["hits"]["total"], 0)
        for name, form in (("lru+kivi-4", "kivi:k4v4,g64"), ("lru+kivi-2", "kivi:k2v2,g64")):
            # A get that comes before the put was written finds it raw in the staging.
            forms = {one["form"] for one in by_name[name]["forms"]}
            self.assertIn(form, forms)
            self.assertLessEqual(forms, {form, "raw"})
        # Two bits cost this model answers; four do not.
        self.assertLess(by_name["lru+kivi-2"]["rouge_l"], 1)
        self.assertLess(by_name["lru+kivi-2"]["top1"], by_name["lru+kivi-4"]["top1"])
        lossy = [form for form in by_name["utility"]["forms"] if form["form"] != "raw"]
        self.assertGreater(len(lossy), 0)
        self.assertTrue(all(form["loss_predicted"] is not None for form in lossy))
        self.assertFalse(os.path.exists(self.path("s.bin")))
        self.assertTrue(os.path.exists(self.path("loop.html")))
        self.assertEqual(glob.glob("/tmp/kvterrace-loop-%d-*" % os.getpid()), [])

    def test_every_rung_may_stand_alone(self):
        """A ladder has the ten variants that matter most; the calibration's others are no less
        measured."""
        document = self.run_json("profile", "calibrate", "--contexts", "3", "--model", MODEL,
                                 "--text", "recall=" + TEXT, "--database", "p.db")
        rungs = [rung["variant"] for rung in document["rungs"] if rung["accepted"]]
        self.assertGreater(len(rungs), 8)
        names = ["lru+" + rung.replace(",", "/") for rung in rungs]
        ran = self.run_json(*LOOP, "--contexts", "1", "--set", "workload.requests=3", "--policy",
                            ",".join(names))
        self.assertEqual([run["contender"] for run in ran["results"]], names)

    def test_forms_that_drop_tokens(self):
        """The kept rows of a drop without a codec are exact; it costs this model answers."""
        self.calibrate()
        document = self.run_json(*LOOP, *SHORT, "--policy", "lru+drop:stream/50")
        run = document["results"][0]
        self.expect_sound(run)
        forms = {form["form"]: form for form in run["forms"]}
        dropped = forms["drop:stream,50"]
        self.assertGreater(dropped["hits"]["total"], 0)
        self.assertEqual(run["positions_checked"], dropped["hits"]["total"])
        self.assertLess(dropped["rouge_l"], 1)
        # By the words of the text, which is the default, a loss is another one.
        by_text = self.run_json(*LOOP, "--contexts", "10", "--set", "workload.requests=40", "--set",
                                "workload.rate=20", "--policy", "lru+drop:stream/50")
        for form in by_text["results"][0]["forms"]:
            if form["hits"]["total"] > 0:
                least = min(form[name] for name in ("top1", "recall") if form[name] is not None)
                self.assertGreaterEqual(form["loss"], 1 - least - 1e-9)
        self.assertLess(dropped["stored_share"], 0.6)

    def test_equal_seeds_make_equal_runs(self):
        first = self.run_json(*LOOP[:7], *LOOP[9:], *SHORT, "--policy", "lru,none", "--cache", "c")
        again = self.run_json(*LOOP[:7], *LOOP[9:], *SHORT, "--policy", "lru,none", "--cache", "c")
        other = self.run_json(*LOOP[:7], *LOOP[9:], *SHORT, "--policy", "lru,none", "--seed", "2",
                              "--cache", "d")
        self.assertEqual(first["workload"], again["workload"])
        self.assertNotEqual(first["workload"]["fingerprint"], other["workload"]["fingerprint"])
        for one, two in zip(first["results"], again["results"]):
            self.assertEqual(one["answers_fingerprint"], two["answers_fingerprint"])
        # The cache had everything: nothing was generated again.
        self.assertGreater(first["model"]["answers_made"], 0)
        self.assertEqual(again["model"]["answers_made"], 0)
        self.assertEqual(again["model"]["contexts_known"], first["workload"]["contexts"])
        # A torn line is passed over, and what it said is made again.
        with open(self.path("c/answers.jsonl"), "rb+") as file:
            file.truncate(os.path.getsize(self.path("c/answers.jsonl")) - 5)
        torn = self.run_json(*LOOP[:7], *LOOP[9:], *SHORT, "--policy", "lru", "--cache", "c")
        self.assertEqual(torn["model"]["answers_made"], 1)
        with open(self.path("c/answers.jsonl"), encoding="utf-8") as file:
            json.loads(file.read().splitlines()[-1])
        # Every miss computed anew gives the same answers.
        each = self.run_json(*LOOP[:7], *LOOP[9:], *SHORT, "--policy", "none", "--prefill", "each",
                             "--cache", "c")
        self.assertEqual(each["results"][0]["answers_fingerprint"],
                         first["results"][1]["answers_fingerprint"])
        self.assertEqual(each["results"][0]["hits"]["total"], 0)
        text = self.run_command(*LOOP[:7], *LOOP[9:], *SHORT, "--policy", "none", "--cache",
                                "c").stdout
        self.assertIn("predicted_loads", text)
        self.assertNotIn("nan", text)

    def test_traces_and_classes(self):
        trace = "".join(json.dumps({"timestamp": 100 * i, "input_length": 700, "output_length": 4,
                                    "hash_ids": [i % 3, 50 + i]}) + "\n" for i in range(12))
        self.put("trace.jsonl", trace)
        document = self.run_json(
            "replay", "--mode", "live", "--config", "loop.ini", "--trace", "trace.jsonl", "--model",
            MODEL, "--text", "one=" + TEXT, "--text", "two=" + TEXT.replace("512", "768"),
            "--contexts", "4", "--policy", "lru", "--set", "tier.dram.capacity=16MiB")
        self.assertEqual(document["workload"]["requests"], 12)
        self.assertEqual([one["contexts"] for one in document["classes"]], [2, 1])
        self.assertEqual(document["results"][0]["puts"] - document["results"][0]["puts_refused"],
                         3)

    def test_an_interruption_prints_what_was_finished(self):
        run = subprocess.Popen([COMMAND, *LOOP[:7], *LOOP[9:], "--contexts", "10", "--set",
                                "workload.requests=100000", "--policy", "none,lru", "--json"],
                               cwd=self.folder, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        while not os.path.exists(self.path("s.bin")):
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        output, errors = run.communicate(timeout=600)
        self.assertEqual(run.returncode, 130)
        self.assertIn("interrupted; 0 of 2 runs were finished", errors)
        self.assertEqual(json.loads(output)["schema"], "kvterrace-error-1")
        self.assertFalse(os.path.exists(self.path("s.bin")))
        self.assertEqual(glob.glob(f"/tmp/kvterrace-loop-{run.pid}-*"), [])

    def test_bad_input_is_refused_before_anything_is_stored(self):
        plain = LOOP[:7] + LOOP[9:]
        self.fails("--text is missing", *plain[:-2])
        self.fails("option", *LOOP[:5], "--text", "a=" + TEXT)
        self.fails("--mode live", *plain, "--mode", "sim")
        self.fails("named twice", *plain, "--text", "recall=" + TEXT)
        self.fails("no-such", "replay", "--mode", "live", "--workload", "poisson", "--config",
                   "loop.ini", "--model", "no-such", "--text", "a=" + TEXT)
        self.put("short.jsonl", json.dumps({"text": "bako is 47 11."}) + "\n")
        self.fails("short.jsonl", *plain[:-2], "--text", "a=short.jsonl")
        self.fails("no variant", *plain, "--policy", "lru+none-such")
        self.fails("unknown policy", *plain, "--policy", "lr")
        self.fails("whole ladder", *plain, "--policy", "utility+kivi-4")
        self.fails("needs a profile", *plain, "--policy", "utility")
        self.run_command("profile", "codecs", "--quick", "--seconds", "1ms", "--database", "p.db")
        self.fails("no calibration", *LOOP, "--policy", "utility")
        self.calibrate()
        self.fails("calibrated for class 'recall', not 'other'", *LOOP[:-1], "other=" + TEXT,
                   "--policy", "utility")
        self.fails("no measurement of this variant", *LOOP, "--policy", "lru+planes:k8v4")
        database = sqlite3.connect(self.path("p.db"))
        database.execute("UPDATE model SET digest = 'of-other-weights'")
        database.commit()
        database.close()
        self.fails("other weights", *LOOP, "--policy", "utility")
        self.assertFalse(os.path.exists(self.path("s.bin")))


if __name__ == "__main__":
    unittest.main()
