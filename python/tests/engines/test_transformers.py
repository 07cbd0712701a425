#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers with the reference model: what comes back is what was saved, bit for bit, and the
model goes on from it as from what it computed."""

import os
import unittest

from engine_case import MODEL, EngineCase, disk_store, need, recall_prompts

ENGINE = "transformers"
CHUNK = 64


class Prefix(EngineCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float16)
        cls.prompts = recall_prompts(512, 2)

    def store(self, folder, **settings):
        made = kvterrace.Store(settings=disk_store(folder, **settings))
        self.addCleanup(made.close)
        return made

    def prefixes(self, store, model=None, **keywords):
        return adapter.Prefixes(store, model or self.model, **{"chunk": CHUNK, **keywords})

    def compute(self, tokens, cache=None, model=None):
        """The cache after a prompt, and the 8 tokens that follow with their logits."""
        model = model or self.model
        cache = transformers.DynamicCache(config=model.config) if cache is None else cache
        done = cache.get_seq_length()
        ids, logits, said = torch.tensor([tokens[done:]]), [], []
        with torch.no_grad():
            for _ in range(8):
                out = model(input_ids=ids, past_key_values=cache, use_cache=True)
                logits.append(out.logits[0, -1])
                said.append(int(logits[-1].argmax()))
                ids = torch.tensor([[said[-1]]])
        return cache, said, torch.stack(logits)

    def test_bit_for_bit_after_a_restart(self):
        folder = self.folder()
        for tokens, right in self.prompts:
            store = self.store(folder)
            cache, said, _ = self.compute(tokens)
            self.assertEqual(said[:len(right)], right)
            whole = len(tokens) // CHUNK * CHUNK
            self.assertEqual(self.prefixes(store).save(cache, tokens + said), (len(tokens) + 7)
                             // CHUNK * CHUNK)
            store.close()
            store = self.store(folder)
            restored, count = self.prefixes(store).restore(tokens)
            self.assertEqual((count, restored.get_seq_length()), (whole, whole))
            for mine, theirs in zip(restored.layers, cache.layers, strict=True):
                for side in ("keys", "values"):
                    self.assertTrue(torch.equal(getattr(mine, side).view(torch.int16),
                                                getattr(theirs, side)[:, :, :whole]
                                                .contiguous().view(torch.int16)))
            # Numbers of a matrix product depend on its shape: the control computes the rest in the
            # same two steps.
            control = transformers.DynamicCache(config=self.model.config)
            with torch.no_grad():
                self.model(input_ids=torch.tensor([tokens[:whole]]), past_key_values=control)
            for layer, kept in zip(control.layers, cache.layers):
                layer.keys = kept.keys[:, :, :whole].contiguous()
                layer.values = kept.values[:, :, :whole].contiguous()
            _, expected, expected_logits = self.compute(tokens, control)
            _, got, got_logits = self.compute(tokens, restored)
            self.assertEqual(got, expected)
            self.assertEqual(got, said)
            self.assertTrue(torch.equal(got_logits, expected_logits))
            store.close()

    def test_a_control_with_other_bytes_differs(self):
        store = self.store(self.folder())
        tokens, _ = self.prompts[0]
        cache, said, _ = self.compute(tokens)
        self.prefixes(store).save(cache, tokens)
        restored, count = self.prefixes(store).restore(tokens)
        for layer in restored.layers:
            layer.values.zero_()
        self.assertNotEqual(self.compute(tokens, restored)[1], said)

    def test_generate_goes_on_from_it(self):
        store = self.store(self.folder())
        tokens, _ = self.prompts[0]
        ids = torch.tensor([tokens])
        settings = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True,
                    "eos_token_id": None, "pad_token_id": 0}
        plain = self.model.generate(ids, **settings)
        prefixes = self.prefixes(store)
        prefixes.save(plain.past_key_values, plain.sequences)
        cache, count = prefixes.restore(ids)
        self.assertEqual(count, len(tokens) // CHUNK * CHUNK)
        again = self.model.generate(ids, past_key_values=cache, **settings)
        self.assertEqual(again.sequences.tolist(), plain.sequences.tolist())

    def test_a_longer_prompt_and_a_hole(self):
        store = self.store(self.folder())
        tokens, _ = self.prompts[0]
        prefixes = self.prefixes(store)
        cache, _, _ = self.compute(tokens)
        self.assertEqual(prefixes.save(cache, tokens[:200]), 192)
        self.assertEqual(prefixes.restore(tokens)[1], 192)
        self.assertEqual(prefixes.restore(tokens[:192])[1], 128)  # one token is left to the model
        self.assertEqual(prefixes.restore(tokens[:100] + [7] * 200)[1], 64)
        self.assertEqual(prefixes.restore([])[1], 0)
        self.assertEqual(prefixes.save(cache, tokens), len(tokens) // CHUNK * CHUNK)
        store.delete(prefixes.keys(tokens)[3])
        self.assertEqual(prefixes.restore(tokens)[1], 3 * CHUNK)
        self.assertEqual(prefixes.save(cache, tokens), len(tokens) // CHUNK * CHUNK)
        self.assertEqual(prefixes.restore(tokens)[1], len(tokens) // CHUNK * CHUNK)

    def test_what_is_another_thing_misses(self):
        store = self.store(self.folder())
        tokens, _ = self.prompts[0]
        cache, _, _ = self.compute(tokens)
        self.prefixes(store).save(cache, tokens)
        config = transformers.AutoConfig.from_pretrained(MODEL)
        config.rope_parameters = dict(config.rope_parameters or {}, rope_theta=10000.0)
        scaled = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float16).eval()
        half = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
        for other in (self.prefixes(store, half), self.prefixes(store, scaled),
                      self.prefixes(store, chunk=32), self.prefixes(store, revision="v2"),
                      self.prefixes(store, salt="tenant")):
            self.assertEqual(other.restore(tokens)[1], 0)
        self.assertGreater(self.prefixes(store).restore(tokens)[1], 0)

    def test_bfloat16_and_fp32(self):
        tokens, _ = self.prompts[1]
        for dtype in (torch.bfloat16, torch.float32):
            model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype)
            store = self.store(self.folder())
            cache, said, _ = self.compute(tokens, model=model)
            self.prefixes(store, model).save(cache, tokens)
            restored, count = self.prefixes(store, model).restore(tokens)
            self.assertTrue(all(torch.equal(mine.keys, theirs.keys[:, :, :count]) and
                                torch.equal(mine.values, theirs.values[:, :, :count])
                                for mine, theirs in zip(restored.layers, cache.layers)))
            store.close()

    def test_what_is_refused_says_why(self):
        store = self.store(self.folder())
        tokens, _ = self.prompts[0]
        prefixes = self.prefixes(store)
        cache, _, _ = self.compute(tokens)
        config = transformers.AutoConfig.from_pretrained(MODEL)
        window = transformers.cache_utils.DynamicSlidingWindowLayer(sliding_window=64)
        sliding = transformers.DynamicCache(config=config)
        sliding.layers[2] = window

        class Rounded(transformers.cache_utils.DynamicLayer):
            """Stands for QuantoQuantizedLayer, which needs a package to be made."""

        Rounded.__name__ = "QuantoQuantizedLayer"
        rounded = transformers.DynamicCache(config=config)
        rounded.layers[0] = Rounded()
        many = transformers.DynamicCache(config=config)
        for layer, kept in zip(many.layers, cache.layers):
            layer.update(kept.keys.repeat(2, 1, 1, 1), kept.values.repeat(2, 1, 1, 1))
        static = transformers.StaticCache(config=config, max_cache_len=64)
        for wrong, text in ((sliding, "layer 2 is a DynamicSlidingWindowLayer: a sliding window"),
                            (rounded, "layer 0 is a QuantoQuantizedLayer"), (many, "batch of 2"),
                            (static, "StaticCache")):
            with self.assertRaises(kvterrace.UnsupportedError) as caught:
                prefixes.save(wrong, tokens)
            self.assertIn(text, str(caught.exception))
        for bad in (0, -1, 2.5):
            with self.assertRaises(kvterrace.ArgumentError):
                self.prefixes(store, chunk=bad)
        with self.assertRaises(kvterrace.ArgumentError):
            prefixes.restore(torch.zeros((2, 8), dtype=torch.int64))
        self.assertEqual(store.stats()["puts"], 0)


if __name__ == "__main__":
    need("torch", "transformers")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    import transformers

    import kvterrace
    from kvterrace import transformers as adapter
    unittest.main(verbosity=2)
