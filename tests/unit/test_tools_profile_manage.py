#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvterrace profile import, export, diff and gc as a user meets them, and replays of
imported curves.

    test_tools_profile_manage.py COMMAND

Nothing here depends on how long anything takes.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, WORKLOAD, CommandCase  # noqa: E402

REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "reference_model")


class ManageTest(CommandCase):
    def test_interrupted(self):
        """Ctrl-C in the middle of measuring: points so far stay, and the profile goes on."""
        process = subprocess.Popen([COMMAND, "profile", "devices", "--seconds", "100ms",
                                    "--database", "p.db"], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        points = 0
        while points == 0 and process.poll() is None:  # the time limit ends what never comes
            time.sleep(0.02)
            # Until it is made it cannot be opened, or has no tables.
            with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(
                    sqlite3.connect(f"file:{self.path('p.db')}?mode=ro", uri=True)) as database:
                points = database.execute("SELECT count(*) FROM device_point WHERE kind = 0 AND "
                                          "depth = 1").fetchone()[0]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 130, out + err)
        self.assertGreater(points, 0)
        shown = self.run_json("profile", "show", "--database", "p.db")
        self.assertTrue(shown["devices"])
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("kvt")], [])
        self.run_command("profile", "codecs", "--quick", "--seconds", "1ms", "--database", "p.db")
        runs = self.run_json("profile", "export", "--table", "run", "--database", "p.db")
        self.assertEqual([row["complete"] for row in runs["tables"]["run"]], [0, 1])

    def test_import_export(self):
        self.run_command("profile", "codecs", "--quick", "--seconds", "1ms", "--database", "a.db")
        self.run_command("profile", "devices", "--quick", "--seconds", "1ms", "--database", "a.db")
        table = ("[model]\nmodel,layers\nm,32\n[quality]\n"
                 "model,class,variant,metric,bits_per_element,loss_mean,kl,source\n"
                 'm,qa,"planes:k4v4,g64",f1,4.5,0.1234567890123456,-1e-7,"a ""paper"", p. 3"\n'
                 "m,qa,planes:k2v2 g64,f1,2.5,0.3,,\n")
        result = self.run_command("profile", "import", self.put_rows("q.json", table), "--source",
                                  "own\nmeasurement", "--database", "a.db")
        self.assertIn("3 rows imported", result.stderr)
        # What is exported can be imported, and then it is the same.
        first = self.run_command("profile", "export", "--database", "a.db").stdout
        self.assertIn('"a \\"paper\\", p. 3"', first)
        self.run_command("profile", "import", self.put("a.json", first), "--database", "b.db")
        second = self.run_command("profile", "export", "--database", "b.db").stdout
        self.assertEqual(first, second.replace("b.db", "a.db"))
        result = self.run_command("profile", "diff", "a.db", "b.db")
        self.assertIn("0 of", result.stdout)
        document = self.run_json("profile", "export", "--database", "b.db", "--table", "quality")
        rows = document["tables"]["quality"]
        self.assertEqual([row["loss_mean"] for row in rows], [0.1234567890123456, 0.3])
        self.assertEqual(rows[1]["source"], "own\nmeasurement")
        self.assertIsNone(rows[1]["kl"])
        runs = self.run_json("profile", "export", "--database", "b.db", "--table", "run")
        self.assertEqual({row["kind"] for row in runs["tables"]["run"]}, {"import"})
        # The ladder of a model is what replay reads.
        ladder = self.run_command("profile", "export", "--ladder", "m:qa", "--database", "b.db")
        self.put("ladder.json", ladder.stdout)
        document = self.run_json("replay", *WORKLOAD, "--policy", "utility", "--set",
                                 "replay.ladder=ladder.json")
        self.assertIn("ladder.json", document["note"])
        # Refusals: nothing comes in, and the file is named with the line.
        before = self.run_command("profile", "export", "--database", "b.db").stdout
        self.fails("bad.json: quality[0].kl: not a number", "profile", "import",
                   self.put_rows("bad.json", table.replace("-1e-7", "low")), "--source", "s",
                   "--database", "b.db")
        self.fails("without a source", "profile", "import", "q.json", "--database", "b.db")
        self.fails("no.json", "profile", "import", "no.json", "--database", "b.db")
        self.fails("which FILE.json?", "profile", "import", "--database", "b.db")
        self.fails("no such table", "profile", "export", "--table", "x", "--database", "b.db")
        self.fails("no such profile", "profile", "export", "--database", "none.db")
        self.fails("MODEL:CLASS", "profile", "export", "--ladder", "m", "--database", "b.db")
        self.fails("class code", "profile", "export", "--ladder", "m:code", "--database", "b.db")
        self.assertEqual(self.run_command("profile", "export", "--database", "b.db").stdout, before)

    def test_seconds_of_a_layer(self):
        """A table of a file, and one that is measured; a store takes one by its name."""
        header = "new_tokens,prefix_tokens,layer_seconds\n"
        self.put("gpu.csv", header + "512,8192,1.5e-3\n\n512,0,0.001\n")
        self.run_command("profile", "slack", "--table", "gpu.csv", "--database", "a.db")
        model = os.path.join(REFERENCE, "model")
        document = self.run_json("profile", "slack", "--model", model, "--name", "tiny", "--new",
                                 "4,32", "--prefix", "0,16", "--quick", "--database", "a.db")
        places = [(row["new_tokens"], row["prefix_tokens"]) for row in document["rows"]]
        self.assertEqual(places, [(4, 0), (4, 16), (32, 0), (32, 16)])
        self.assertGreater(min(row["layer_seconds"] for row in document["rows"]), 0)
        shown = self.run_json("profile", "show", "--database", "a.db")["passes"]
        self.assertEqual([(row["name"], row["prefix_tokens"], row["layer_seconds"])
                          for row in shown[:2]], [("gpu", 0, 0.001), ("gpu", 8192, 1.5e-3)])
        self.assertEqual(shown[0]["source"], "gpu.csv")
        # Exported and imported it is the same; another figure differs.
        self.put("a.json", self.run_command("profile", "export", "--database", "a.db").stdout)
        self.run_command("profile", "import", "a.json", "--database", "b.db")
        self.assertIn("0 of 6", self.run_command("profile", "diff", "a.db", "b.db").stdout)
        self.put("gpu.csv", header + "512,8192,1.5e-3\n512,0,0.002\n")
        self.run_command("profile", "slack", "--table", "gpu.csv", "--database", "b.db")
        result = self.run_command("profile", "diff", "a.db", "b.db", code=1)
        self.assertIn("pass gpu 512 new behind 0", result.stdout)
        self.assertIn("1 of 6", result.stdout)
        # The older table of the name goes.
        self.assertIn("superseded",
                      self.run_command("profile", "gc", "--database", "b.db").stdout)
        config = "[tier.dram]\ncapacity = 1MiB\n[store]\nprofile = b.db\n[prefill]\nslack = {}\n"
        self.run_command("check-config", self.put("good.ini", config.format("gpu")))
        self.fails('prefill.slack: b.db has no table of seconds per layer "none"', "check-config",
                   self.put("bad.ini", config.format("none")))
        for part, text in (("header", "1,2,3\n"), ("has no row", header), (":1: ", ""),
                           ("layer_seconds", header + "1,0,nan\n"),
                           ("layer_seconds", header + "1,0,-1\n"),
                           ("layer_seconds", header + "1,0,inf\n"),
                           ("layer_seconds", header + "1,0,1,1\n"),
                           ("new_tokens", header + "0,0,1\n"),
                           ("new_tokens", header + "-1,0,1\n"),
                           ("prefix_tokens", header + "1,4294967296,1\n"),
                           (":3: a row above", header + "1,0,1\n1,0,2\n")):
            with self.subTest(text=text):
                self.fails(part, "profile", "slack", "--table", self.put("bad.csv", text),
                           "--database", "b.db")
        self.fails("either --table or --model", "profile", "slack", "--database", "b.db")
        self.fails("--new and --prefix", "profile", "slack", "--model", model, "--new", "0",
                   "--database", "b.db")
        self.put_rows("zero.json", "[pass]\nname,new_tokens,prefix_tokens,layer_seconds\nm,0,0,1\n")
        self.fails("pass[0]", "profile", "import", "zero.json", "--source", "x", "--database",
                   "b.db")
        self.assertEqual(len(self.run_json("profile", "show", "--database", "b.db")["passes"]), 6)

    def test_names_that_are_not_utf8(self):
        """Bytes of another encoding cost their own text, not the document."""
        table = ("[model]\nmodel,layers\ncafe,32\n[quality]\n"
                 "model,class,variant,metric,bits_per_element,loss_mean\n"
                 'cafe,qa,"planes:k4v4,g64",f1,4.5,LOSS\n')
        for name, loss in (("a", "0.1"), ("b", "0.2")):
            rows = self.put_rows("t.json", table.replace("LOSS", loss))
            self.run_command("profile", "import", rows,
                             "--source", "s", "--database", name + ".db")
            # An import refuses such bytes; a profile may have them from elsewhere.
            with contextlib.closing(sqlite3.connect(os.path.join(self.folder, name + ".db"))) as db:
                db.execute("UPDATE quality_set SET class = CAST(x'ff' AS TEXT)")
                db.commit()
        document = self.run_json("profile", "export", "--database", "a.db", "--table", "quality")
        self.assertEqual(document["tables"]["quality"][0]["class"], "?")
        document = self.run_json("profile", "diff", "a.db", "b.db", code=1)
        self.assertIn(("?", 0.1, 0.2), {(row["curve"], row["before"], row["after"])
                                        for row in self.rows_of(document)})
        self.run_json("profile", "show", "--database", "a.db")

    def test_full_output(self):
        """A disk that is full is not a lack of memory."""
        self.run_command("profile", "import", self.put_rows("m.json", "[model]\nmodel,layers\n" +
                         "".join("m%d,32\n" % i for i in range(2000))), "--source", "s",
                         "--database", "a.db")
        for arguments in (["export", "--json"], ["show", "--json"]):
            with open("/dev/full", "w") as full:
                result = subprocess.run([COMMAND, "profile", *arguments, "--database", "a.db"],
                                        cwd=self.folder, text=True, stdout=full,
                                        stderr=subprocess.PIPE, timeout=1000)
            self.assertEqual(result.returncode, 1)
            self.assertIn("standard output: ", result.stderr)
            self.assertNotIn("memory", result.stderr)

    def rows_of(self, document):
        return next(value for value in document.values() if isinstance(value, list))

    def test_replay_imported(self):
        """Device curves and a prefill model of the profile by name."""
        source = os.environ.get("KVT_SOURCE_DIR")
        if not source:
            self.skipTest("KVT_SOURCE_DIR is not set")
        for name in ("devices.json", "prefill.json"):
            self.run_command("profile", "import", os.path.join(source, "profiles", name),
                             "--database", "p.db")
        self.assertIn("imported", self.run_command("profile", "show", "--database", "p.db").stdout)
        shown = self.run_json("profile", "show", "--database", "p.db")
        self.assertTrue(all(row["imported"] for row in shown["devices"]))
        arguments = ["replay", *WORKLOAD, "--policy", "lru", "--database", "p.db", "--set",
                     "tier.ssd.capacity=8GiB"]
        document = self.run_json(*arguments, "--set", "tier.ssd.devices=ssd-3, ssd-7", "--set",
                                 "prefill.profile=llama-3.1-8b:h100")
        self.assertEqual(document["configuration"]["tiers"]["ssd"]["read_bytes_per_s"], 10e9)
        self.assertIn("ssd is made of ssd-3, ssd-7, from the profile", document["note"])
        self.assertEqual(document["configuration"]["prefill"], "llama-3.1-8b:h100")
        preset = self.run_json(*arguments, "--set", "tier.ssd.devices=ssd-3,ssd-7", "--set",
                               "prefill.gpu=h100")
        self.assertAlmostEqual(document["results"][0]["ttft_s_mean"],
                               preset["results"][0]["ttft_s_mean"], places=9)
        # An imported curve that is not named does not take part.
        document = self.run_json(*arguments)
        self.assertIn("ssd at the default 1 GB/s, not measured", document["note"])
        self.fails('no device "ssd-9"', *arguments, "--set", "tier.ssd.devices=ssd-9")
        self.fails("tutti-dram is of tier dram", *arguments, "--set", "tier.ssd.devices=tutti-dram")
        self.fails('no prefill model "x"', *arguments, "--set", "prefill.profile=x")
        self.fails("store.profile is not set", "replay", *WORKLOAD,
                   "--set", "tier.ssd.capacity=8GiB", "--set", "tier.ssd.devices=ssd-1")

    def test_diff_gc(self):
        row = "[prefill]\nname,linear_seconds_per_token,square_seconds_per_token2\np,{},1e-9\n"
        for name, value in (("a.db", "1e-4"), ("b.db", "1.2e-4")):
            rows = self.put_rows("p.json", row.format(value))
            self.run_command("profile", "import", rows, "--source", "s", "--database", name)
        result = self.run_command("profile", "diff", "a.db", "b.db", code=1)
        self.assertIn("+20.0 %", result.stdout)
        self.assertNotIn("square", result.stdout)
        self.run_command("profile", "diff", "a.db", "b.db", "--threshold", "25%")
        document = self.run_json("profile", "diff", "a.db", "b.db", "--threshold", "0.1", code=1)
        self.assertEqual((document["figures"], document["different"]), (3, 1))
        self.assertAlmostEqual(document["changes"][1]["change"], 0.2)
        self.fails("--threshold", "profile", "diff", "a.db", "b.db", "--threshold", "much")
        self.fails("no such profile", "profile", "diff", "a.db", "none.db")
        # The second import of the same thing replaces the first one.
        self.run_command("profile", "import", "p.json", "--source", "s", "--database", "a.db")
        result = self.run_command("profile", "gc", "--dry-run", "--database", "a.db")
        self.assertIn("1 runs and 0 models without curves would go", result.stdout)
        document = self.run_json("profile", "gc", "--database", "a.db")
        self.assertEqual([run["reason"] for run in document["runs"]], ["superseded"])
        self.assertEqual(self.run_json("profile", "gc", "--database", "a.db")["runs"], [])
        self.run_command("profile", "diff", "a.db", "b.db")
        self.fails("no such profile", "profile", "gc", "--database", "none.db")
        self.fails("--older", "profile", "gc", "--older", "soon", "--database", "a.db")


if __name__ == "__main__":
    unittest.main()
