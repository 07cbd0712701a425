#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rows of lab/codec_rivals.py: the file behind which a stopped run goes on, and their means."""

import json
import os
import random
import sys
import tempfile
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(SOURCE, "lab"))
import codec_rivals  # noqa: E402

ROW = {"contender": "raw", "class": "code", "document": "a.py", "context": 7, "bits": 16.0,
       "kl_answers": 0.5}


class Rows(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "rows.json")

    def test_a_stopped_run_goes_on(self):
        table = codec_rivals.Table(self.path, "tiny")
        self.assertFalse(os.path.exists(self.path))
        table.add(ROW)
        # Killed while the next row was written: the rows before it are whole.
        with open(self.path + ".part", "w", encoding="utf-8") as file:
            file.write('{"schema": ')
        again = codec_rivals.Table(self.path, "tiny")
        self.assertEqual(again.rows, [ROW])
        self.assertIn(codec_rivals.Table.key(ROW), again.known)
        # The same document cut elsewhere, or of another contender, is another row.
        for change in ({"context": 8}, {"contender": "kivi"}, {"class": "qa"}):
            self.assertNotIn(codec_rivals.Table.key({**ROW, **change}), again.known)
        again.add({**ROW, "contender": "kivi"})
        self.assertEqual(len(codec_rivals.Table(self.path, "tiny").rows), 2)

    def test_without_a_file_nothing_is_written(self):
        codec_rivals.Table(None, "tiny").add(ROW)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_other_files_are_left_alone(self):
        codec_rivals.Table(self.path, "tiny").add(ROW)
        with open(self.path, encoding="utf-8") as file:
            whole = file.read()
        found = json.loads(whole)
        for text in ("", whole[:-9], "[]", "{}", json.dumps({**found, "schema": "another"}),
                     json.dumps({**found, "model": "other"}),
                     json.dumps({**found, "rows": [{"contender": "raw"}]}),
                     json.dumps({**found, "rows": 3})):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.assertRaises(codec_rivals.Refused, msg=text) as refused:
                codec_rivals.Table(self.path, "tiny")
            self.assertIn(self.path, str(refused.exception))
            with open(self.path, encoding="utf-8") as file:
                self.assertEqual(file.read(), text)

    def test_rows_of_a_contender_are_its_mean(self):
        rows = [{**ROW, "bits": bits, "kl_answers": kl} for bits, kl in ((2.0, 0.25), (4.0, 0.75))]
        line, = codec_rivals.tables(rows, random.Random(1))
        self.assertEqual((line["entries"], line["bits"]), (2, 3.0))
        self.assertEqual(line["kl_answers"], [0.5, 0.25, 0.75])
        self.assertNotIn("kl_recall", line)


if __name__ == "__main__":
    unittest.main()
