#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kvterrace command as a user meets it: exit codes, stdout and stderr, bad input, JSON.

    test_tools_command.py COMMAND

Devices are small files in a temporary folder. Nothing here depends on how long anything takes.
"""

import gzip
import json
import math
import os
import re
import sqlite3
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import WORKLOAD, CommandCase  # noqa: E402

# The model that comes with the sources, and texts for it.
REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "reference_model")


class CommandTest(CommandCase):
    def test_help(self):
        for arguments in ([], ["profile"], ["profile", "devices"], ["profile", "import"],
                          ["profile", "export"], ["profile", "diff"], ["profile", "gc"],
                          ["replay"], ["size"], ["kvlab"],
                          ["kvlab", "stripe"], ["kvlab", "codecs"],
                          ["report"], ["encode"], ["decode"], ["inspect"], ["verify"], ["recover"],
                          ["rekey"], ["kvlab", "keep"],
                          ["clear"], ["serve"], ["top"], ["ls"], ["rm"], ["flush"], ["retire"],
                          ["check-config"]):
            with self.subTest(arguments=arguments):
                text = self.run_command(*arguments, "--help").stdout
                name = arguments if arguments[:1] == ["kvlab"] else ["kvterrace", *arguments]
                self.assertIn("Usage: " + " ".join(name), text)
                self.assertTrue(all(len(line) <= 80 for line in text.splitlines()), text)
        text = self.run_command("--help").stdout
        for name in ("profile", "size", "replay", "report", "encode", "decode", "inspect",
                     "verify", "recover", "clear", "serve", "top", "ls", "rm", "flush", "retire",
                     "check-config"):
            self.assertIn(f"\n  {name} ", text)
        self.assertRegex(self.run_command("--version").stdout, r"^kvterrace \d+\.\d+\.\d+\n$")
        self.assertRegex(self.run_command("kvlab", "-V").stdout, r"^kvlab \d+\.\d+\.\d+\n$")

    def test_usage(self):
        self.fails("Usage", code=2)
        self.assertEqual(self.run_command("version").stdout, self.run_command("--version").stdout)
        for words in ([], ["replay"], ["profile", "devices"]):
            self.assertEqual(self.run_command("help", *words).stdout,
                             self.run_command(*words, "--help").stdout)
        self.fails("unknown command 'fly'", "help", "fly")
        self.fails("unknown command 'fly'", "fly")
        self.fails("unknown command 'fly'", "profile", "fly")
        self.fails("--trace", "replay")
        self.fails("exclude", "replay", "--trace", "x", "--workload", "poisson")
        self.fails("unknown mode", "replay", "--workload", "poisson", "--mode", "dream")
        self.fails("lab/compare.py", "replay", *WORKLOAD, "--compare")
        self.fails("not of --mode live", "replay", *WORKLOAD, "--mix", "dram=0", "--mode", "live")
        self.fails("a ladder of 1", "replay", *WORKLOAD, "--mix", "dram=1")
        self.fails("unknown variant 'fly'", "replay", *WORKLOAD, "--variant", "fly")
        self.fails("unknown workload", "replay", "--workload", "fish")
        self.fails("unrecognized option", "replay", "--frobnicate")
        self.fails("which FILE", "inspect")
        self.fails("which FILE", "check-config")
        self.fails("--seconds", "profile", "devices", "--seconds", "soon")
        for count in ("0", "-1", "+1", "1x", "", "1000000", " 1"):
            self.fails("--iterations", "kvlab", "stripe", "--quick", "--iterations", count)
        self.fails("which FILE", "encode")
        self.fails("which FILE", "decode")
        self.fails("--output", "decode", "x.kvt")
        self.fails("--contexts", "kvlab", "codecs", "--contexts", "0")

    def test_settings(self):
        self.fails("store.polcy: unknown setting", "check-config", "--set", "store.polcy=lru",
                   self.put("empty.ini", ""))
        self.fails("bad.ini:2: store.policy", "check-config",
                   self.put("bad.ini", "[store]\npolicy = best\n"))
        self.fails("nowhere.ini", "check-config", "nowhere.ini")
        self.fails("binary.ini:1: [x\\x1b[2J\\x07]: unknown section", "check-config",
                   self.put("binary.ini", b"[x\x1b[2J\x07]\n"))
        self.fails("store.\\x1b[31mred: unknown setting", "check-config",
                   self.put("binary.ini", b"[store]\n\x1b[31mred = 1\n"))
        self.fails("'\\xffbest' is not one of", "check-config",
                   self.put("binary.ini", b"[store]\npolicy = \xffbest\n"))
        self.fails("replay.scale has no effect", "replay", *WORKLOAD, "--set", "replay.scale=0.5")
        self.fails("has no effect here: tier.ssd.capacity is not set", "replay", *WORKLOAD, "--set",
                   "tier.ssd.read_bandwidth=3GB/s")
        self.fails("device.x.path has no effect here: device.x.backend is not set", "replay",
                   *WORKLOAD, "--set", "device.x.path=y")
        self.fails("unknown policy 'mru'", "replay", *WORKLOAD, "--policy", "lru,mru")
        self.fails("replay.seeds", "replay", *WORKLOAD, "--seeds", "0")
        self.fails("named twice", "replay", *WORKLOAD, "--policy", "lru,utility,lru")
        self.fails("workload.rate: above 0", "replay", *WORKLOAD, "--set", "workload.rate=0")

    def test_check_config(self):
        path = self.put("good.ini", "[store]\npolicy = lru\n[tier.dram]\ncapacity = 1GiB\n"
                        "[device.nvme0]\ntier = ssd\nbackend = file\npath = x\n"
                        "capacity = 64MiB\n")
        document = self.run_json("check-config", path)
        self.assertEqual(document["policy"], "lru")
        self.assertEqual([row["tier"] for row in document["tiers"]], ["dram", "ssd"])
        self.assertEqual(document["tiers"][1]["devices"][0]["name"], "nvme0")
        self.assertFalse(os.path.exists(self.path("x")))
        text = self.run_command("check-config", path, "--set", "tier.dram.capacity=2GiB").stdout
        self.assertIn("2.00 GiB", text)
        names = [row["name"] for row in self.run_json("settings")["settings"]]
        self.assertIn("tier.dram.capacity", names)

    def test_check_config_refuses(self):
        memory = ("[tier.dram]\ncapacity = {}\n[device.m]\ntier = dram\nbackend = memory\n"
                  "capacity = 1MiB\n{}")
        for part, text in (
                ("tier.dram.capacity", memory.format("100GiB", "")),
                ("tier = ssd", "[tier.ssd]\ncapacity = 1GiB\n"),
                ("tier.ssd.capacity", "[tier.ssd]\ncapacity = 64MiB\n[device.d]\ntier = ssd\n"
                 "backend = file\npath = x\ncapacity = 64MiB\n"),  # its label takes 8 KiB
                ("watermarks", "[store]\nhigh_watermark = 0.5\nlow_watermark = 0.9\n"),
                ("hysteresis", "[store]\nhysteresis = -3\n"),
                ("store.staging", "[store]\nstaging = 0\n"),
                ("store.tick", "[store]\ntick = 2h\n"),
                ("store.get_deadline", "[store]\nget_deadline = 1000000h\n"),
                ("replay.servers", "[replay]\nservers = 0\n"),
                ("replay.scale", "[replay]\nscale = 2\n"),
                ("workload.rate: above 0", "[workload]\nrate = 0\n"),
                ("tier.dram.read_bandwidth", "[tier.dram]\ncapacity = 1GiB\nread_bandwidth = 0\n"),
                ("tier.dram.write_bandwidth",
                 "[tier.dram]\ncapacity = 1GiB\nwrite_bandwidth = 0\n"),
                ("device.m.path has no effect", memory.format("1MiB", "path = x\n")),
                ("tier.hbm.latency has no effect here: tier.hbm.capacity is not set",
                 "[tier.hbm]\nlatency = 1us\n"),
                ("tier.dram.slots: slots of 2097152 bytes, but it holds 1048576",
                 memory.format("1MiB", "[tier.dram]\nslots = 2MiB\n").replace(
                     "[tier.dram]\ncapacity = 1MiB\n", "")),
                ("tier.dram.slots: slots of 2097152 bytes",
                 "[tier.dram]\ncapacity = 1MiB\nslots = 2MiB\n"),
                ("tier.dram is smaller than one stripe unit on each of its devices",
                 "[tier.dram]\nunit = 1MiB\ncapacity = 1MiB\n" + "".join(
                     f"[device.{name}]\ntier = dram\nbackend = memory\ncapacity = 1MiB\n"
                     for name in "ab"))):
            with self.subTest(part=part, text=text):
                result = self.fails(part, "check-config", self.put("bad.ini", text))
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.run_command("check-config", self.put("fits.ini", memory.format("1MiB", "")))
        self.run_command("check-config", self.put(
            "live.ini", memory.format("64MiB", "[replay]\nscale = 0.015625\n")))
        self.run_command("check-config", self.put(
            "sim.ini", "[tier.ssd]\ncapacity = 1TiB\nread_bandwidth = 3GB/s\n"))

    def test_documented_configurations(self):
        """Every configuration that the documentation shows passes the check, where the folders and
        the profile that it names are there."""
        self.run_command("profile", "codecs", "--quick", "--seconds", "1ms", "--database",
                         "profile.db")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        for name in ("README.md", "docs/GUIDE.md", "docs/CONFIGURATION.md"):
            with open(os.path.join(source, name), encoding="utf-8") as file:
                blocks = re.findall(r"```ini\n(.*?)```", file.read(), re.DOTALL)
            self.assertTrue(blocks, name)
            for block in blocks:
                with self.subTest(name=name):
                    here = re.sub(r"/(var/lib/kvterrace|mnt|etc/kvterrace)/", "", block)
                    here = re.sub(r"(capacity *= *\d+)GiB", r"\1MiB", here)
                    for secret in re.findall(r"^password_file *= *(\S+)", here, re.MULTILINE):
                        os.chmod(self.put(secret, "-"), 0o600)
                    for folder in re.findall(r"^path *= *(\w+)/", here, re.MULTILINE):
                        os.makedirs(self.path(folder), exist_ok=True)
                    self.run_command("check-config", self.put("doc.ini", here))

    def test_profile(self):
        device = ["--set", "device.one.tier=ssd", "--set", "device.one.backend=file", "--set",
                  "device.one.path=one", "--set", "device.one.capacity=32MiB"]
        quick = ["--quick", "--seconds", "1ms", "--database", "p.db"]
        document = self.run_json("profile", "devices", *quick, *device)
        curve = document["devices"][0]
        self.assertEqual((curve["device"], curve["tier"]), ("one", "ssd"))
        self.assertGreater(curve["read"]["bytes_per_s"], 0)
        self.assertGreater(curve["write"]["bytes_per_s"], 0)
        self.assertTrue(curve["points"])
        # It has content now: the second time it is only read, and not a byte of it changes.
        with open(self.path("one"), "rb") as file:
            before = file.read()
        result = self.run_command("profile", "devices", *quick, *device)
        self.assertIn("only reads are measured", result.stderr)
        with open(self.path("one"), "rb") as file:
            self.assertEqual(file.read(), before)
        shown = self.run_json("profile", "show", "--database", "p.db")
        self.assertEqual([row["device"] for row in shown["devices"]], ["one"])
        # What was measured of its writes still holds.
        self.assertEqual(shown["devices"][0]["write"], curve["write"])
        # A device that was never written is simulated with a default, which is said.
        with open(self.path("full"), "wb") as file:
            file.write(b"content" * 1000000)
        only = [word.replace("one", "full").replace("32MiB", "4MiB") for word in device]
        self.run_command("profile", "devices", "--quick", "--seconds", "1ms", "--database", "r.db",
                         *only)
        document = self.run_json("replay", *WORKLOAD, "--policy", "none", "--database", "r.db",
                                 "--set", "tier.ssd.capacity=8GiB")
        self.assertIn("ssd writes at the default", document["note"])
        self.assertNotIn("ssd reads at the default", document["note"])
        # Without a tier, the profile's speeds are those of the default host.
        document = self.run_json("replay", *WORKLOAD, "--policy", "none", "--database", "p.db")
        # Nine digits are printed, and a rate may have more before its point.
        self.assertAlmostEqual(document["configuration"]["tiers"]["ssd"]["read_bytes_per_s"] /
                               shown["devices"][0]["read"]["bytes_per_s"], 1, places=6)
        self.assertIn("ssd as the profile measured it", document["note"])
        # Measured on the spot: a memory device and a file that is gone afterwards.
        self.run_command("profile", "devices", *quick)
        shown = self.run_json("profile", "show", "--database", "p.db")
        self.assertEqual([row["device"] for row in shown["devices"]], ["dram", "one", "ssd0"])
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("kvt")], [])

    def test_profile_quality(self):
        texts = ["=" + os.path.join(REFERENCE, "texts", name)
                 for name in ("recall-512.jsonl", "recall-768.jsonl")]
        words = ["profile", "quality", "--quick", "--contexts", "3", "--model",
                 os.path.join(REFERENCE, "model"), "--text", "short" + texts[0], "--text",
                 "long" + texts[1], "--database", "q.db"]
        document = self.run_json(*words)
        self.assertEqual(document["model"], "reference_model")
        self.assertEqual([row["class"] for row in document["sets"]], ["short", "long", "pooled"])
        self.assertEqual([row["entries"] for row in document["sets"]], [3, 3, 6])
        for key in ("nll_nats", "spearman_variants", "spearman_entries", "repeatability"):
            self.assertTrue(math.isfinite(document[key]), key)
        loss = {row["variant"]: row for row in document["sets"][0]["variants"]}
        self.assertEqual(len(loss), 5)
        for row in loss.values():
            self.assertTrue(0 <= row["loss_low"] <= row["loss_mean"] <= row["loss_high"] <= 1, row)
            self.assertAlmostEqual(row["loss_mean"], 1 - row["top1"])
            for key in ("bits_per_element", "loss_p90", "kl", "rouge_l", "f1", "answers",
                        "attention_error", "attention_error_high"):
                self.assertTrue(row[key] >= 0, key)
        fine, coarse = loss["planes:k8v8,g64"], loss["planes:k2v2,g64"]
        self.assertTrue(0 < fine["kl"] < coarse["kl"] / 100)
        # The text that the same command prints, from rows that are measured anew: it was complete.
        shown = self.run_command(*words).stdout
        self.assertRegex(shown, "pooled +6 ")
        self.assertRegex(shown, "reference_model +top1 +0 ")
        exported = self.run_json("profile", "export", "--database", "q.db", "--table", "quality")
        self.assertTrue(exported["tables"]["quality"])
        # What is shipped of the same model is read.
        shipped = os.path.join(REFERENCE, "..", "profiles", "reference-model.json")
        self.run_command("profile", "import", shipped, "--database", "r.db")
        exported = self.run_json("profile", "export", "--database", "r.db", "--table", "quality")
        rows = exported["tables"]["quality"]
        self.assertEqual({row["class"] for row in rows}, {"recall-768", "pooled"})
        self.assertEqual({row["metric"] for row in rows}, {"answers"})

    def test_profile_quality_refusals(self):
        model = ["--model", os.path.join(REFERENCE, "model")]
        text = ["--text", os.path.join(REFERENCE, "texts", "recall-512.jsonl")]
        self.fails("--model is missing", "profile", "quality", *text)
        self.fails("--text is missing", "profile", "quality", *model)
        self.fails("unknown loss 'bleu'", "profile", "quality", *model, *text, "--loss", "bleu")
        self.fails("unknown variant 'kivi:k5v5'", "profile", "quality", *model, *text,
                   "--variants", "raw kivi:k5v5")
        self.fails("'0' is not from 1", "profile", "quality", *model, *text, "--contexts", "0")
        self.fails("none.jsonl", "profile", "quality", *model, "--text", "none.jsonl")
        self.fails("none.bin", "profile", "quality", *model, *text, "--tokenizer", "none.bin")
        self.put("bad.jsonl", '{"text": "abc", "context": 7}\n')
        self.fails("bad.jsonl:1: ", "profile", "quality", *model, "--text", "bad.jsonl")

    def test_profile_dumps_and_calibrate(self):
        model = ["--model", os.path.join(REFERENCE, "model")]
        text = ["--text", os.path.join(REFERENCE, "texts", "recall-512.jsonl")]
        few = [*text, "--contexts", "2"]
        self.run_command("profile", "dumps", "--output", "dumps", *model, *few)
        dumps = [os.path.join("dumps", name) for name in sorted(os.listdir(
            os.path.join(self.folder, "dumps")))]
        self.assertEqual(len(dumps), 2)
        document = self.run_json("profile", "attention", *dumps, "--quick", "--name",
                                 "reference_model", "--class", "short", "--database", "c.db")
        self.assertEqual((document["pairs"], document["queries"], document["entries"]), (10, 8, 2))
        rows = {row["variant"]: row for row in document["variants"]}
        self.assertEqual(len(rows), 5)
        for row in rows.values():
            self.assertFalse(row["mapped"])
            self.assertTrue(0 < row["attention_error"] <= row["attention_error_high"])
            self.assertTrue(0 <= row["flip_rate"] <= 1 and 0 < row["retained_mass"] <= 1)
        self.assertTrue(rows["planes:k8v8,g64"]["attention_error"] <
                        rows["planes:k2v2,g64"]["attention_error"])
        # The ladder of the model, and the simulation that takes it.
        document = self.run_json("profile", "calibrate", *model, *few, "--class", "short",
                                 "--database", "c.db")
        self.assertEqual(document["model"], "reference_model")
        questions = {row["question"] for row in document["choices"]}
        self.assertTrue({"planes: K:V bits", "planes: V axis", "entropy: V axis", "entropy: steps",
                         "drop: score"} <= questions)
        bits = [row["bits_per_element"] for row in document["rungs"]]
        self.assertEqual(bits, sorted(bits, reverse=True))
        self.assertTrue(any(row["accepted"] for row in document["rungs"]))
        # A form that was not timed has the speed of its codec's nearest one.
        self.put_rows("speeds.json", "[codec]\nvariant,stored_share,encode_bytes_per_s,"
                 "decode_bytes_per_s,source\nraw,1,5e9,1e10,test\nkivi:k4v4,0.28,4e9,6e9,test\n"
                 "planes:k4v4 g64,0.28,3e9,9e9,test\nentropy:k0.25v0.5 vchan,0.22,1e9,3e9,test\n")
        self.run_command("profile", "import", "speeds.json", "--database", "c.db")
        self.run_json("replay", *WORKLOAD, "--set", "store.profile=c.db",
                      "--set", "replay.ladder=profile:reference_model:short")
        self.fails("no calibration or quality", "replay", *WORKLOAD, "--set",
                   "store.profile=c.db", "--set", "replay.ladder=profile:reference_model:long")
        self.fails("profile:MODEL:CLASS", "replay", *WORKLOAD, "--set",
                   "store.profile=c.db", "--set", "replay.ladder=profile:short")
        # What is refused.
        self.fails("--model or --kv is missing", "profile", "calibrate")
        self.fails("do not go together", "profile", "calibrate", *model, "--kv", dumps[0])
        self.fails("--text is missing", "profile", "calibrate", *model)
        self.fails("none.safetensors", "profile", "attention", "none.safetensors")
        self.fails("unrecognized option '--text'", "profile", "attention", dumps[0], *text)

    def test_profile_refusals(self):
        self.fails("no such profile", "profile", "show", "--database", "none.db")
        self.put("junk.db", b"not a database at all" * 100)
        self.fails("junk.db", "profile", "show", "--database", "junk.db")
        self.fails("junk.db", "profile", "codecs", "--quick", "--database", "junk.db")
        self.fails("junk.db", "profile", "devices", "--quick", "--database", "junk.db")
        self.fails("junk.db", "replay", *WORKLOAD, "--database", "junk.db")
        self.fails("junk.db", "replay", *WORKLOAD, "--database", "junk.db", "--mode", "live",
                   "--set", "tier.dram.capacity=1GB")
        os.mkdir(self.path("folder"))
        self.fails("folder", "profile", "show", "--database", "folder")
        self.run_command("profile", "codecs", "--quick", "--seconds", "1ms", "--database",
                         "host.db")
        with sqlite3.connect(self.path("host.db")) as database:
            database.execute("UPDATE run SET host_identity = '0123456789abcdef'")
        self.fails("store.profile_foreign", "profile", "show", "--database", "host.db")
        self.run_command("profile", "show", "--database", "host.db", "--set",
                         "store.profile_foreign=yes")
        with open(self.path("junk.db"), "rb") as file:
            self.assertTrue(file.read().startswith(b"not a database"))
        self.fails("missing/one", "profile", "devices", "--quick", "--database", "p.db", "--set",
                   "device.one.tier=ssd", "--set", "device.one.backend=file", "--set",
                   "device.one.path=missing/one", "--set", "device.one.capacity=32MiB")

    def test_replay_sim(self):
        arguments = ["replay", *WORKLOAD, "--policy", "none,lru,utility", "--seed", "3", "--set",
                     "tier.dram.capacity=2GiB"]
        document = self.run_json(*arguments, "--report", "report.html")
        self.assertEqual([row["policy"] for row in document["results"]],
                         ["none", "lru", "utility"])
        for row in document["results"]:
            self.assertEqual(row["seed"], 3)
            self.assertEqual(row["requests"], 200)
            self.assertGreater(row["ttft_s_p50"], 0)
        self.assertEqual(document["results"][0]["hit_block_ratio"]["total"], 0)
        self.assertGreater(document["results"][1]["hit_block_ratio"]["total"], 0)
        with open(self.path("report.html"), encoding="utf-8") as file:
            report = file.read()
        self.assertIn("utility", report)
        self.assertIn("ttft_s_mean", report)
        self.assertTrue(report.endswith("</html>\n"))
        self.assertNotIn("http://", report)
        self.assertIn("utility", self.run_command(*arguments).stdout)

    def test_replay_verdict(self):
        """Words first: the engine, no cache, the fastest other policy; one table without -v."""
        words = ["replay", *WORKLOAD, "--set", "tier.dram.capacity=4GiB", "--policy"]
        means = {row["policy"]: row["ttft_s_mean"] for row in
                 self.run_json(*words, "none,lru,gdsf,utility")["results"]}
        rival = min("lru", "gdsf", key=means.get)
        text = self.run_command(*words, "none,lru,gdsf,utility").stdout
        self.assertEqual(text.splitlines()[0], (
            f"utility takes {means['utility']:.3f} s to the first token, in the mean of one seed; "
            f"that is {means['utility'] / means['none']:.3f} of the {means['none']:.3f} s without "
            f"a cache, and {means['utility'] / means[rival]:.3f} of the {means[rival]:.3f} s of "
            f"{rival}, the fastest of the others."))
        self.assertNotIn("token_hits", text)
        verbose = self.run_command(*words, "none,lru,gdsf,utility", "--verbose").stdout
        for column in ("token_hits", "promoted"):
            self.assertIn(column, verbose)
        text = self.run_command(*words, "none,gdsf,lru").stdout
        self.assertTrue(text.startswith(f"{rival} takes {means[rival]:.3f} s"), text)
        self.assertNotIn("others", text)
        self.assertTrue(self.run_command(*words, "none").stdout.startswith("simulated: "))
        self.fails("--verbose is not of --model", *words, "lru", "--verbose", "--mode", "live",
                   "--model", "x", "--text", "y")

    def test_replay_targets(self):
        """What cannot be written is said before the run, not after it."""
        for option in ("--report", "--plan-log"):
            self.fails("missing/file", "replay", *WORKLOAD, option, "missing/file")
            self.fails("Is a directory", "replay", *WORKLOAD, option, ".")
        self.assertEqual(os.listdir(self.folder), [])
        result = self.run_command("replay", *WORKLOAD, "--policy", "none", "--report", "page.html")
        self.assertIn("kvterrace replay: report: page.html\n", result.stderr)

    def test_replay_repeats(self):
        arguments = ["replay", *WORKLOAD, "--policy", "lru,utility", "--seeds", "2", "--plan-log",
                     "plan", "--set", "tier.dram.capacity=1GiB", "--quiet"]
        logs = []
        for _ in range(2):
            self.run_json(*arguments)
            names = sorted(name for name in os.listdir(self.folder) if name.startswith("plan"))
            self.assertEqual(names, ["plan.lru.1", "plan.lru.2", "plan.utility.1",
                                     "plan.utility.2"])
            texts = []
            for name in names:
                with open(self.path(name), "rb") as file:
                    texts.append(file.read())
            logs.append(texts)
        self.assertEqual(logs[0], logs[1])
        self.assertTrue(all(logs[0]))
        self.assertNotEqual(logs[0][0], logs[0][1])

    def test_replay_conversations(self):
        lines = "".join(
            json.dumps({"conv": f"c{i}", "timestamp": 1000 * turn, "input_length": 64 * (turn + 1),
                        "output_length": 1, "hash_ids": list(range(10 * i, 10 * i + turn + 1))})
            + "\n" for i in range(20) for turn in range(3))
        trace = ["replay", "--trace", self.put("agents.jsonl", lines), "--policy", "lru"]
        document = self.run_json(*trace)
        self.assertEqual(document["workload"]["conversations_per_s"], 1)
        document = self.run_json(*trace, "--set", "workload.rate=0.25")
        self.assertEqual(document["workload"]["conversations_per_s"], 0.25)
        self.assertIn("0.25 per second (workload.rate)",
                      self.run_command(*trace, "--set", "workload.rate=0.25").stdout)
        self.fails("workload.rate", *trace, "--set", "workload.rate=0")
        plain = self.put("plain.jsonl", '{"timestamp": 0, "input_length": 512, "output_length": 1, '
                         '"hash_ids": [1]}\n')
        document = self.run_json("replay", "--trace", plain, "--policy", "lru")
        self.assertIsNone(document["workload"]["conversations_per_s"])
        self.fails("workload.rate has no effect", "replay", "--trace", plain, "--set",
                   "workload.rate=2")

    def test_replay_foreign_traces(self):
        """What was assumed of a trace is said once, on stderr and in the document."""
        azure = ("\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                 "2024-05-10 00:00:00.009930+00:00,2162,5\r\n"
                 "2024-05-10 00:00:01.017335+00:00,2399,6\r\n")
        row = ('{"chat_id": %d, "parent_chat_id": -1, "timestamp": %d, "input_length": 30, '
               '"output_length": 1, "type": "text", "turn": 1, "hash_ids": [1, 2]}\n')
        chats = "".join(row % (i, i) for i in range(4)).encode()
        for name, content, tokens, note in (
                ("azure.csv", azure, 512, "each prompt is its own"),
                ("azure.csv.gz", gzip.compress(azure.encode()), 512, "each prompt is its own"),
                ("chats.jsonl.zst", gzip.compress(chats), 16, "timestamps are seconds"),
                ("epoch.jsonl", b"\xef\xbb\xbf" + chats.replace(b'p": ', b'p": 173200000'), 16,
                 "seconds since 1970, counted from the first request on")):
            with self.subTest(name=name):
                words = ["replay", "--trace", self.put(name, content), "--policy", "lru",
                         "--seeds", "2"]
                result = self.run_command(*words)
                self.assertEqual(result.stderr.count(note), 1, result.stderr)
                workload = self.run_json(*words)["workload"]
                self.assertIn(note, workload["note"])
                self.assertEqual(workload["block_tokens"], tokens)
        words = ["replay", "--trace", "azure.csv", "--policy", "lru", "--set",
                 "replay.block_tokens=100"]
        self.assertEqual(self.run_json(*words)["workload"]["block_tokens"], 100)
        self.fails("no block comes twice, so these requests cannot tell", "size", "--trace",
                   "azure.csv", "--dram", "1GiB", "--ssd", "0")
        turns = "Timestamp,Session ID,Request tokens\n1,a,900\n2,a,1900\n3,b,700\n"
        self.assertIn("a session's turns begin with what was asked before", self.run_command(
            "size", "--trace", self.put("turns.csv", turns), "--dram", "1GiB", "--ssd",
            "0").stderr)

    def test_replay_bad_traces(self):
        self.fails("no-such", "replay", "--trace", "no-such", code=2)
        self.fails("kvterrace replay: ", "replay", "--trace", ".")
        self.put("bad.jsonl", '{"timestamp": 0, "input_length": 512, "output_length": 1, '
                 '"hash_ids": [1]}\n{"timestamp": 1, "input_length"\n')
        self.fails("bad.jsonl:2:", "replay", "--trace", "bad.jsonl", "--policy", "lru")

    def test_replay_live(self):
        self.put("live.ini", "[tier.hbm]\ncapacity = 512MB\nemulated = yes\n"
                 "[tier.dram]\ncapacity = 2GB\n[tier.ssd]\ncapacity = 8GB\n" + "".join(
                     f"[device.ssd{i}]\ntier = ssd\nbackend = file\npath = ssd{i}\n"
                     f"capacity = {64 + 32 * i}MiB\ntimeout = 0\n" for i in range(2)))
        document = self.run_json("replay", *WORKLOAD, "--mode", "live", "--config", "live.ini",
                                 "--policy", "lru,utility", "--scale", "0.0039", "--plan-log",
                                 "plan", "--quiet", "--set", "workload.requests=100")
        for row in document["results"]:
            self.assertEqual((row["mode"], row["requests"]), ("live", 100))
            # How many loads are worth it depends on this machine; that bytes are right does not.
            self.assertGreaterEqual(row["verified_gets"], 0)
            self.assertEqual(row["wrong_bytes"], 0)
            self.assertIs(row["moves_match"], True)
            self.assertIsNone(row["plan_hash"])
            for ratios in (row["hit_block_ratio"], row["hit_token_ratio"]):
                self.assertAlmostEqual(sum(ratios[tier] for tier in ("hbm", "dram", "ssd")),
                                       ratios["total"], places=9)
            with open(self.path(f"plan.{row['policy']}.1"), encoding="utf-8") as file:
                self.assertGreaterEqual(len(file.readlines()), row["moves_committed"])
        self.assertGreater(document["results"][0]["moves_committed"], 0)
        tiers = document["configuration"]["tiers"]
        self.assertEqual([row["path"] for row in tiers["ssd"]["devices"]], ["ssd0", "ssd1"])
        self.assertEqual(tiers["dram"]["capacity_bytes"], 2000000000)
        self.fails("replay.scale", "replay", *WORKLOAD, "--mode", "live", "--config", "live.ini",
                   "--scale", "1e-12")
        # What the run made is gone, and what it labelled is blank again, so the same command works
        # a second time.
        self.assertFalse(os.path.exists(self.path("ssd0")))
        with open(self.path("ssd1"), "wb") as file:
            file.truncate(96 << 20)
        self.run_json("replay", *WORKLOAD, "--mode", "live", "--config", "live.ini", "--policy",
                      "lru", "--quiet", "--set", "workload.requests=20")
        self.assertEqual(self.run_json("inspect", "ssd1")["label"], "blank")
        with open(self.path("ssd0"), "wb") as file:
            file.truncate(64 << 20)
        # Somebody else's bytes stay, and are not taken over by themselves.
        with open(self.path("ssd0"), "r+b") as file:
            file.write(b"precious")
        self.fails("store.format", "replay", *WORKLOAD, "--mode", "live", "--config", "live.ini",
                   code=2)
        with open(self.path("ssd0"), "rb") as file:
            self.assertEqual(file.read(8), b"precious")
        self.assertEqual(self.run_json("inspect", "ssd1")["label"], "blank")
        self.fails("no tier", "replay", *WORKLOAD, "--mode", "live", code=2)

    def test_verify(self):
        self.fails("store.catalog", "verify")
        self.fails("none.db", "verify", "--set", "store.catalog=none.db")
        for junk in (b"", b"not a database at all" * 100):
            self.put("junk.db", junk)
            self.fails("junk.db", "verify", "--set", "store.catalog=junk.db")
        self.fails("catalog .", "verify", "--set", "store.catalog=.")
        maker = os.path.join(os.environ.get("KVT_BINARY_DIR", ""), "test_bench_verify")
        if not os.path.exists(maker):
            self.skipTest("test_bench_verify makes the store")
        subprocess.run([maker, "--make", "."], cwd=self.folder, check=True)
        config = self.put("store.ini", "[store]\ncatalog = catalog.db\n" + "".join(
            f"[device.ssd{i}]\ntier = ssd\nbackend = file\npath = ssd{i}\n"
            "capacity = 16MiB\ntimeout = 0\n" for i in range(2)))
        before = sorted(os.listdir(self.folder))
        document = self.run_json("verify", "--config", config)
        self.assertEqual(sorted(os.listdir(self.folder)), before)  # nothing is left behind
        self.assertIs(document["ok"], True)
        self.assertGreater(document["entries"], 0)
        self.assertEqual(document["sound"], document["entries"])
        self.assertEqual(self.run_json("inspect", "catalog.db")["entries"], document["entries"])
        rows = self.run_json("inspect", "--entries", "catalog.db")["entry"]
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        self.assertEqual(len({row["key"] for row in rows}), document["entries"])
        self.assertEqual(self.run_json("inspect", "ssd1")["label"], "sound")
        self.assertIn("faulty", self.run_command("verify", "--config", config).stdout)
        os.unlink(self.path("ssd1"))
        document = self.run_json("verify", "--config", config, code=1)
        self.assertIs(document["ok"], False)
        self.assertEqual(document["devices_faulty"], 1)
        self.assertIn("device ssd1: is missing",
                      self.run_command("verify", "--config", config, code=1).stdout)

    def test_recover(self):
        self.fails("store.catalog", "recover")
        self.fails("no SSD device", "recover", "--set", "store.catalog=none.db")
        maker = os.path.join(os.environ.get("KVT_BINARY_DIR", ""), "test_bench_verify")
        if not os.path.exists(maker):
            self.skipTest("test_bench_verify makes the store")
        subprocess.run([maker, "--make", "."], cwd=self.folder, check=True)
        config = self.put("store.ini", "[store]\ncatalog = catalog.db\n" + "".join(
            f"[device.ssd{i}]\ntier = ssd\nbackend = file\npath = ssd{i}\n"
            "capacity = 16MiB\ntimeout = 0\n" for i in range(2)))
        wanted = self.run_json("inspect", "--entries", "catalog.db")["entry"]
        self.fails("--replace", "recover", "--config", config)
        dry = self.run_json("recover", "--config", config, "--dry-run")
        self.assertEqual((dry["entries"], dry["written"]), (len(wanted), False))
        with open(self.path("catalog.db"), "r+b") as file:
            file.truncate(5000)
        document = self.run_json("recover", "--config", config, "--replace")
        self.assertEqual((document["entries"], document["complete"]), (len(wanted), True))
        self.assertEqual(document["kept"], "catalog.db.damaged-1")
        self.assertEqual(os.path.getsize(self.path("catalog.db.damaged-1")), 5000)
        self.assertEqual(self.run_json("inspect", "--entries", "catalog.db")["entry"], wanted)
        self.assertIs(self.run_json("verify", "--config", config)["ok"], True)
        text = self.run_command("recover", "--config", config, "--catalog", "other.db").stdout
        self.assertIn("the new catalog is other.db", text)
        self.assertIn(f"{len(wanted)} entries recovered", text)
        self.assertEqual(self.run_json("inspect", "other.db")["entries"], len(wanted))
        os.unlink(self.path("ssd1"))
        text = self.run_command("recover", "--config", config, "--replace", "--dry-run",
                                code=1).stdout
        self.assertIn("missing", text)

    def test_inspect(self):
        self.fails("nothing-here", "inspect", "nothing-here")
        self.put("blank", bytes(1 << 20))
        self.assertEqual(self.run_json("inspect", "blank")["label"], "blank")
        self.put("foreign", b"somebody else's bytes" * 4096)
        document = self.run_json("inspect", "foreign", code=2)
        self.assertEqual(document["schema"], "kvterrace-error-1")
        self.assertEqual(document["error"]["file"], "foreign")
        for magic in (b"KVTR\r\n\x1a\n", b"\xffVTR\r\n\x1a\n"):
            self.put("record", magic + bytes(8184))
            self.fails("record", "inspect", "record", code=2)
        os.mkfifo(self.path("pipe"))
        self.fails("neither a regular file", "inspect", "pipe")
        self.fails("neither a regular file", "inspect", ".")
        with sqlite3.connect(self.path("other.db")) as database:
            database.execute("CREATE TABLE t(x)")
        self.fails("other.db", "inspect", "other.db")

    def put_dump(self, name, edit=None, layers=2, tokens=64, heads=2, head_dim=32, queries=0):
        """A KV dump in safetensors, F16; edit may change {name: (dtype, shape, bytes)}."""
        def values(count, seed):
            return struct.pack(f"<{count}e", *[((i * 7919 + seed) % 1009) / 504.5 - 1
                                               for i in range(count)])
        tensors = {}
        for layer in range(layers):
            for side in "kv":
                tensors[f"{side}.{layer}"] = ("F16", [tokens, heads, head_dim],
                                              values(tokens * heads * head_dim, layer + ord(side)))
            if queries:
                tensors[f"q.{layer}"] = ("F16", [queries, 2 * heads, head_dim],
                                         values(queries * 2 * heads * head_dim, layer))
        if edit:
            edit(tensors)
        header, payload = {}, b""
        for key, (dtype, shape, data) in tensors.items():
            header[key] = {"dtype": dtype, "shape": shape,
                           "data_offsets": [len(payload), len(payload) + len(data)]}
            payload += data
        text = json.dumps(header).encode()
        self.put(name, struct.pack("<Q", len(text)) + text + payload)
        return tensors

    def read_dump(self, name):
        with open(self.path(name), "rb") as file:
            data = file.read()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:start])
        return {key: (row["dtype"], row["shape"],
                      data[start + row["data_offsets"][0]:start + row["data_offsets"][1]])
                for key, row in header.items() if key != "__metadata__"}

    def test_encode_decode(self):
        dump = self.put_dump("kv.safetensors", queries=3)
        document = self.run_json("encode", "kv.safetensors", "--variant", "lossless", "-o",
                                 "kv.kvt")
        self.assertEqual((document["layers"], document["tokens"], document["kv_heads"],
                          document["head_dim"], document["dtype"]), (2, 64, 2, 32, "fp16"))
        self.assertEqual((document["nmse_k"], document["nmse_v"], document["attention_error"]),
                         (0, 0, 0))
        self.assertEqual(os.path.getsize(self.path("kv.kvt")), document["record_bytes"])
        self.assertEqual(self.run_json("inspect", "kv.kvt")["variant"], "lossless")
        self.run_command("decode", "kv.kvt", "-o", "back.safetensors")
        back = self.read_dump("back.safetensors")
        self.assertEqual(back, {key: row for key, row in dump.items() if key[0] != "q"})
        document = self.run_json("encode", "kv.safetensors", "--variant", "kivi:k4v4,g32")
        self.assertEqual(document["variant"], "kivi:k4v4,g32")
        # 4 of 64 tokens are raw; K has two groups of 32 bits a channel, V 5 bits for each token.
        self.assertAlmostEqual(document["bits_per_element"], (304 + 64 + 300 + 64) / 128)
        for key in ("nmse_k", "nmse_v", "attention_error"):
            self.assertTrue(0 < document[key] < 0.2, document)
        self.assertIn("attention", self.run_command("encode", "kv.safetensors").stdout)
        self.put_dump("plain.safetensors", lambda t: t.update(other=("F16", [1], b"ab")))
        result = self.run_command("encode", "plain.safetensors")
        self.assertNotIn("attention", result.stdout)
        self.assertIn("1 tensors of other names", result.stderr)

    def test_encode_refusals(self):
        self.fails("none.safetensors", "encode", "none.safetensors")
        self.fails("none.kvt", "decode", "none.kvt", "-o", "x")
        self.put_dump("kv.safetensors")
        self.fails("unknown variant 'kivi:k5v5'", "encode", "kv.safetensors", "--variant",
                   "kivi:k5v5")
        other = ("F16", [64, 2, 16], bytes(64 * 2 * 16 * 2))
        for part, edit in (
                ("v.1 is missing", lambda t: t.pop("v.1")),
                ("k.1 is missing", lambda t: t.update({"k.2": t.pop("k.1")})),
                ("k.1 has another shape", lambda t: t.update({"k.1": other})),
                ("k.0: the element type", lambda t: t.update({"k.0": ("I16", *t["k.0"][1:])})),
                ("v.0: the element type", lambda t: t.update({"v.0": ("I16", *t["v.0"][1:])})),
                ("v.1 has another element type",
                 lambda t: t.update({"v.1": ("BF16", *t["v.1"][1:])})),
                ("no k.<layer>", lambda t: t.clear())):
            self.put_dump("bad.safetensors", edit)
            self.fails(part, "encode", "bad.safetensors", "-o", "bad.kvt")
        with open(self.path("kv.safetensors"), "rb") as file:
            whole = file.read()
        for size in (0, 4, 100, len(whole) - 1):
            self.put("cut.safetensors", whole[:size])
            self.fails("cut.safetensors", "encode", "cut.safetensors", "-o", "bad.kvt", code=2)
        self.assertFalse(os.path.exists(self.path("bad.kvt")))
        self.run_command("encode", "kv.safetensors", "-o", "kv.kvt")
        with open(self.path("kv.kvt"), "rb") as file:
            whole = file.read()
        for text in (whole[:-4096], whole[:100], b"", whole[:-5000] + b"?" + whole[-4999:]):
            self.put("bad.kvt", text)
            self.fails("bad.kvt", "decode", "bad.kvt", "-o", "x.safetensors", code=2)
        self.assertFalse(os.path.exists(self.path("x.safetensors")))

    def test_bench_stripe(self):
        def device(name, tier, backend, **keys):
            keys.update(tier=tier, backend=backend)
            return [part for key, value in keys.items()
                    for part in ("--set", f"device.{name}.{key}={value}")]

        memory = device("a", "ssd", "memory", capacity="32MiB")
        other = device("b", "ssd", "memory", capacity="32MiB", read_bandwidth="200MB/s")
        host = device("c", "dram", "memory", capacity="32MiB")
        document = self.run_json("kvlab", "stripe", "--quick", *memory, *other, *host)
        self.assertEqual(document["schema"], "kvterrace-bench-stripe-1")
        self.assertEqual([row["device"] for row in document["drives"]], ["a", "b"])
        rows = document["results"]
        self.assertEqual([row["layout"] for row in rows], ["proportional", "equal", "round_robin"])
        for row in rows:
            self.assertEqual(row["object_bytes"], 16 << 20)
            for key in ("read_bytes_per_s", "write_bytes_per_s", "device_sum_bytes_per_s", "ratio"):
                self.assertGreater(row[key], 0)
            self.assertIn("spread", row)
        with open(self.path("old"), "wb") as file:
            file.truncate(32 << 20)
        old = device("d", "ssd", "file", path="old")
        self.fails("may hold data", "kvlab", "stripe", "--quick", *memory, *old, code=1)
        self.fails("2 to 64", "kvlab", "stripe", "--quick", *memory)
        self.fails("unrecognized", "kvlab", "stripe", "--directory", ".")

    def test_bench_codecs(self):
        arguments = ["kvlab", "codecs", "--quick", "--variants",
                     "raw kivi:k4v4,g64;planes:k2v2,g64"]
        document = self.run_json(*arguments)
        self.fails("kvterrace report", *arguments, "--plot", "figure.svg")
        self.assertEqual(document["schema"], "kvterrace-bench-codecs-1")
        self.assertGreater(document["memcpy_bytes_per_s"], 0)
        self.assertIn("isa", document["machine"])
        rows = document["results"]
        for row in rows:
            for key in ("codec", "variant", "isa", "direction", "side", "bytes_per_s",
                        "memcpy_ratio", "bits_per_element", "ratio", "physical_bits_per_element",
                        "nmse_k", "nmse_v", "attention_error"):
                self.assertIn(key, row)
        timed = {(row["direction"], row["side"]) for row in rows if row["codec"] == "kivi"}
        for direction in ("encode", "decode"):
            self.assertIn((direction, "both"), timed)
        self.assertAlmostEqual(next(row["bits_per_element"] for row in rows
                                    if row["codec"] == "kivi"), 4.5, delta=0.005)
        self.assertTrue(document["checks"])
        os.environ["KVT_CPU"] = "scalar"
        try:
            document = self.run_json(*arguments[:-1], "raw")
            self.assertEqual({row["isa"] for row in document["results"]}, {"scalar"})
            os.environ["KVT_CPU"] = "mmx"
            self.fails("unknown instruction set 'mmx'", *arguments)
        finally:
            del os.environ["KVT_CPU"]
        document = self.run_json(*arguments[:-1], "raw", "--workers", "2")
        timed = [(row["direction"], row["threads"]) for row in document["results"]]
        self.assertEqual(sorted(timed), [("decode", 1), ("decode", 2), ("encode", 1),
                                         ("encode", 2)] * (len(timed) // 4))
        self.assertIn("memcpy_ratio", self.run_command(*arguments[:-1], "raw").stdout)
        self.fails("unknown variant 'fly'", "kvlab", "codecs", "--variants", "fly")
        self.fails("profile quality", "kvlab", "codecs", "--model", "x")


if __name__ == "__main__":
    unittest.main()
