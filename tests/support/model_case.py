# SPDX-License-Identifier: Apache-2.0
"""What tests share that hold the reference decoder to transformers: both run the same token ids,
every token's likelihood is the same within 1e-3 nat, and greedy answers are transformers' own
within as much. The program run_estimator_model is the test program's first argument. Needs torch.
"""

import copy
import json
import os
import subprocess
import sys
import unittest

import torch

RUNNER = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "run_estimator_model"
TOLERANCE = 1e-3
PIECE = 512


def run_decoder(folder, texts, answer_tokens):
    """The decoder's rows, one for each text of a file."""
    with subprocess.Popen([RUNNER, folder, texts, str(answer_tokens)], stdout=subprocess.PIPE,
                          text=True) as ours:
        for line in ours.stdout:
            yield json.loads(line)
    if ours.returncode != 0:
        raise AssertionError("%s: status %d" % (folder, ours.returncode))


class ModelCase(unittest.TestCase):
    theirs = None  # a model of transformers in fp32

    def forward(self, ids, first, end, cache=None):
        """ids[first:end] on top of a cache, piece by piece: nats of the token after each given all
        before it, where there is one; the last logits; the cache that follows."""
        nats, logits = [], None
        with torch.no_grad():
            for at in range(first, end, PIECE):
                piece = ids[at : min(at + PIECE, end)]
                out = self.theirs(torch.tensor([piece]), past_key_values=cache, use_cache=True)
                cache, logits = out.past_key_values, out.logits[0]
                wanted = torch.tensor(ids[at + 1 : at + 1 + len(piece)])
                nats.append(torch.nn.functional.cross_entropy(
                    logits[: len(wanted)].double(), wanted, reduction="none"))
        return torch.cat(nats), logits[-1].double(), cache

    def compare(self, folder, entries, answer_tokens):
        """Runs the decoder on a folder over entries of token ids (docs/PROFILE.md)."""
        path = os.path.join(folder, "texts.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)
        rows = list(run_decoder(folder, path, answer_tokens))
        self.assertEqual(len(rows), len(entries))
        for entry, row in zip(entries, rows):
            ids, asked = entry["tokens"], entry["questions"][0][1]
            nats, logits, cache = self.forward(ids, 0, asked)
            rest, _, _ = self.forward(ids, asked, len(ids), copy.deepcopy(cache))
            self.compare_likelihood(torch.cat([nats, rest]), row["nll"])
            self.compare_answer(logits, cache, row["greedy"], answer_tokens)
        return rows

    def compare_likelihood(self, theirs, ours):
        self.assertEqual(len(ours), len(theirs))
        apart = (torch.tensor(ours, dtype=torch.float64) - theirs).abs()
        mean = abs(sum(ours) / len(ours) - float(theirs.mean()))
        print("%d tokens: %.6f nat per token, mean apart by %.1e, one token by at most %.1e"
              % (len(ours) + 1, float(theirs.mean()), mean, float(apart.max())), flush=True)
        self.assertGreater(float(theirs.mean()), 0.5)
        self.assertLessEqual(float(apart.max()), TOLERANCE)

    def compare_answer(self, logits, cache, ours, count):
        """Every token is the likeliest to transformers, given those before, within the
        tolerance; a tie that is closer may go either way."""
        self.assertEqual(len(ours), count)
        first, behind = 0, 0.0
        for at, token in enumerate(ours):
            if at > 0:
                _, logits, cache = self.forward(ours, at - 1, at, cache)
            gap = float(logits.max() - logits[token])
            first, behind = first + (gap == 0.0), max(behind, gap)
        print("  answer: %d of %d tokens are transformers' first; behind by at most %.1e nat"
              % (first, count, behind), flush=True)
        self.assertLessEqual(behind, TOLERANCE)
