#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interrupting a bench ends it with exit code 130, and neither files nor processes stay.

    test_bench_interrupt.py COMMAND

Each bench is told to measure for longer than any test may take; how long it ran decides nothing.
"""

import os
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

    def process_group_is_empty(self, group):
        """Whether nobody of the group runs; what init has not yet collected does not run."""
        result = subprocess.run(["ps", "-e", "-o", "pgid=,stat="], capture_output=True, text=True,
                                check=True)
        return not any(line.split()[0] == str(group) and not line.split()[1].startswith("Z")
                       for line in result.stdout.splitlines())

    def interrupt(self, *arguments, number=signal.SIGINT, everyone=True, files=True):
        """Interrupts the bench as Ctrl-C does, or its first process alone."""
        with open(self.path("errors"), "w", encoding="utf-8") as errors:
            bench = subprocess.Popen([COMMAND, *arguments], cwd=self.folder,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=errors, start_new_session=True)
            try:
                self.wait_for("a scratch folder with files", lambda: not files or any(
                    names for _, _, names in os.walk(self.path("work"))))
                if not files:
                    time.sleep(0.2)
                (os.killpg if everyone else os.kill)(bench.pid, number)
                self.assertEqual(bench.wait(WAIT_SECONDS), 130)
                self.wait_for("no process is left",
                              lambda: self.process_group_is_empty(bench.pid))
            finally:
                if bench.poll() is None:
                    os.killpg(bench.pid, signal.SIGKILL)
                    bench.wait()
        self.assertEqual(os.listdir(self.path("work")), [])
        with open(self.path("errors"), encoding="utf-8") as errors:
            self.assertIn("interrupted", errors.read())

    def test_devices(self):
        os.mkdir(self.path("work"))
        self.interrupt("devices", "-D", "work", "--iterations", "20")
        self.interrupt("devices", "-D", "work", "--iterations", "20", number=signal.SIGTERM,
                       everyone=False)

    def test_benches_without_files(self):
        os.mkdir(self.path("work"))
        self.interrupt("stripe", "--iterations", "999999", files=False)
        self.interrupt("live", files=False)
        self.interrupt("policy", "--size", "100k", "--seeds", "7", files=False)


if __name__ == "__main__":
    unittest.main()
