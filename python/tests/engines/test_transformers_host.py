#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The host of a model of transformers: on the reference model every row that the command measures
through it is that of its own decoder, and attention that slides and caps is what transformers
computes."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from engine_case import EngineCase, need

ENGINE = "transformers"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
BUILD = os.environ.get("KVT_BINARY_DIR", os.path.join(ROOT, "build"))
REFERENCE = os.path.join(ROOT, "reference_model", "model")
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "vocab_size": 200,
         "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.25}


class Host(EngineCase):
    def folder(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        return made.name

    def measure(self, model, database):
        line = [os.path.join(BUILD, "kvterrace"), "profile", "quality", "--model", model,
                "--tokenizer", os.path.join(REFERENCE, "tokenizer.bin"), "--name", "ref", "--text",
                "recall=" + self.texts, "--contexts", "4", "--database", database, "--json",
                "--quiet", "--variants", "planes:k4v4,g64;entropy:k0.5v1;drop:stream,50"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_rows_are_those_of_the_decoder(self):
        folder = self.folder()
        self.texts = os.path.join(folder, "texts.jsonl")
        with open(self.texts, "wb") as file:
            subprocess.run([sys.executable, os.path.join(ROOT, "reference_model", "make_texts.py"),
                            "--context", "512", "--count", "4"], stdout=file, check=True)
        server = host.Server(host.Model(REFERENCE), os.path.join(folder, "model"))
        self.addCleanup(server.close)
        own = self.measure(REFERENCE, os.path.join(folder, "own.db"))
        theirs = self.measure(server.path, os.path.join(folder, "theirs.db"))
        self.assertEqual(own["parameters"], theirs["parameters"])
        for mine, other in zip(own["sets"][0]["variants"], theirs["sets"][0]["variants"]):
            for name in ("kl", "loss_mean", "top1", "attention_error", "recall"):
                if isinstance(mine.get(name), float):
                    self.assertAlmostEqual(mine[name], other[name],
                                           delta=2e-3 * max(abs(mine[name]), 1e-3), msg=name)

    def check_attention(self, config, kind):
        """Prefill in two parts, through the host, beside transformers' own eager attention."""
        folder = self.folder()
        torch.manual_seed(1)
        kind(config).save_pretrained(folder)
        model = host.Model(folder)
        ids = torch.randint(0, 200, (60,)).tolist()
        keys, values, _, _, _ = model.run(ids[:40], 0, None, None, 0, 1, None)
        past = [tuple(torch.from_numpy(side[i].copy()) for side in (keys, values))
                for i in range(model.layers)]
        _, _, logits, queries, attended = model.run(ids[40:], 40, past, None, 3, 17, (2, 5))
        plain = kind.from_pretrained(folder, attn_implementation="eager").eval()
        with torch.inference_mode():
            wanted = plain(torch.tensor([ids])).logits[0, 43:]
        self.assertLess((torch.from_numpy(logits) - wanted).abs().max(), 1e-4)
        self.assertEqual(queries[0].shape, (5, model.heads, model.head_dim))
        self.assertEqual(attended[0].shape, (5, model.heads, model.head_dim))
        self.assertEqual(model.grams().shape, (model.layers, model.kv_heads, model.head_dim,
                                               model.head_dim))

    def test_llama(self):
        self.check_attention(transformers.LlamaConfig(**SMALL), transformers.LlamaForCausalLM)

    def test_qwen(self):
        self.check_attention(transformers.Qwen2Config(**SMALL), transformers.Qwen2ForCausalLM)

    def test_sliding_windows(self):
        self.check_attention(transformers.MistralConfig(**SMALL, sliding_window=16),
                             transformers.MistralForCausalLM)

    def test_soft_caps(self):
        self.check_attention(transformers.Gemma2Config(**SMALL, head_dim=16, sliding_window=16,
                                                       query_pre_attn_scalar=16),
                             transformers.Gemma2ForCausalLM)


if __name__ == "__main__":
    need(ENGINE)
    import torch
    import transformers
    from kvterrace import model_host as host
    unittest.main()
