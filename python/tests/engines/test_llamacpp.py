#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp, as a library and as its server, with a small model of random weights: after a restart
it goes on from what is restored as from what it computed. KVT_GGUF names a real model to take
instead; KVT_TOKENS, how long its prompts are."""

import os
import random
import tempfile
import unittest

from engine_case import RECORD, EngineCase, damage_record, disk_store, need

ENGINE = "llamacpp"
CHUNK = 32
HEADS, WIDTH, LAYERS = 2, 64, 3


def make_model(path):
    """A Llama of random weights, with a token for each byte."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [2, 3, 3, *[6] * 256]
    made, numbers = gguf.GGUFWriter(path, "llama"), numpy.random.default_rng(1)
    size = 2 * HEADS * WIDTH
    made.add_context_length(4096)
    made.add_embedding_length(size)
    made.add_block_count(LAYERS)
    made.add_feed_forward_length(size)
    made.add_head_count(2 * HEADS)
    made.add_head_count_kv(HEADS)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_rope_dimension_count(WIDTH)
    made.add_vocab_size(len(words))
    made.add_tokenizer_model("llama")
    made.add_token_list(words)
    made.add_token_scores([0.0] * len(words))
    made.add_token_types(kinds)
    made.add_bos_token_id(1)
    made.add_eos_token_id(2)

    def weights(name, rows, columns):
        made.add_tensor(name, numbers.normal(0, 2 / columns ** 0.5, (rows, columns)).astype("f4"))

    weights("token_embd.weight", len(words), size)
    weights("output.weight", len(words), size)
    made.add_tensor("output_norm.weight", numpy.ones(size, "f4"))
    for layer in range(LAYERS):
        for name, rows in (("attn_q", size), ("attn_k", HEADS * WIDTH), ("attn_v", HEADS * WIDTH),
                           ("attn_output", size), ("ffn_gate", size), ("ffn_up", size),
                           ("ffn_down", size)):
            weights(f"blk.{layer}.{name}.weight", rows, size)
        for name in ("attn_norm", "ffn_norm"):
            made.add_tensor(f"blk.{layer}.{name}.weight", numpy.ones(size, "f4"))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def prompts(count):
    """Two with the same beginning, three chunks of it and some tokens."""
    ids = random.Random(3)
    begin = [1, *(ids.randrange(3, 250) for _ in range(count - 1))]
    return [begin + [ids.randrange(3, 250) for _ in range(40)] for _ in range(2)]


class Restart(EngineCase):
    @classmethod
    def setUpClass(cls):
        cls.model = os.environ.get("KVT_GGUF")
        if cls.model is None:
            cls.kept = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvt-engine-"))
            cls.model = os.path.join(cls.kept, "model.gguf")
            make_model(cls.model)
        cls.prompts = prompts(int(os.environ.get("KVT_TOKENS", 3 * CHUNK + 7)))
        cls.shared = len(os.path.commonprefix(cls.prompts)) // CHUNK * CHUNK
        cls.room = len(cls.prompts[0]) + 8

    def life(self, folder, what="context", **more):
        # Both lives compute their tokens in the same batches: with quantised weights llama.cpp
        # rounds a token otherwise in a batch of another width.
        keywords = {"n_ctx": 2 * self.room, "n_batch": CHUNK, "n_ubatch": CHUNK,
                    **more.pop("keywords", {})}
        return self.live("llamacpp_run.py", {
            "model": self.model, "store": disk_store(folder, **{
                "tier.dram.capacity": "64MiB", "store.variant": "lossless"}), "what": what,
            "prompts": self.prompts, "chunk": CHUNK, "keywords": keywords, **more})

    def check(self, first, again, told):
        """Two lives: the second one finds all whole chunks of the prompts, and says the same."""
        for one, other, tokens in zip(first["answers"], again["answers"], self.prompts):
            whole = (len(tokens) - 1) // CHUNK * CHUNK
            self.assertEqual(other["restored"], whole)
            self.assertEqual(other["tokens"], one["tokens"])
            for name in told:
                self.assertEqual(other[name], one[name], name)
            self.assertEqual(other["saved"], (len(tokens) + 7) // CHUNK * CHUNK)
        self.assertEqual([one["restored"] for one in first["answers"]], [0, self.shared])
        chunks = sum(one["saved"] // CHUNK for one in again["answers"])
        self.assertEqual(again["entries"], chunks - self.shared // CHUNK)
        print(f"{self.id()}: {again['entries']} entries, {again['bytes']} bytes; first token "
              f"{first['answers'][0]['seconds']:.3f} s computed, "
              f"{again['answers'][0]['seconds']:.3f} s restored", flush=True)

    def test_library(self):
        for name, keywords in (("turned", {"flash_attn_type": 0}), ("f16", {"flash_attn_type": 1}),
                               ("f32", {"flash_attn_type": 1, "type_k": "f32", "type_v": "f32"}),
                               ("q8_0", {"flash_attn_type": 1, "type_k": "q8_0", "type_v": "q8_0"}),
                               ("q4_0", {"flash_attn_type": 1, "type_k": "q4_0",
                                         "type_v": "q4_0"}),
                               ("sequences", {"flash_attn_type": 1, "n_seq_max": 2})):
            with self.subTest(name):
                folder = self.folder()
                first, again = (self.life(folder, keywords=keywords) for _ in range(2))
                self.check(first, again, ["logits"])

    def test_server(self):
        folder = self.folder()
        first, again = (self.life(folder, "server", slots=self.folder(),
                                  keywords={"n_ctx": 4 * self.room}) for _ in range(2))
        for one, other in zip(first["answers"], again["answers"]):
            self.assertEqual(other["cached"], other["restored"])
            for mine, theirs in zip(one["logprobs"], other["logprobs"], strict=True):
                self.assertAlmostEqual(mine, theirs, delta=0.02)
        self.check(first, again, [])

    def test_what_is_another_thing_misses(self):
        folder = self.folder()
        self.life(folder)
        for more in ({"salt": "lora"}, {"keywords": {"type_k": "f32"}}, {"chunk": CHUNK // 2},
                     {"keywords": {"flash_attn_type": 1}}):
            self.assertEqual(self.life(folder, **more)["answers"][0]["restored"], 0)

    def test_a_damaged_chunk_is_computed(self):
        folder = self.folder()
        first = self.life(folder)
        with open(os.path.join(folder, "disk"), "rb") as file:
            data = file.read()
        key = data[data.index(RECORD) + 32:][:32]
        damage_record(os.path.join(folder, "disk"), key)
        again = self.life(folder)
        for one, other in zip(first["answers"], again["answers"]):
            self.assertEqual((other["tokens"], other["logits"]), (one["tokens"], one["logits"]))
        whole = [(len(tokens) - 1) // CHUNK * CHUNK for tokens in self.prompts]
        self.assertNotEqual([one["restored"] for one in again["answers"]], whole)


if __name__ == "__main__":
    need("numpy", "gguf", "xllamacpp", "llama_cpp_py_sync")
    import gguf
    import numpy
    unittest.main(verbosity=2)
