#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference model's vocabulary and texts: tokens and strings agree, texts are as they say, and
a seed gives what the repository holds."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(SOURCE, "reference_model")
sys.path.insert(0, FOLDER)
sys.dont_write_bytecode = True
import make_texts  # noqa: E402
import texts  # noqa: E402
import vocabulary  # noqa: E402


class ReferenceTextsTest(unittest.TestCase):
    def test_strings_become_the_tokens_they_were_made_of(self):
        for i in range(12):
            draw = texts.Draw("strings %d" % i)
            text = texts.evaluation_text(draw, 100)
            for _ in range(20):
                draw.choice([text.question, text.mention, text.copy, text.count, text.fact])()
            ids = [vocabulary.BEGIN] + [vocabulary.ID[part] for part in text.parts]
            self.assertEqual(vocabulary.encode(text.string()), ids)

    def test_training_texts_have_their_length_and_repeat(self):
        for length in (64, 65, 513):
            ids, kinds = texts.training_text(texts.Draw("7"), length)
            self.assertEqual((len(ids), len(kinds)), (length, length))
            self.assertEqual(texts.training_text(texts.Draw("7"), length)[0], ids)
            self.assertNotEqual(texts.training_text(texts.Draw("8"), length)[0], ids)
            self.assertIn(texts.ANSWER, kinds)

    def test_answers_are_facts_of_the_context(self):
        for length in (64, 200, 300):
            row = make_texts.make(texts.Draw("row %d" % length), length, 100)
            text, context = row["text"], row["text"][:row["context"]]
            self.assertEqual(len(vocabulary.encode(context)), length)
            self.assertGreaterEqual(len(vocabulary.encode(text)), length + 100)
            self.assertEqual(row["questions"][-1][2], len(text))
            for question, answer, end in row["questions"]:
                self.assertEqual(text[question:question + 2], "? ")
                fact = text[question + 2:end]
                self.assertIn(" " + fact, " " + context)
                key = text[question + 2:answer]
                self.assertEqual((" " + context).count(" " + key + " "), 1, key)

    def test_files_of_the_repository_are_reproduced(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tokenizer.bin")
            vocabulary.write(path)
            with open(path, "rb") as made, open(os.path.join(FOLDER, "model", "tokenizer.bin"),
                                                "rb") as held:
                self.assertEqual(made.read(), held.read())
        command = [sys.executable, os.path.join(FOLDER, "make_texts.py"), "--context", "512",
                   "--continuation", "80", "--count", "40"]
        made = subprocess.run(command, capture_output=True, check=True).stdout
        rows = [json.loads(line) for line in io.BytesIO(made)]
        self.assertEqual(len(rows), 40)
        with open(os.path.join(FOLDER, "texts", "SHA256SUMS"), encoding="utf-8") as sums:
            held = dict(reversed(line.split()) for line in sums)
        self.assertEqual(hashlib.sha256(made).hexdigest(), held["recall-512.jsonl"])

    def test_weights_are_what_their_sums_say(self):
        with open(os.path.join(FOLDER, "model", "SHA256SUMS"), encoding="utf-8") as sums:
            for line in sums:
                digest, name = line.split()
                with open(os.path.join(FOLDER, "model", name), "rb") as file:
                    self.assertEqual(hashlib.sha256(file.read()).hexdigest(), digest, name)


if __name__ == "__main__":
    unittest.main()
