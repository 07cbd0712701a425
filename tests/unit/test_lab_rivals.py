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


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "rows.json")


class Rows(Case):
    def test_a_stopped_run_goes_on(self):
        table = codec_rivals.Table(self.path, model="tiny", lesson=[])
        self.assertFalse(os.path.exists(self.path))
        table.add(ROW)
        # Killed while the next row was written: the rows before it are whole.
        with open(self.path + ".part", "w", encoding="utf-8") as file:
            file.write('{"schema": ')
        again = codec_rivals.Table(self.path, model="tiny", lesson=[])
        self.assertEqual(again.rows, [ROW])
        self.assertIn(codec_rivals.Table.key(ROW), again.known)
        # The same document cut elsewhere, or of another contender, is another row.
        for change in ({"context": 8}, {"contender": "kivi"}, {"class": "qa"}):
            self.assertNotIn(codec_rivals.Table.key({**ROW, **change}), again.known)
        again.add({**ROW, "contender": "kivi"})
        self.assertEqual(len(codec_rivals.Table(self.path, model="tiny", lesson=[]).rows), 2)

    def test_without_a_file_nothing_is_written(self):
        codec_rivals.Table(None, model="tiny").add(ROW)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_other_files_are_left_alone(self):
        codec_rivals.Table(self.path, model="tiny", lesson=[]).add(ROW)
        with open(self.path, encoding="utf-8") as file:
            whole = file.read()
        found = json.loads(whole)
        for text in ("", whole[:-9], "[]", "{}", json.dumps({**found, "schema": "another"}),
                     json.dumps({**found, "model": "other"}),
                     json.dumps({**found, "lesson": [["b.py", 7]]}),
                     json.dumps({**found, "rows": [{"contender": "raw"}]}),
                     json.dumps({**found, "rows": 3})):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(text)
            with self.assertRaises(codec_rivals.Refused, msg=text) as refused:
                codec_rivals.Table(self.path, model="tiny", lesson=[])
            self.assertIn(self.path, str(refused.exception))
            with open(self.path, encoding="utf-8") as file:
                self.assertEqual(file.read(), text)

    def test_a_run_of_hours_learns_at_once_where_it_cannot_write(self):
        with self.assertRaises(codec_rivals.Refused):
            codec_rivals.Table(os.path.join(self.folder.name, "absent", "rows.json"))

    def test_rows_of_a_contender_are_its_mean(self):
        rows = [{**ROW, "bits": bits, "kl_answers": kl} for bits, kl in ((2.0, 0.25), (4.0, 0.75))]
        line, = codec_rivals.tables(rows, random.Random(1))
        self.assertEqual((line["entries"], line["bits"]), (2, 3.0))
        self.assertEqual(line["kl_answers"], [0.5, 0.25, 0.75])
        self.assertNotIn("kl_recall", line)


class Entries(Case):
    def read(self, text, *arguments):
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)
        return codec_rivals.entries_of(self.path, *arguments)

    def test_one_of_each_document(self):
        lines = [{"tokens": [1, 2, 3], "context": c, "document": d}
                 for c, d in ((2, "a"), (1, "a"), (2, "b"), (1, "c"))]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        self.assertEqual(self.read(text, 9), [lines[0], lines[2], lines[3]])
        self.assertEqual(self.read(text, 1, 1), [lines[2]])
        self.assertEqual(self.read(text, 9, 0, 1), [lines[1], lines[3]])

    def test_lines_of_another_kind_are_refused(self):
        for text in ("{", "7", '{"text": "a"}', '{"tokens": [1], "document": "a"}',
                     '{"tokens": [1], "context": 1, "document": "a"}',
                     '{"tokens": [1, 2], "context": 1}'):
            with self.assertRaises(codec_rivals.Refused, msg=text) as refused:
                self.read(text, 9)
            self.assertIn(self.path, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
