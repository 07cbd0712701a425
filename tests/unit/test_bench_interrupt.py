#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interrupting a bench ends it with exit code 130, and neither files nor processes stay.

    test_bench_interrupt.py COMMAND

Each bench is told to measure for longer than any test may take; how long it ran decides nothing.
"""

import os
import re
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import COMMAND, CommandCase  # noqa: E402

WAIT_SECONDS = 120


class InterruptTest(CommandCase):
    def wait_for(self, what, ready):
        end = time.monotonic() + WAIT_SECONDS
        while not ready():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)

    def awaits_interrupts(self, process):
        """Whether the process catches SIGTERM; SIGINT is caught by Python as well, whose handlers a
        process has until it is wholly another program."""
        with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
            caught = re.search(r"^SigCgt:\s*(\w+)", file.read(), re.M).group(1)
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    def interrupt(self, *arguments, number=signal.SIGINT):
        with open(self.path("errors"), "w", encoding="utf-8") as errors:
            bench = subprocess.Popen([COMMAND, *arguments], cwd=self.folder,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=errors, start_new_session=True)
            try:
                self.wait_for("the bench awaits interruptions",
                              lambda: self.awaits_interrupts(bench))
                os.killpg(bench.pid, number)
                self.assertEqual(bench.wait(WAIT_SECONDS), 130)
                with self.assertRaises(ProcessLookupError):  # no process is left
                    os.killpg(bench.pid, 0)
            finally:
                if bench.poll() is None:
                    os.killpg(bench.pid, signal.SIGKILL)
                    bench.wait()
        self.assertEqual(os.listdir(self.folder), ["errors"])
        with open(self.path("errors"), encoding="utf-8") as errors:
            self.assertIn("interrupted", errors.read())

    def test_measurements_end_at_once(self):
        self.interrupt("stripe", "--iterations", "999999")
        self.interrupt("live", number=signal.SIGTERM)

    def test_runs_end_between_two(self):
        self.interrupt("policy", "--size", "100k", "--seeds", "7")


if __name__ == "__main__":
    unittest.main()
