#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM on the processor with rows that have a shape: kvterrace's own order, and lossy forms."""

import math
import unittest

from engine_case import Calibrated, VllmCase, disk_store, need, recall_prompts, recall_texts

ENGINE = "vllm"
VOCABULARY = 672


def loss(exact, other):
    """Kullback and Leibler's divergence of two distributions over the vocabulary."""
    assert len(exact) == len(other) == VOCABULARY
    return sum(math.exp(said) * (said - other[token]) for token, said in exact.items()
               if said > -50)


class Forms(VllmCase):
    chunk = 256

    def test_rows_in_the_order_of_kvterrace(self):
        """With a shape the spec writes rows in the store's own order, which it has learned."""
        prompts = recall_prompts(768, 6)
        wanted = {"prompts": [prompt for prompt, _ in prompts], "chunk": 256,
                  "logprobs": VOCABULARY, "tokens": 4, "tier": {"kv_heads": 2, "head_dim": 32}}
        folder = self.folder()
        exact = self.run_engine(folder, **wanted)
        self.compare(exact, self.run_engine(folder, **wanted), [768] * 6)

    def test_a_lossy_form(self):
        """Contexts of 768 tokens are stored in a calibrated form. A second process loads them and
        says what follows: what that differs by is within the form's limit."""
        ladder, texts, asked = Calibrated(self.folder()), recall_texts(768, 10), range(4, 68, 4)
        tier = {"kv_heads": 2, "head_dim": 32, "variant": ladder.VARIANT}
        folder = self.folder()
        tier["settings"] = disk_store(folder, **ladder.settings())
        wanted = {"prompts": [text[:768 + count] for text in texts for count in asked],
                  "chunk": 256, "logprobs": VOCABULARY, "tokens": 1, "tier": tier}
        exact, lossy = self.run_engine(folder, **wanted), self.run_engine(folder, **wanted)
        self.assertEqual((lossy["store"]["gets"], lossy["store"]["load_failures"]), (30, 0))
        raw = 30 * 256 * 1024
        self.assertLess(exact["tiers"]["ssd"]["bytes"], 0.45 * raw)
        print(f"{self.id()}: {exact['tiers']['ssd']['bytes']} bytes for {raw}", flush=True)
        losses = []
        for number in range(0, len(wanted["prompts"]), len(asked)):
            pairs = zip(exact["answers"][number:number + len(asked)],
                        lossy["answers"][number:number + len(asked)])
            losses.append(sum(loss(first["logprobs"][0], second["logprobs"][0])
                              for first, second in pairs) / len(asked))
        self.assertGreaterEqual(lossy["answers"][0]["cached"], 768)
        ladder.check(self, [1 - math.exp(-one) for one in losses])


if __name__ == "__main__":
    need("vllm")
    unittest.main(verbosity=2)
