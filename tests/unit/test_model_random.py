#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small random models that transformers makes and saves are to the reference decoder what they are
to transformers: Qwen2 with biases, tied and not, and Llama 3.1's rotation in several files, in both
spellings of config.json. Each comparison sees what it is for: without it likelihoods differ.

    test_model_random.py RUN_ESTIMATOR_MODEL

Skipped without torch, transformers and safetensors.
"""

import json
import os
import struct
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "support"))
sys.dont_write_bytecode = True
try:
    import safetensors  # noqa: F401, weights are saved with it
    import torch
    import transformers
    from model_case import TOLERANCE, ModelCase, run_decoder
except (ImportError, SystemExit) as error:
    print("skipped: %s" % error)
    sys.exit(77)

VOCAB, TOKENS, ASKED, ANSWER_TOKENS = 500, 1500, 900, 24
SHAPE = {"vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 3,
         "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096,
         "initializer_range": 0.12}
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 256}
ENTRY = {"tokens": [(i * i * 37 + i * 11) % VOCAB for i in range(TOKENS)], "context": ASKED - 20,
         "questions": [[ASKED - 20, ASKED, ASKED + 20]]}


class RandomTest(ModelCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def make(self, kind, config, shard="10GB"):
        """A model that is saved, its biases included at random."""
        torch.manual_seed(7)
        self.theirs = kind(config).float().eval()
        with torch.no_grad():
            for name, weight in self.theirs.named_parameters():
                if name.endswith(".bias"):
                    weight.normal_(0.0, 0.5)
        self.theirs.save_pretrained(self.folder, max_shard_size=shard)

    def edit(self, **keys):
        """Changes keys of config.json; those of None are taken out."""
        path = os.path.join(self.folder, "config.json")
        with open(path, encoding="utf-8") as file:
            config = {**json.load(file), **keys}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({key: value for key, value in config.items() if value is not None}, file)

    def nats(self):
        return next(run_decoder(self.folder, os.path.join(self.folder, "texts.jsonl"), 1))["nll"]

    def differs(self, wanted):
        apart = max(abs(a - b) for a, b in zip(self.nats(), wanted))
        self.assertGreater(apart, 100 * TOLERANCE)

    def test_qwen2(self):
        for tied in (True, False):
            with self.subTest(tied=tied):
                self.make(transformers.Qwen2ForCausalLM, transformers.Qwen2Config(
                    **SHAPE, tie_word_embeddings=tied, sliding_window=64, max_window_layers=1))
                row, = self.compare(self.folder, [ENTRY], ANSWER_TOKENS)
        self.zero("self_attn.k_proj.bias")
        self.differs(row["nll"])

    def zero(self, ends):
        """Fills the tensors with such names with zeros."""
        path = os.path.join(self.folder, "model.safetensors")
        with open(path, "rb") as file:
            data = bytearray(file.read())
        start = 8 + struct.unpack("<Q", data[:8])[0]
        for name, facts in json.loads(data[8:start]).items():
            if name.endswith(ends):
                first, end = facts["data_offsets"]
                data[start + first : start + end] = bytes(end - first)
        with open(path, "wb") as file:
            file.write(data)

    def test_llama_3_1_in_several_files(self):
        self.make(transformers.LlamaForCausalLM, transformers.LlamaConfig(
            **SHAPE, tie_word_embeddings=True, rope_theta=500000.0, rope_scaling=dict(SCALED)),
            shard="300KB")
        files = [name for name in os.listdir(self.folder) if name.endswith(".safetensors")]
        self.assertGreater(len(files), 3)
        row, = self.compare(self.folder, [ENTRY], ANSWER_TOKENS)
        wanted = row["nll"]
        for keys in ({"rope_scaling": SCALED, "rope_theta": 500000.0, "rope_parameters": None},
                     {"rope_parameters": {**SCALED, "rope_theta": 500000.0}, "rope_scaling": None,
                      "rope_theta": None}):
            self.edit(**keys)
            self.assertEqual(self.nats(), wanted)
        self.edit(rope_parameters=None, rope_theta=500000.0)
        self.differs(wanted)


if __name__ == "__main__":
    unittest.main()
