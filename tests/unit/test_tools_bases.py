#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bases save and cost: the parts of lab/bench_codecs.py that make a ladder of a calibration,
and its order of steps against a command that only notes them.

    test_tools_bases.py COMMAND

Nothing here depends on how long anything takes.
"""

import json
import os
import stat
import subprocess
import sys
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(SOURCE, "tests", "support"))
sys.path.insert(0, os.path.join(SOURCE, "lab"))
import bench_codecs  # noqa: E402
from command_case import CommandCase  # noqa: E402
from kvtbasis import make_basis  # noqa: E402


class ProfileCodecs(CommandCase):
    def test_speeds_are_of_the_bases_that_there_are(self):
        """Without a basis the command says that no speed of transform was measured; with one its
        variants are timed."""
        measure = ["profile", "codecs", "--quick", "--seconds", "1ms", "--database", "p.db"]
        done = self.run_command(*measure)
        self.assertIn("transform: not measured", done.stderr)
        self.assertNotIn("transform:", done.stdout)
        data, digest = make_basis()
        self.put("b.kvtbasis", data)
        self.run_command("profile", "import", "b.kvtbasis", "--database", "p.db")
        done = self.run_command(*measure)
        self.assertNotIn("transform: not measured", done.stderr)
        start = digest.hex()[:5].upper()
        self.assertIn("transform:" + start, done.stdout)
        # Its tables on another machine lack the basis, which is exported by itself.
        done = self.run_command("profile", "export", "--database", "p.db")
        self.assertIn(f"the bases {start} are not in the tables", done.stderr)
        self.put("p.json", done.stdout)
        done = self.run_command("profile", "import", "p.json", "--database", "q.db")
        self.assertIn("imported", done.stderr + done.stdout)
        done = self.run_command("profile", "export", "--database", "q.db")
        self.assertNotIn("the bases", done.stderr)
        self.run_command("profile", "export", "--basis", start, "-o", "c.kvtbasis", "--database",
                         "p.db")
        with open(self.path("c.kvtbasis"), "rb") as file:
            self.assertEqual(file.read(), data)


RUNGS = [("planes:k8v8,g64", 8.5, 0.001, True), ("entropy:k0.25v0.5", 3.6, 0.02, True),
         ("entropy:k0.5v1", 2.7, 0.04, True), ("planes:k4v3,g64", 4.0, 0.03, False),
         ("transform:0F451,s0.5", 2.7, 0.01, True), ("transform:0F451,s1.5", 1.6, 0.03, True),
         ("transform:44945,s1", 1.4, 0.3, True), ("drop:stream,50+entropy:k0.5v1", 1.3, 0.01, True)]
CALIBRATED = {
    "choices": [{"question": "entropy: basis", "chosen": "head", "evidence": "0.3 times"}],
    "ladders": [{"rungs": [{"variant": name, "bits_per_element": bits, "loss": loss,
                            "accepted": accepted} for name, bits, loss, accepted in RUNGS]}],
    "codecs": [{"name": name, "threads": threads, "stored_share": share,
                "encode_bytes_per_s": threads * speed, "decode_bytes_per_s": 2 * threads * speed}
               for name, share, speed in (
                   ("raw", 1.0, 9e9), ("planes:k8v8,g64", 0.53, 4e9), ("entropy:k0.5v1", 0.17, 1e9),
                   ("transform:0F451,s1", 0.13, 2e8), ("transform:0F451,s3", 0.07, 3e8),
                   ("transform:44945,s1", 0.09, 1e7))
               for threads in (1, 2)]}


class Ladder(CommandCase):
    """A ladder file of a calibration."""

    def ladder(self, limit, with_bases, threads=0):
        path = self.path("ladder.json")
        bench_codecs.ladder(path, CALIBRATED, limit, with_bases, threads)
        with open(path, encoding="utf-8") as file:
            return json.load(file)["tables"]["ladder"]

    def test_rungs_within_the_limit(self):
        rows = self.ladder(0.05, False)
        self.assertEqual([row["variant"] for row in rows],
                         ["raw", "planes:k8v8,g64", "entropy:k0.25v0.5", "entropy:k0.5v1"])
        rows = self.ladder(0.02, True)
        self.assertEqual([row["variant"] for row in rows],
                         ["raw", "planes:k8v8,g64", "entropy:k0.25v0.5", "transform:0F451,s0.5"])
        # Of the same basis, at the step of nearest size, with most threads; of another one none.
        self.assertEqual(rows[-1]["decode_bytes_per_s"], 2 * 2 * 2e8)
        self.assertEqual(rows[2]["encode_bytes_per_s"], 2 * 1e9)
        rows = self.ladder(0.02, True, 1)
        self.assertEqual(rows[-1]["decode_bytes_per_s"], 2 * 2e8)
        self.assertEqual(len(self.ladder(0.0005, True)), 1)

    def test_what_lies_closest_goes(self):
        forms = [(str(bits), float(bits), 0.0) for bits in (16, 8, 7.5, 4, 2, 1.9, 1)]
        # The neighbours of 7.5 lie a factor of two apart, which is the least.
        self.assertEqual([name for name, *_ in bench_codecs.thin(forms, 6)],
                         ["16", "8", "4", "2", "1.9", "1"])
        self.assertEqual(bench_codecs.thin(forms, 2), [forms[0], forms[-1]])
        self.assertEqual(bench_codecs.thin(forms[:2], 5), forms[:2])
        for most in range(2, 8):
            kept = bench_codecs.thin(forms, most)
            self.assertEqual(len(kept), most)
            self.assertEqual((kept[0], kept[-1]), (forms[0], forms[-1]))


# Answers each command with a document of the real one's form, and notes it.
FAKE = '''#!{python}
import json, os, sys
words = ["kvlab"][os.path.basename(sys.argv[0]) != "kvlab":] + sys.argv[1:]
with open({notes!r}, "a") as file:
    file.write(json.dumps(words) + "\\n")
calls = sum(1 for _ in open({notes!r}))
two = words[:2]
if {stop} and calls == {stop}:
    sys.exit("kvterrace: stopped; interrupted")
if two == ["profile", "calibrate"]:
    print(json.dumps({calibrated}))
elif two == ["profile", "show"]:
    print(json.dumps({{"codecs": {codecs} if calls > {shown} else [],
                      "bases": [{{"span": "head", "hash": "0f451" + 59 * "0"}},
                                {{"span": "layer", "hash": "77777" + 59 * "0"}}]}}))
elif words[0] == "replay":
    print(json.dumps({{"results": [{{"ttft_s_p50": 1.0 + seed, "ttft_s_mean": 2.0,
                                    "quality_mean": 0.99, "hit_token_ratio":
                                    {{"total": 0.5, "dram": 0.2, "ssd": 0.3}}}}
                                   for seed in range(3)]}}))
elif two == ["kvlab", "transform"]:
    print(json.dumps({{"segments": []}}))
'''


class Steps(CommandCase):
    """The order of `make bench-codecs`, against a command that answers at once."""

    def fake(self, stop=0, shown=2):
        os.makedirs(self.path("build"), exist_ok=True)
        calibrated = {key: CALIBRATED[key] for key in ("choices", "ladders")}
        text = FAKE.format(python=sys.executable, notes=self.path("notes"), stop=stop,
                           calibrated=calibrated, codecs=CALIBRATED["codecs"], shown=shown)
        for program in ("kvterrace", "kvlab"):
            os.chmod(self.put("build/" + program, text), stat.S_IRWXU)
        if os.path.exists(self.path("notes")):
            os.remove(self.path("notes"))

    def bench(self, *more, code=0):
        script = os.path.join(SOURCE, "lab", "bench_codecs.py")
        done = subprocess.run([sys.executable, script, self.path("build"), *more], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                              cwd=SOURCE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        with open(self.path("notes"), encoding="utf-8") as file:
            return done, [json.loads(line) for line in file]

    def test_a_whole_run(self):
        self.fake()
        done, calls = self.bench("--json")
        document = json.loads(done.stdout)
        self.assertEqual(document["schema"], "kvterrace-bench-codecs-1")
        names = [" ".join(call[:2 if call[0] != "replay" else 1]) for call in calls]
        self.assertEqual(names[:5], ["profile calibrate", "profile show", "profile import",
                                     "profile codecs", "profile show"])
        self.assertEqual(names[-1], "kvlab transform")
        self.assertEqual(names.count("replay"),
                         2 * (len(bench_codecs.LIMITS) + 2))  # each setting, with and without
        rows = document["models"]["reference"]["replay"]
        self.assertEqual({(row["setting"], row["rungs"]) for row in rows},
                         {(setting, rungs) for setting in bench_codecs.SETTINGS
                          for rungs in ("with", "without")})
        self.assertAlmostEqual(rows[0]["hits_per_gb"], 0.5 / bench_codecs.CAPACITY_GB["core"])
        self.assertEqual(rows[0]["ttft_s_p50"], 2.0)  # the mean of the seeds

    def test_a_run_that_goes_on(self):
        """What was calibrated and timed is not timed again."""
        self.fake(stop=1)
        done, _ = self.bench(code=1)
        self.assertIn("the same command goes on", done.stderr)
        self.fake(shown=0)
        done, calls = self.bench()
        self.assertNotIn(["profile", "codecs"], [call[:2] for call in calls])
        self.assertIn("reference: head: 0.3 times", done.stdout)
        self.assertIn("core, with the rungs", done.stdout)

    def test_quick_is_small(self):
        self.fake()
        _, calls = self.bench("--quick", "--work", self.path("work"))
        first = calls[0]
        self.assertEqual(first[first.index("--contexts") + 1], "2")
        self.assertEqual(first[first.index("--teach") + 1], "4")
        replays = [call for call in calls if call[0] == "replay"]
        self.assertEqual(len(replays), 2 * (2 + 2))
        self.assertIn("workload.requests=200", replays[0])
        self.assertIn("--quick", calls[-1])
        self.assertTrue(os.path.exists(self.path("work")))
        self.assertFalse(os.path.exists(self.path("build/bench-codecs")))

    def test_a_step_that_fails_is_named(self):
        self.fake()
        os.remove(self.path("build/kvterrace"))
        with open(self.path("build/kvterrace"), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\necho > {self.path('notes')}; echo wrong >&2; exit 4\n")
        os.chmod(self.path("build/kvterrace"), 0o755)
        with open(self.path("notes"), "w", encoding="utf-8"):
            pass
        script = os.path.join(SOURCE, "lab", "bench_codecs.py")
        done = subprocess.run([sys.executable, script, self.path("build")], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("profile calibrate", done.stderr)
        self.assertIn("wrong", done.stderr)


if __name__ == "__main__":
    unittest.main()
