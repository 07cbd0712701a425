#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measuring into a profile and looking at it, as a user does: several things in one command, going
on after an interruption, KV of one's own, and the page and document of what was measured,
whichever tables have rows.

    test_tools_profile.py COMMAND

Nothing here depends on how long anything takes.
"""

import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, WORKLOAD, CommandCase  # noqa: E402
QUICK = ["--quick", "--seconds", "1ms", "--database", "p.db"]
DEVICES = [word for name in ("one", "two") for word in (
    "--set", f"device.{name}.tier=dram", "--set", f"device.{name}.backend=memory",
    "--set", f"device.{name}.capacity=16MiB")]
NASTY = "<script>alert(1)</script> `touch pwned` $(touch pwned) '\"; system 'touch pwned' #&"
TABLES = ["run", "device", "device_point", "device_fit", "device_mixed", "device_start",
          "codec_curve", "model",
          "quality_set", "quality_curve", "calibration", "calibration_rung", "calibration_choice",
          "learned", "prefill", "pass"]


# The model that comes with the sources, and texts for it.
REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "reference_model")


class ProfileTest(CommandCase):
    def check_verdict(self, document, *calibrate):
        """Each limit's sentence counts the variants that it leaves; the text ends with them."""
        for sentence, limit in zip(document["verdict"], (0.01, 0.02, 0.05)):
            left = [rung for rung in document["rungs"]
                    if rung["accepted"] and rung["loss_upper"] <= limit]
            self.assertIn(f"limit of {limit:g} leaves {len(left) or 'no'} lossy variant", sentence)
            if left:
                self.assertIn(min(left, key=lambda rung: rung["bits_per_element"])["variant"],
                              sentence)
        text = self.run_command(*calibrate).stdout
        self.assertIn("\nVerdict\n" + "\n".join(document["verdict"]) + "\n", text)

    def test_calibrate_takes_what_was_measured(self):
        text = os.path.join(REFERENCE, "texts", "recall-512.jsonl")
        model = ["--model", os.path.join(REFERENCE, "model"), "--contexts", "2", "--text", text,
                 "--database", "c.db"]
        self.fails("nothing was measured", "calibrate", *model, "--finish")
        self.run_command("quality", *model, "--variants",
                         "planes:k6v4,g64;planes:k4v4,g64;planes:k2v2,g64")
        # One file is two classes here: what was measured holds for both.
        calibrate = ["calibrate", *model, "--text", "other=" + text, "--finish"]
        document = self.run_json(*calibrate)
        self.assertEqual(document["resumed_rows"], 12)
        self.assertEqual([ladder["class"] for ladder in document["ladders"]],
                         ["text", "other", "pooled"])
        self.assertEqual({rung["variant"] for rung in document["rungs"]},
                         {"planes:k6v4,g64", "planes:k4v4,g64", "planes:k2v2,g64"})
        self.assertGreater(document["ladders"][2]["widening"], 1)
        self.assertEqual(document["rungs"], document["ladders"][2]["rungs"])
        for trials in ("left_out", "documents_left_out"):
            self.assertEqual([trial["limit"] for trial in document[trials]], [0.01, 0.02, 0.05])
        self.check_verdict(document, *calibrate)
        answers = self.run_json(*calibrate, "--use", "answers", "--variants", "planes:k4v4,g64")
        self.assertEqual(len(answers["rungs"]), 1)
        self.fails("unknown variant 'x'", *calibrate, "--variants", "x")
        self.fails("names of classes", *calibrate, "--text", "pooled=" + text)

    def test_goes_on_from_imported_rows(self):
        """Rows that were exported are taken by both measurements; none of another version are."""
        text = os.path.join(REFERENCE, "texts", "recall-512.jsonl")
        shape = ["--model", os.path.join(REFERENCE, "model"), "--contexts", "3", "--text",
                 "one=" + text, "--answer-tokens", "0"]
        first = ["--variants", "planes:k6v4,g64;planes:k2v2,g64"]
        document = self.run_json("quality", *shape, *first, "--database", "a.db")
        rows = self.run_command("export", "--database", "a.db").stdout
        self.put("rows.json", rows)
        self.run_command("import", "rows.json", "--database", "b.db")
        again = self.run_json("quality", *shape, *first, "--finish", "--database", "b.db")
        self.assertEqual(again["resumed_rows"], 6)
        for one in (again, document):  # rows do not keep the size with padding
            for row in one["sets"][0]["variants"]:
                del row["physical_bits_per_element"]
        self.assertEqual(again["sets"], document["sets"])
        # What is copied is this profile's own, and what is missing is measured.
        with sqlite3.connect(self.path("b.db")) as database:
            counts = database.execute("SELECT r.kind, count(*) FROM quality_entry e JOIN "
                                      "quality_set s ON s.id = e.set_id JOIN run r ON r.id = "
                                      "s.run_id GROUP BY 1 ORDER BY 1").fetchall()
        self.assertEqual(counts, [("import", 9), ("quality", 9)])
        more = self.run_json("quality", *shape, "--variants", "planes:k6v4,g64;planes:k4v4,g64",
                             "--database", "b.db")
        self.assertEqual(more["resumed_rows"], 3)
        self.assertEqual(more["sets"][0]["variants"][0]["kl"],
                         document["sets"][0]["variants"][0]["kl"])
        self.run_command("import", "rows.json", "--database", "c.db")
        ladder = self.run_json("calibrate", *shape[:-2], "--finish", "--database", "c.db")
        self.assertEqual(ladder["resumed_rows"], 6)
        # Other texts have other settings; other versions may code otherwise.
        self.fails("no entry of some class is whole", "quality", *shape[:4], "--text",
                   "two=" + text, *first, "--finish", "--database", "c.db")
        other = re.sub(r"( by kvterrace )[0-9.]+", r"\g<1>0.0.1", rows)
        self.assertNotEqual(other, rows)
        self.run_command("import", self.put("other.json", other), "--database", "d.db")
        self.fails("no entry of some class is whole", "quality", *shape, *first, "--finish",
                   "--database", "d.db")
        self.fails("nothing was measured", "calibrate", *shape[:-2], "--finish", "--database",
                   "d.db")

    def test_tables_follow_from_shipped_rows(self):
        """tools/profile_tables.py writes a profile and its rows, and says the same of these."""
        text = os.path.join(REFERENCE, "texts", "recall-512.jsonl")
        shape = ["--model", os.path.join(REFERENCE, "model"), "--name", "m", "--contexts", "4",
                 "--text", "one=" + text, "--text", "two=" + text]
        variants = ["--variants", "planes:k6v4,g64;planes:k2v2,g64"]
        tool = [sys.executable, os.path.join(REFERENCE, "..", "tools", "profile_tables.py"),
                "--command", COMMAND, *shape, *variants]

        def tables(database, name):
            result = subprocess.run([*tool, "--database", database, "--profile", name + ".json",
                                     "--rows", name + "-rows.json.zst"], cwd=self.folder, text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(self.path(name + ".json"), encoding="utf-8") as file:
                self.assertNotIn(os.path.abspath(REFERENCE), file.read())
            return result.stdout, result.stderr.replace(name, "")

        self.run_command("quality", *shape, *variants, "--answer-tokens", "32", "--database",
                         "a.db")
        first = tables("a.db", "a")
        self.assertIn("| **two**, 4 entries |", first[0])
        self.assertIn("| top1, worse | 0.02 |", first[0])
        self.run_command("import", "a-rows.json.zst", "--database", "b.db")
        self.assertEqual(tables("b.db", "b")[0], first[0])
        self.run_command("import", "a.json", "--database", "c.db")
        ladders = self.run_json("export", "--table", "calibration", "--database", "c.db")
        self.assertEqual(len(ladders["tables"]["calibration"]), 6)

    def run_command(self, *arguments, code=0):
        return super().run_command("profile", *arguments, code=code)

    def runs(self):
        with sqlite3.connect(self.path("p.db")) as database:
            return database.execute("SELECT kind, complete FROM run ORDER BY id").fetchall()

    def test_several_in_one(self):
        document = self.run_json("devices", "codecs", *QUICK, *DEVICES)
        self.assertEqual(document["schema"], "kvterrace-profile-2")
        self.assertEqual([row["device"] for row in document["devices"]], ["one", "two"])
        for device in document["devices"]:
            self.assertEqual(sorted({mixed["read_share"] for mixed in device["mixed"]}),
                             [0.25, 0.5, 0.75])
            for mixed in device["mixed"]:
                self.assertGreater(mixed["bytes_per_s"], 0)
            for point in device["points"]:
                self.assertEqual("fit_error" in point, point["depth"] == 1)
        threads = {row["threads"] for row in document["codecs"]}
        self.assertEqual(threads, {1, min(os.cpu_count(), 64)})
        self.assertEqual({row["source"] for row in document["codecs"]}, {"sample"})
        self.check_break_even(document)
        text = self.run_command("show", "--database", "p.db").stdout
        for part in ("loading_wins", "codecs:best", "break_even.codecs", "sample"):
            self.assertIn(part, text)
        self.run_command("devices", "quality", code=2)
        self.run_command("devices", "--kv", "x", code=2)

    def check_break_even(self, document):
        """Every figure follows from the curves beside it, as far as their nine digits say: what
        is left of the difference of two forms that are as fast may be none of them."""
        raw = {row["threads"]: row for row in document["codecs"]
               if row["name"] == "raw" and row["best"]}
        self.assertTrue(document["break_even"]["codecs"])
        for row in document["break_even"]["codecs"]:
            base = raw[row["threads"]]
            saved = base["stored_share"] - row["stored_share"]
            decode, raw_decode = 1 / row["decode_bytes_per_s"], 1 / base["decode_bytes_per_s"]
            if row["pays"] == "below":
                unsure = 1e-6 * saved + 1e-8 * row["bytes_per_s"] * (decode + raw_decode)
                self.assertAlmostEqual(row["bytes_per_s"] * (decode - raw_decode), saved,
                                       delta=unsure)
            else:
                self.assertIsNone(row["bytes_per_s"])
                self.assertEqual(row["pays"], "never" if saved <= 0 else "always")
        reads = {row["device"]: row["read"] for row in document["devices"]}
        prefills = {row["name"]: row for row in document["prefill"]}
        forms = {row["name"]: row for row in document["codecs"]
                 if row["best"] and row["threads"] == 1}
        for row in document["break_even"]["devices"]:
            read, prefill = reads[row["device"]], prefills[row["prefill"]]
            form = forms[row["codec"]]
            each = row["token_bytes"] * (form["stored_share"] / read["bytes_per_s"] +
                                         1 / form["decode_bytes_per_s"])
            if row["loading_wins"] != "from":
                continue
            tokens = row["tokens"]
            load = read["request_seconds"] + tokens * each
            compute = (prefill["fixed_seconds"] + tokens * prefill["linear_seconds_per_token"] +
                       tokens * tokens * prefill["square_seconds_per_token2"])
            self.assertAlmostEqual(load / compute, 1, places=6)

    def test_token_bytes(self):
        self.run_command("devices", *QUICK, *DEVICES)
        shown = self.run_json("show", "--database", "p.db", "--token-bytes", "4KiB")
        self.assertEqual([table["token_bytes"] for table in shown["load"]], [4096])
        self.run_command("show", "--database", "p.db", "--token-bytes", "none", code=2)

    def test_goes_on(self):
        command = ["devices", "codecs", *QUICK, *DEVICES]
        self.run_command(*command)
        whole = self.runs()
        self.assertEqual(whole, [("device", 1), ("device", 1), ("codecs", 1)])
        # Interrupted in the codecs: the devices are left alone, half of the codecs too.
        with sqlite3.connect(self.path("p.db")) as database:
            database.execute("UPDATE run SET complete = 0 WHERE id = 3")
            database.execute("DELETE FROM codec_curve WHERE threads > 1")
            kept = database.execute("SELECT name, decode_bytes_per_s FROM codec_curve WHERE "
                                    "threads = 1").fetchall()
        result = self.run_command(*command)
        self.assertIn("one: measured before the interruption", result.stderr)
        self.assertIn("two: measured before the interruption", result.stderr)
        self.assertEqual(self.runs(), whole)
        with sqlite3.connect(self.path("p.db")) as database:
            self.assertEqual(database.execute("SELECT name, decode_bytes_per_s FROM codec_curve "
                                              "WHERE threads = 1").fetchall(), kept)
            # Interrupted in the second device.
            database.execute("PRAGMA foreign_keys = ON")
            database.execute("DELETE FROM run WHERE id = 3")
            database.execute("UPDATE run SET complete = 0 WHERE id = 2")
            database.execute("DELETE FROM device_point WHERE device_id = 2 AND kind = 0")
        result = self.run_command(*command)
        self.assertIn("one: measured before the interruption", result.stderr)
        self.assertNotIn("two: measured", result.stderr)
        self.assertEqual(self.runs(), whole)
        # Not interrupted: everything again. And so with --fresh, another day, another command.
        self.run_command(*command)
        self.assertEqual(self.runs(), whole + whole)
        with sqlite3.connect(self.path("p.db")) as database:
            database.execute("UPDATE run SET complete = 0 WHERE id = 6")
            database.execute("UPDATE run SET started_utc = '2026-01-01T00:00:00Z'")
        self.run_command(*command)
        self.assertEqual(self.runs(), whole + whole[:2] + [("codecs", 0)] + whole)

    def put_dump(self, name, layers=2, tokens=64, heads=2, dim=64):
        header, data = {}, b""
        for layer in range(layers):
            for side in "kv":
                body = struct.pack(f"<{tokens * heads * dim}e",
                                   *[((layer * 7 + i * 13) % 97) / 31 - 1.5
                                     for i in range(tokens * heads * dim)])
                header[f"{side}.{layer}"] = {
                    "dtype": "F16", "shape": [tokens, heads, dim],
                    "data_offsets": [len(data), len(data) + len(body)]}
                data += body
        text = json.dumps(header).encode()
        with open(self.path(name), "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)

    def test_own_kv(self):
        self.put_dump("a.safetensors")
        self.put_dump("b.safetensors", tokens=96)
        document = self.run_json("codecs", *QUICK, "--kv", "a.safetensors", "--kv",
                                 "b.safetensors")
        self.assertEqual({row["source"] for row in document["codecs"]},
                         {"a.safetensors", "b.safetensors"})
        sizes = {row["source"]: row["source_bytes"] for row in document["codecs"]}
        self.assertEqual(sizes["b.safetensors"], 96 * 2 * 64 * 2 * 4)
        self.run_command("codecs", *QUICK, "--kv", "none.safetensors", code=2)

    def fill(self):
        """Rows of every table, with texts that mean something to a browser or a shell."""
        with sqlite3.connect(self.path("p.db")) as database:
            def run(kind, source=""):
                return database.execute(
                    "INSERT INTO run (kind, complete, host_identity, host_name, kernel, cpu_model, "
                    "cpu_count, memory_bytes, started_utc, library_version, sqlite_version, "
                    "zstd_version, command_line, seed, source) SELECT ?, 1, host_identity, "
                    "host_name, kernel, cpu_model, cpu_count, memory_bytes, started_utc, "
                    "library_version, sqlite_version, zstd_version, ?, seed, ? FROM run LIMIT 1",
                    (kind, NASTY, source)).lastrowid
            model = database.execute("INSERT INTO model (name, digest, parameters, layers, heads, "
                                     "kv_heads, head_dim, vocab) VALUES (?, '', 9, 4, 4, 2, 32, "
                                     "100)", ("tiny" + NASTY[:60],)).lastrowid
            quality = database.execute(
                "INSERT INTO quality_set (run_id, model_id, class, method, settings, "
                "context_tokens, continuation_tokens, entries) VALUES (?, ?, ?, 'continuation', "
                "'{}', 512, 64, 100)", (run("quality"), model, NASTY[:60])).lastrowid
            for rate, (name, bits, loss) in enumerate((
                    ("lossless", 10.5, 0), ("planes:k4v4,g64", 4.6, 0.01), (NASTY, 3, 0.1),
                    ("planes:k2v2,g64", 2.6, 0.2), ("entropy:k0.5v1,vchan", 2.7, 0.02))):
                database.execute(
                    "INSERT INTO quality_curve (set_id, codec, mode, rate, name, metric, "
                    "bits_per_element, entries, loss_mean, loss_low, loss_high) VALUES (?, 4, 0, "
                    "?, ?, 'top1', ?, 100, ?, ?, ?)",
                    (quality, rate, name, bits, loss, 0, min(1, 2 * loss)))
            calibration = database.execute(
                "INSERT INTO calibration (run_id, model_id, class) VALUES (?, ?, 'prose')",
                (run("calibration"), model)).lastrowid
            for position in range(2):
                database.execute(
                    "INSERT INTO calibration_rung (calibration_id, position, codec, mode, rate, "
                    "name, bits_per_element, loss, loss_upper, accepted, evidence) VALUES (?, ?, "
                    "4, 0, ?, 'planes:k4v4,g64', 4.6, 0.01, 0.02, ?, ?)",
                    (calibration, position, position, position, NASTY))
            database.execute("INSERT INTO calibration_choice (calibration_id, question, chosen, "
                             "evidence) VALUES (?, 'K:V split', 'K6V4', ?)", (calibration, NASTY))
            database.execute("INSERT INTO learned (run_id, kind, name, part, value, weight, "
                             "observations) VALUES (?, 'device', ?, 'read', 1.1, 5, 100)",
                             (run("learned"), NASTY))
            database.execute("INSERT INTO prefill (run_id, name, linear_seconds_per_token, "
                             "square_seconds_per_token2, fixed_seconds) VALUES (?, ?, 1e-5, 1e-9, "
                             "0.001)", (run("import", NASTY), NASTY))
            database.execute("UPDATE device SET name = 'a`touch pwned`<b>' WHERE name = 'one'")

    def make_page(self):
        """The document of p.db, and its page."""
        document = self.run_json("show", "--database", "p.db")
        self.put("p.json", json.dumps(document))
        super().run_command("report", "p.json", "-o", "p.html")
        with open(self.path("p.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertEqual(page.count("<script"), 2)
        self.assertNotIn("http://", page)
        self.assertTrue(page.endswith("</html>\n"))
        return document, page

    def test_page(self):
        self.run_command("devices", "codecs", *QUICK, *DEVICES)
        self.fill()
        document, page = self.make_page()
        self.assertEqual(len(document["quality_sets"][0]["curves"]), 5)
        self.assertEqual(len(document["calibrations"][0]["rungs"]), 2)
        self.assertEqual(document["prefill"][0]["name"], NASTY)
        for part in ('"device":"two"', '"model":"tiny\\u003cscript>'):
            self.assertIn(part, page)
        self.assertNotIn("tiny<script>", page)
        for option in ("--html", "--plot"):
            result = self.run_command("show", "--database", "p.db", option, "x", code=2)
            self.assertIn("kvterrace report", result.stderr)

    def test_imports(self):
        """What was published stands beside what was measured, and says where it is from."""
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles")
        for name in ("devices", "llama-3.1-8b", "prefill"):
            self.run_command("import", os.path.join(source, name + ".json"), "--database", "p.db")
        document, _ = self.make_page()
        sets = [(row["model"], row["class"]) for row in document["quality_sets"]]
        self.assertEqual(len(sets), len(set(sets)))
        for row in document["quality_sets"]:
            bits = [curve["bits_per_element"] for curve in row["curves"]]
            self.assertEqual(bits, sorted(bits, reverse=True))
            self.assertTrue(all(curve["source"] for curve in row["curves"]))
        names = [row["name"] for row in document["prefill"]]
        self.assertEqual(len(names), len(set(names)), "an imported prefill replaces the preset")
        self.assertTrue(all(row["imported"] for row in document["devices"]))
        loads = [row["device"] for row in document["load"][0]["loads"]]
        self.assertEqual(loads, [row["device"] for row in document["devices"]])
        # Only what was measured here is striped together.
        self.run_command("devices", *QUICK, *[word.replace("=dram", "=ssd") for word in DEVICES])
        document = self.run_json("show", "--database", "p.db")
        self.assertEqual(document["load"][0]["loads"][-1]["device"], "2 ssd striped")

    def test_any_tables(self):
        """Whatever is missing, the rest is shown."""
        self.run_command("devices", "codecs", *QUICK, *DEVICES)
        self.fill()
        shutil.copy(self.path("p.db"), self.path("full.db"))
        for table in TABLES:
            with self.subTest(table=table):
                # A new file: copying over one that a connection had open drops its locks.
                for name in os.listdir(self.folder):
                    if name.startswith("p.db"):
                        os.unlink(self.path(name))
                shutil.copy(self.path("full.db"), self.path("p.db"))
                database = sqlite3.connect(self.path("p.db"))
                database.execute("PRAGMA foreign_keys = ON")
                database.execute(f"DELETE FROM {table}")
                database.commit()
                database.close()
                document, _ = self.make_page()
                self.run_command("show", "--database", "p.db")
                if table == "run":
                    self.assertEqual(document["devices"] + document["codecs"], [])
                    text = self.run_command("show", "--database", "p.db").stdout
                    self.assertIn("nothing measured yet", text)


class UnderstandTest(CommandCase):
    def broken_model(self, name, base=None, turn=0):
        """A copy of the reference model with another rope base, or the table of tokens turned."""
        folder = self.path(name)
        shutil.copytree(os.path.join(REFERENCE, "model"), folder)
        with open(os.path.join(folder, "config.json"), "r+", encoding="utf-8") as file:
            config = json.load(file)
            config["rope_theta"] = base or config["rope_theta"]
            file.seek(0)
            json.dump(config, file)
            file.truncate()
        with open(os.path.join(folder, "model.safetensors"), "r+b") as file:
            data = file.read()
            start = 8 + struct.unpack("<Q", data[:8])[0]
            facts = json.loads(data[8:start])["model.embed_tokens.weight"]
            first, end = (start + offset for offset in facts["data_offsets"])
            place = first + turn * (end - first) // facts["shape"][0]
            file.seek(first)
            file.write(data[place:end] + data[first:place])
        return ["--model", name]

    def test_models_that_do_not_understand(self):
        """Wrong rotation, and weights in another order: figures, and neither curve nor ladder."""
        text = ["--text", "short=" + os.path.join(REFERENCE, "texts", "recall-512.jsonl")]
        few = [*text, "--contexts", "3", "--context-tokens", "256", "--database", "b.db"]
        sound = ["--model", os.path.join(REFERENCE, "model"), *few[:-1], "a.db"]
        rows = self.run_json("profile", "quality", *sound, "--quick", "--contexts", "3")["sets"]
        rows += self.run_json("profile", "calibrate", *sound)["likelihood"]
        for row in rows:
            self.assertTrue(row["understood"])
            self.assertLess(row["nll_nats"], row["unigram_nats"] / 2)
        for model in (self.broken_model("based", base=100.0), self.broken_model("turned", turn=9)):
            quality = ["profile", "quality", "--json", *model, *few, "--answer-tokens", "0",
                       "--variants", "planes:k8v8,g64"]
            for words in (quality, [*quality, "--finish"]):
                result = self.run_command(*words, code=2)
                self.assertIn("class short: the model does not understand these texts",
                              result.stderr)
                row = json.loads(result.stdout)["sets"][0]
                self.assertFalse(row["understood"])
                self.assertGreaterEqual(row["nll_nats"], 0.9 * row["unigram_nats"])
            calibrate = ["profile", "calibrate", "--json", *model, *few]
            for words in (calibrate, [*calibrate, "--finish"]):
                result = self.run_command(*words, code=2)
                self.assertIn("does not understand these texts", result.stderr)
                document = json.loads(result.stdout)
                self.assertEqual(document["ladders"], [])
                self.assertFalse(document["likelihood"][0]["understood"])
                self.assertGreater(document["likelihood"][0]["nll_nats"], 4)
            self.fails("does not understand", "profile", "dumps", "-o", "made", *model, "--text",
                       text[1].partition("=")[2], *few[2:-2])
            exported = self.run_json("profile", "export", "--database", "b.db", "--table",
                                     "quality")
            self.assertEqual(exported["tables"].get("quality", []), [])
            self.fails("no calibration or quality", "replay", *WORKLOAD, "--set",
                       "store.profile=b.db", "--set",
                       "replay.ladder=profile:" + model[1] + ":short")


if __name__ == "__main__":
    unittest.main()
