#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvterrace clear, with an engine of this process: what it sets there, and what it refuses.

    test_tools_clear.py COMMAND
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase  # noqa: E402
from played_engine import Engine  # noqa: E402


class ClearTest(CommandCase):
    def test_clear(self):
        engine = Engine()
        self.addCleanup(engine.close)
        lines = ("[tier.dram]\ncapacity = 1GiB\n[tier.remote]\nnamespace = model\n"
                 "[remote.cell]\naddress = 127.0.0.1:%d\n")
        config = self.put("store.ini", lines % engine.port)
        self.fails("says what to clear", "clear", "--config", config)
        self.fails("says what to clear", "clear", "--config", config, "--space", "0" * 16,
                   "--everything")
        self.fails("16 hexadecimal digits", "clear", "--config", config, "--space", "12")
        self.fails("from 0 to 255", "clear", "--config", config, "--tenant", "256")
        bare = self.put("bare.ini", "[tier.dram]\ncapacity = 1GiB\n")
        self.fails("remote.NAME", "clear", "--config", bare, "--everything")
        space = "0123456789abcdef"
        self.run_command("clear", "--config", config, "--space", space)
        first = engine.values(b":s" + space.encode() + b":")
        self.assertEqual((len(first), len(set(first))), (8, 1))
        self.assertIs(self.run_json("clear", "--config", config, "--space", space)["cleared"], True)
        self.assertNotEqual(engine.values(b":s" + space.encode() + b":"), first)
        self.run_command("clear", "--config", config, "--tenant", "3")
        self.assertEqual(len(engine.values(b":t%016x:" % 3)), 8)
        self.assertEqual(len(engine.values(b":t")), 8)
        self.assertIn("no copy", self.run_command("clear", "--config", config,
                                                  "--everything").stdout)
        self.assertEqual(len(engine.values(b":t")), 8 * 256)
        engine.close()
        self.fails("not taken", "clear", "--config", config, "--everything", code=1)


if __name__ == "__main__":
    unittest.main()
