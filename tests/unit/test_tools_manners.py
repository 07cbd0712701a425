#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the command behaves beside its work: letters, helps, interruptions, standard input, progress,
and what it leaves behind.

    test_tools_manners.py COMMAND
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, WORKLOAD, CommandCase, command_line  # noqa: E402

WAIT_SECONDS = 120


class MannersTest(CommandCase):
    def commands(self):
        """Of both programs."""
        found = []
        for program in ([], ["kvlab"]):
            document = self.run_json(*program, "--help")
            self.assertEqual(document["schema"], "kvterrace-commands-1")
            found += document["commands"]
        return found

    def test_letters(self):
        """A letter means one long name, and a long name has one kind of argument, everywhere."""
        letters, names = {}, {}
        for command in self.commands():
            seen = set()
            for option in command["options"]:
                self.assertNotIn(option["name"], seen, command["name"])
                seen.add(option["name"])
                if option["letter"]:
                    name = letters.setdefault(option["letter"], option["name"])
                    self.assertEqual(name, option["name"], f"-{option['letter']}")
                    self.assertNotIn(option["letter"], "V", "-V is --version")
                argument = names.setdefault(option["name"], option["argument"] is not None)
                self.assertEqual(argument, option["argument"] is not None, option["name"])
        self.assertGreater(len(letters), 10)

    def test_every_help(self):
        for command in self.commands():
            words = command["name"].removeprefix("kvterrace").split()
            with self.subTest(words=words):
                text = self.run_command(*words, "--help").stdout
                self.assertIn("\nExample:\n", text)
                self.assertTrue(all(len(line) <= 80 for line in text.splitlines()), text)
                self.assertEqual(text, self.run_command(*words, "-h").stdout)
                own = self.run_json(*words, "--help")["commands"][0]
                self.assertEqual(own, command)
        self.assertIn("\nPolicies: none lru", self.run_command("replay", "--help").stdout)
        self.assertIn("planes:k4v4,g64", self.run_command("encode", "--help").stdout)

    def test_words_for_completion(self):
        for word in ("-v", "-V"):
            self.assertEqual(self.run_command(word).stdout, self.run_command("version").stdout)
        self.fails("did you mean 'replay'?", "help", "replya")
        table = self.run_json("--help")
        self.assertIn("planes:k4v4,g64", table["variants"])
        self.assertIn("gdsf", table["policies"])

    def test_settings(self):
        every = self.run_json("settings")["settings"]
        some = self.run_json("settings", "tier.dram", "workload")["settings"]
        self.assertEqual(some, [row for row in every
                                if row["name"].startswith(("tier.dram.", "workload."))])
        self.assertIn("tier.dram.capacity", self.run_command("settings", "tier").stdout)

    def test_page_of_settings(self):
        """docs/CONFIGURATION.md is what tools/make_manual.py writes."""
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
        subprocess.run([sys.executable, os.path.join(source, "tools", "make_manual.py"), COMMAND,
                        self.folder], check=True)
        with open(os.path.join(source, "docs", "CONFIGURATION.md"), encoding="utf-8") as file:
            committed = file.read()
        with open(self.path("CONFIGURATION.md"), encoding="utf-8") as file:
            self.assertEqual(file.read(), committed,
                             "copy build/manual/CONFIGURATION.md to docs/")
        for row in self.run_json("settings")["settings"]:
            alike = re.sub(r"^tier\.(hbm|dram|ssd)\.", "tier.NAME.", row["name"])
            self.assertTrue(any(f"| `{name}` |" in committed for name in (row["name"], alike)),
                            row["name"])

    def test_forms_of_options(self):
        base = ["replay", *WORKLOAD, "--policy", "lru"]
        hashes = {self.run_json(*base, *words)["results"][0]["plan_hash"] for words in (
            ["--seed", "7"], ["--seed=7"], ["-S", "7"], ["-S7"], ["-qS", "7"], ["-qS7"])}
        self.assertEqual(len(hashes), 1)
        self.assertEqual(self.run_command(*base, "--", code=0).stderr, "")
        self.assertEqual(len(self.run_json(*base, "--seeds", "2")["results"]), 2)
        counted = self.run_json("replay", *WORKLOAD, "--set", "workload.requests=0.1k", "--policy",
                                "lru", "--set", "replay.warmup=0")
        self.assertEqual(counted["results"][0]["requests"], 100)

    def test_standard_input(self):
        rows = "".join(json.dumps({"timestamp": i * 1000, "input_length": 1024, "output_length": 1,
                                   "hash_ids": [i % 3, 10 + i % 3]}) + "\n" for i in range(30))
        self.put("t.jsonl", rows)
        named = json.loads(self.run_command("replay", "--trace", "t.jsonl", "--policy", "lru",
                                            "--json").stdout)
        read = subprocess.run([COMMAND, "replay", "--trace", "-", "--policy", "lru", "--json"],
                              input=rows, text=True, capture_output=True, check=True, timeout=60)
        for key in ("requests", "plan_hash", "block_refs"):
            self.assertEqual(json.loads(read.stdout)["results"][0][key], named["results"][0][key])

    def interrupted(self, arguments, ready):
        """What a run printed that was interrupted once ready() was true."""
        with open(self.path("out"), "w+", encoding="utf-8") as out, open(
                self.path("errors"), "w+", encoding="utf-8") as errors:
            run = subprocess.Popen(command_line(*arguments), cwd=self.folder, stdout=out,
                                   stdin=subprocess.DEVNULL, stderr=errors)
            try:
                end = time.monotonic() + WAIT_SECONDS
                while not ready():
                    self.assertLess(time.monotonic(), end)
                    self.assertIsNone(run.poll())
                    time.sleep(0.01)
                run.send_signal(signal.SIGINT)
                self.assertEqual(run.wait(WAIT_SECONDS), 130)
            finally:
                if run.poll() is None:
                    run.kill()
                    run.wait()
            out.seek(0)
            errors.seek(0)
            return out.read(), errors.read()

    def test_interrupted_replay(self):
        """The runs that were finished are printed; a plan log is there when its run is finished."""
        base = ["replay", *WORKLOAD, "--set", "workload.requests=20k", "--policy", "lru,utility",
                "--seeds", "1000", "--plan-log", "log"]
        first = self.path("log.utility.1")
        out, errors = self.interrupted([*base, "--json"], lambda: os.path.exists(first))
        results = json.loads(out)["results"]
        self.assertTrue(2 <= len(results) < 2000)
        self.assertIn((("utility"), 1), {(row["policy"], row["seed"]) for row in results})
        self.assertIn(f"{len(results)} of 2000 runs were finished", errors)
        logs = {name for name in os.listdir(self.folder) if name.startswith("log.")}
        self.assertEqual(len(logs), len(results))
        for name in logs:
            os.unlink(self.path(name))
        out, _ = self.interrupted(base, lambda: os.path.exists(first))
        self.assertIn("utility", out)

    def test_interrupted_measurement(self):
        """A profile that was begun and holds no run is removed."""
        _, errors = self.interrupted(
            ["profile", "devices", "--seconds", "1h", "--database", "new.db"],
            lambda: any(name.startswith("kvterrace-") for name in os.listdir(self.folder)))
        self.assertIn("interrupted", errors)
        left = {name for name in os.listdir(self.folder) if not name.startswith("new.db")}
        self.assertEqual(left, {"out", "errors"})

    def test_exit_codes(self):
        """The manual page's codes, and none else."""
        document = self.run_json("--help")
        self.assertEqual(list(document["exit_codes"]), ["0", "1", "2", "77", "130"])
        shipped = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles",
                               "llama-3.1-8b.json")
        self.run_command("profile", "import", shipped, "--database", "a.db")
        self.run_command("profile", "import", "--source", "s", "--database", "b.db",
                         self.put_rows("m.json", "[model]\nmodel,layers\nm,32\n"))
        self.run_command("profile", "diff", "a.db", "a.db")
        self.run_command("profile", "diff", "a.db", "b.db", code=1)
        self.run_command("profile", "diff", "a.db", code=2)
        self.run_command("replay", *WORKLOAD, "--mode", "live", "--set", "device.h.tier=hbm",
                         "--set", "device.h.backend=hbm", "--set", "device.h.gpu=99", "--set",
                         "device.h.capacity=64MiB", code=77)

    def test_a_database_that_was_read(self):
        self.run_command("profile", "import",
                         self.put_rows("m.json", "[model]\nmodel,layers\nm,32\n"),
                         "--source", "s", "--database", "p.db")
        with open(self.path("p.db"), "rb") as file:
            before = file.read()
        for words in (["profile", "show", "--database"], ["profile", "export", "--database"],
                      ["profile", "diff", "p.db"], ["inspect"], ["replay", *WORKLOAD, "--policy",
                                                                "lru", "--database"]):
            self.run_command(*words, "p.db")
            self.assertEqual(sorted(os.listdir(self.folder)), ["m.json", "p.db"], words)
        with open(self.path("p.db"), "rb") as file:
            self.assertEqual(file.read(), before)
        document = self.run_json("inspect", "p.db")
        self.assertEqual((document["kind"], document["rows"]), ("profile", {"model": 1}))

    def test_progress(self):
        """A bar with the time that is gone and left, on a terminal alone."""
        master, slave = pty.openpty()
        base = [COMMAND, "replay", *WORKLOAD, "--set", "workload.requests=20k", "--policy", "lru",
                "--seeds", "1000"]
        run = subprocess.Popen(base, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=slave,
                               stdin=subprocess.DEVNULL)
        os.close(slave)
        text, end = b"", time.monotonic() + WAIT_SECONDS
        try:
            while b" left" not in text:
                self.assertLess(time.monotonic(), end, text[-200:])
                if select.select([master], [], [], 1)[0]:
                    text += os.read(master, 65536)
            run.send_signal(signal.SIGTERM)
            self.assertEqual(run.wait(WAIT_SECONDS), 130)
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()
            os.close(master)
        self.assertIn(b"lru, seed ", text)
        self.assertRegex(text, rb"\d s gone, .*(s|h) left")
        plain = self.run_command("replay", *WORKLOAD, "--policy", "lru").stderr
        self.assertNotIn("%", plain)


if __name__ == "__main__":
    unittest.main()
