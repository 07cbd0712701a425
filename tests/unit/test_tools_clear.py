#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvterrace clear, with an engine of this process: what it sets there, and what it refuses.

    test_tools_clear.py COMMAND
"""

import os
import socketserver
import sys
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase  # noqa: E402


class Engine:
    """A server that knows HELLO and SET."""

    def __init__(self):
        self.kept, engine = {}, self

        class Talk(socketserver.StreamRequestHandler):
            def handle(self):
                while line := self.rfile.readline():
                    words = []
                    for _ in range(int(line[1:])):
                        words.append(self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2])
                    if words[0] == b"SET":
                        engine.kept[words[1]] = words[2]
                    self.wfile.write(b"%0\r\n" if words[0] == b"HELLO" else b"+OK\r\n")

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talk)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def values(self, part):
        return [value for key, value in sorted(self.kept.items()) if part in key]

    def close(self):
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
        self.server = None


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
