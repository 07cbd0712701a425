#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encrypted devices on the command line: rekey, check-config, the bench.

    test_tools_keep.py COMMAND
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase  # noqa: E402


class KeepTest(CommandCase):
    def test_bench_keep(self):
        sets = [word for name in ("a", "b") for text in ("tier=ssd", "backend=memory",
                                                         "capacity=32MiB")
                for word in ("--set", f"device.{name}.{text}")]
        document = self.run_json("kvlab", "keep", "--quick", "--part", "seal", *sets)
        self.assertNotIn("reopen", document)
        self.assertEqual(document["schema"], "kvterrace-bench-keep-1")
        cores = document["seal_cores"]
        self.assertEqual([row["unit_bytes"] for row in cores], [4096, 16384, 65536])
        self.assertEqual([row["used"] for row in cores], [True, False, False])
        rows = document["seal_drives"]
        self.assertEqual([(row["drives"], row["encrypted"]) for row in rows],
                         [(1, False), (1, True), (2, False), (2, True)])
        for row in rows:
            self.assertGreater(row["read_bytes_per_s"], 0)
            self.assertGreater(row["cpu_s_per_gb"], 0)

    def test_bench_reopen(self):
        document = self.run_json("kvlab", "keep", "--quick", "--part", "reopen")
        self.assertEqual([(opened["early"], opened["churned"], opened["entries"], opened["known"],
                           opened["wrong"]) for opened in document["reopen"]],
                         [(False, False, 1000, 1000, 0), (True, False, 1000, 1000, 0),
                          (False, True, 1000, 1000, 0), (True, True, 1000, 1000, 0)])
        self.assertEqual(document["wrong"], 0)

    def sound(self, document, part, rows):
        self.assertEqual([(row["part"], row["wrong"], row["lost"])
                          for row in document["keep_faults"]], [(part, 0, 0)] * rows)

    def test_bench_scrub(self):
        document = self.run_json("kvlab", "keep", "--quick", "--part", "scrub")
        self.sound(document, "scrub", 1)
        row, = document["scrub"]
        self.assertEqual((row["planted"], row["found"], row["left"]), (40, 40, 0))
        self.assertGreater(row["pairs"], 0)
        self.assertLessEqual(row["found_seconds"], row["period_seconds"])
        drives = document["scrub_drives"]
        self.assertEqual(sum(drive["faults"] for drive in drives), 40)
        self.assertGreater(sum(drive["faults"] > 0 for drive in drives), 1)

    def test_bench_slow(self):
        document = self.run_json("kvlab", "keep", "--quick", "--part", "slow")
        self.sound(document, "slow", 2)
        self.assertEqual([(row["delay_ms"], row["kind"]) for row in document["slow"]],
                         [(50, "reads"), (50, "writes"), (2000, "reads"), (2000, "writes")])
        for row in document["slow"]:
            self.assertGreater(row["share_before"], 0.05)
            self.assertGreater(row["others_bytes_per_s"], 0)
        self.fails("scrub", "kvlab", "keep", "--part", "scrubs")

    def write_drive(self, magic):
        with open(self.path("rekey.drive"), "wb") as file:
            file.write(magic)
            file.truncate(8 << 20)

    def test_rekey(self):
        keys = ["%064x" % number for number in (1, 2)]
        config, keyfile = self.path("rekey.ini"), self.path("rekey.key")

        def write_keys(*lines, mode=0o600):
            with open(keyfile, "w", encoding="ascii") as file:
                os.fchmod(file.fileno(), mode)
                file.write("\n".join(lines) + "\n")

        with open(config, "w", encoding="ascii") as file:
            file.write(f"[store]\ncatalog={self.path('rekey.db')}\n[device.d0]\ntier=ssd\n"
                       f"backend=file\npath={self.path('rekey.drive')}\ncapacity=8MiB\n"
                       f"key_file={keyfile}\n")
        write_keys(keys[0], mode=0o644)
        self.fails("may be read by others", "check-config", config)
        write_keys(keys[0])
        self.fails("is not there", "rekey", "--config", config)
        self.run_command("check-config", config)
        self.write_drive(b"KVTLABEL")
        self.fails("is not encrypted, and a key is set", "check-config", config)
        self.fails("is not encrypted: drain", "rekey", "--config", config, code=1)
        with open(config, encoding="ascii") as file:
            lines = [line for line in file if not line.startswith("key_file")]
        with open(config, "w", encoding="ascii") as file:
            file.writelines(lines)
        self.write_drive(b"KVTSEALD")
        self.fails("is encrypted, and neither key_file", "check-config", config)


if __name__ == "__main__":
    unittest.main()
