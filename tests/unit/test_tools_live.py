#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the demo shows: a live replay leaves nothing of its own, and the profile as it was, in
whichever order the policies run, whether or not the stores learn, and when it is interrupted; and a
profile that was measured on a busy machine says so.

    test_tools_live.py COMMAND

Nothing here depends on how long anything takes.
"""

import glob
import os
import signal
import sqlite3
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, CommandCase  # noqa: E402

LIVE = """
[store]
profile = p.db
{more}
[tier.dram]
capacity = 2GB
[tier.ssd]
capacity = 8GB
[device.s]
tier = ssd
backend = file
path = s.bin
capacity = 64MiB
"""
REPLAY = ["replay", "--mode", "live", "--config", "live.ini", "--workload", "poisson", "--scale",
          "0.004", "--set", "workload.contexts=20", "--set", "workload.tokens_max=8000"]


class LiveTest(CommandCase):
    def setUp(self):
        super().setUp()
        self.put("live.ini", LIVE.format(more=""))
        self.run_command("profile", "codecs", "--quick", "--seconds", "1ms", "--database", "p.db")

    def start(self, *arguments):
        return subprocess.Popen([COMMAND, *REPLAY, *arguments], cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                stdin=subprocess.DEVNULL)

    def rows(self):
        """Everything in the profile."""
        database = sqlite3.connect(self.path("p.db"))
        names = [name for name, in database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        rows = {name: database.execute(f"SELECT * FROM \"{name}\"").fetchall() for name in names}
        database.close()
        return rows

    def expect_nothing_left(self, run, before):
        self.assertEqual(self.rows(), before)
        self.assertEqual(glob.glob(f"/tmp/kvterrace-live-{run.pid}-*"), [])
        self.assertFalse(os.path.exists(self.path("s.bin")))

    def test_profile_stays_as_it_is(self):
        before = self.rows()
        short = ["--set", "workload.requests=40", "--set", "workload.rate=40"]
        for learn in ("yes", "no"):
            self.put("live.ini", LIVE.format(more=f"learn = {learn}\n"))
            for order in ("lru,utility", "utility,lru"):
                self.finish(before, *short, "--policy", order)
        self.put("live.ini", LIVE.format(more=""))
        self.finish(before, *short, "--policy", "lru", "--set", "store.learn=no")

    def finish(self, before, *arguments):
        run = self.start(*arguments)
        _, error = run.communicate(timeout=1000)
        self.assertEqual(run.returncode, 0, error)
        self.expect_nothing_left(run, before)

    def test_interruption_leaves_nothing(self):
        before = self.rows()
        for number in (signal.SIGINT, signal.SIGTERM):
            run = self.start("--policy", "lru,utility", "--set", "workload.rate=0.01")
            while not os.path.exists(self.path("s.bin")) and run.poll() is None:
                time.sleep(0.01)
            run.send_signal(number)
            output, error = run.communicate(timeout=100)
            self.assertNotIn(run.returncode, (0, -number), error)
            self.assertEqual(output, "")
            self.expect_nothing_left(run, before)


class BusyTest(CommandCase):
    """A profile says when the machine was too busy to be measured."""

    def change(self, sql):
        database = sqlite3.connect(self.path("p.db"))
        database.executescript(sql)
        database.close()

    def expect(self, busy):
        device = self.run_json("profile", "show", "--database", "p.db")["devices"][0]
        self.assertIs(device["busy"], busy, device)
        text = self.run_command("profile", "show", "--database", "p.db").stdout
        self.assertEqual("warning: this machine was busy" in text, busy, text)

    def test_busy_machine_is_told(self):
        self.run_command("profile", "devices", "--quick", "--seconds", "1ms", "--database", "p.db",
                         "--set", "device.one.tier=dram", "--set", "device.one.backend=memory",
                         "--set", "device.one.capacity=16MiB")
        quiet = ("UPDATE device_fit SET residual = 0.2; UPDATE device_point SET "
                 "bytes_per_s_min = 0.8 * bytes_per_s, bytes_per_s_max = 1.1 * bytes_per_s;")
        self.change(quiet)
        self.expect(False)
        self.change("UPDATE device_fit SET residual = 2.5 WHERE kind = 1")
        self.expect(True)
        self.change(quiet + "UPDATE device_point SET bytes_per_s_min = 0.4 * bytes_per_s")
        self.expect(True)


if __name__ == "__main__":
    unittest.main()
