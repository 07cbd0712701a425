#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers with the reference model: what comes back is what was saved, bit for bit, and the
model goes on from it as from what it computed."""

import os
import unittest

from engine_case import MODEL, EngineCase, disk_store, need, recall_prompts

ENGINE = "transformers"
CHUNK = 64


class Stores(EngineCase):
    def store(self, folder, **settings):
        made = kvterrace.Store(settings=disk_store(folder, **settings))
        self.addCleanup(made.close)
        return made


class Prefix(Stores):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float16)
        cls.prompts = recall_prompts(512, 2)

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
        window.update(cache.layers[2].keys, cache.layers[2].values)
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


WIDTH = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 200,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0,
         "max_position_embeddings": 4096}
WINDOW, PART = 24, 8
# Models of random weights: windows in every other layer, in most, in all, with sinks and experts;
# K wider than V; no window.
KINDS = {
    "Gemma2": {"sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    "Gemma3Text": {"sliding_window": WINDOW, "sliding_window_pattern": 3,
                   "query_pre_attn_scalar": 16},
    "Mistral": {"sliding_window": WINDOW},
    "GptOss": {"sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {"num_key_value_heads": 4, "head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 16,
                   "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
                   "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    "Qwen2": {}}


class Windows(Stores):
    """Of layers with a window, and of K and V of two widths: what comes back is what transformers'
    own cache has, and the model goes on from it."""

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.models = {}
        for name, more in KINDS.items():
            torch.manual_seed(1)
            config = getattr(transformers, f"{name}Config")(**{**WIDTH, **more})
            cls.models[name] = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32).eval()
        cls.tokens = torch.randint(1, 200, (100,), generator=torch.Generator().manual_seed(2))
        cls.tokens = cls.tokens.tolist()

    def of(self, store, model):
        return adapter.Prefixes(store, model, chunk=PART)

    def each(self, call):
        for name, model in self.models.items():
            with self.subTest(name):
                call(model, self.store(self.folder()))

    def go_on(self, model, tokens, cache, done):
        """The logits of the tokens behind `done`, and 6 more, computed in a batch of their own."""
        ids, logits, said = torch.tensor([tokens[done:]]), [], []
        with torch.no_grad():
            for _ in range(6):
                out = model(input_ids=ids, past_key_values=cache, use_cache=True)
                logits.append(out.logits[0])
                said.append(int(out.logits[0, -1].argmax()))
                ids = torch.tensor([[said[-1]]])
        return torch.cat(logits), said

    def control(self, model, tokens, done):
        """The same, with the cache that transformers makes."""
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=torch.tensor([tokens[:done]]), past_key_values=cache, use_cache=True)
        return self.go_on(model, tokens, cache, done)

    def test_it_goes_on_as_without(self):
        def check(model, store):
            prefixes = self.of(store, model)
            cache, count = prefixes.restore(self.tokens[:80])
            self.assertEqual(count, 0)
            said = self.go_on(model, self.tokens[:80], cache, 0)
            own = self.go_on(model, self.tokens[:80],
                             transformers.DynamicCache(config=model.config), 0)
            self.assertEqual((said[1], bool(torch.equal(said[0], own[0]))), (own[1], True))
            self.assertEqual(prefixes.save(cache, [*self.tokens[:80], *said[1]]), 80)
            # In the middle, where a window ends that is long gone, and at the end.
            for length, done in ((81, 80), (80, 72), (49, 48), (48, 40), (17, 16), (8, 0)):
                cache, count = self.of(store, model).restore(self.tokens[:length])
                self.assertEqual((count, cache.get_seq_length()), (done, done))
                if done == 0:
                    continue
                logits, said = self.go_on(model, self.tokens[:length], cache, done)
                right, expected = self.control(model, self.tokens[:length], done)
                self.assertEqual(said, expected)
                self.assertLess(float((logits - right).abs().max()), 1e-4)
        self.each(check)

    def test_what_was_restored_goes_on_and_is_saved(self):
        def check(model, store):
            prefixes, tokens = self.of(store, model), self.tokens
            for end in (40, 64, 96):
                cache, count = prefixes.restore(tokens[:end])
                self.go_on(model, tokens[:end], cache, count)
                self.assertEqual(prefixes.save(cache, tokens[:end]), end)
            cache, count = prefixes.restore(tokens)
            self.assertEqual(count, 96)
            fresh = transformers.DynamicCache(config=model.config)
            with torch.no_grad():
                model(input_ids=torch.tensor([tokens[:96]]), past_key_values=fresh)
            for mine, theirs in zip(cache.layers, fresh.layers, strict=True):
                for one, other in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
                    some = min(one.shape[2], other.shape[2])
                    self.assertGreaterEqual(some, WINDOW - 1)
                    off = (one[:, :, -some:] - other[:, :, -some:]).abs().max()
                    self.assertLess(float(off), 1e-4)
        self.each(check)

    def test_chunks_that_are_gone(self):
        def check(model, store):
            prefixes, tokens = self.of(store, model), self.tokens
            cache, _ = prefixes.restore(tokens)
            self.go_on(model, tokens, cache, 0)
            self.assertEqual(prefixes.save(cache, tokens), 96)
            parts = prefixes._shapes()
            keys = prefixes._keys(tokens, prefixes._identity.now(), (), len(parts))
            self.assertEqual(store.stats()["puts"], 12 * len(parts))
            windows = [one for part, one in zip(parts, keys) if part.window]
            if windows:
                # A window's chunk is missed where the window has it, and nowhere else.
                store.delete(windows[0][2])
                self.assertEqual(prefixes.restore(tokens)[1], 96)
                self.assertEqual(prefixes.restore(tokens[:41])[1], 16)
                self.assertEqual(prefixes.restore(tokens[:49])[1], 48)
                store.delete(windows[0][11])
                self.assertEqual(prefixes.restore(tokens)[1], 88)
                self.assertEqual(prefixes.save(cache, tokens), 96)
                self.assertEqual(prefixes.restore(tokens[:41])[1], 40)
            if not parts[0].window:
                store.delete(keys[0][3])
                self.assertEqual(prefixes.restore(tokens)[1], 24)
            store.delete(keys[-1][2])
            store.put(keys[-1][2], bytes(64))
            self.assertEqual(prefixes.restore(tokens[:25])[1], 16)
        self.each(check)

    def test_a_window_that_has_dropped_tokens_says_so(self):
        store = self.store(self.folder())
        model = self.models["Gemma2"]
        cache = transformers.DynamicCache(config=model.config)
        self.go_on(model, self.tokens, cache, 0)
        with self.assertRaises(kvterrace.UnsupportedError) as caught:
            self.of(store, model).save(cache, self.tokens)
        self.assertIn("cache of restore()", str(caught.exception))
        cache = transformers.DynamicCache(config=model.config)
        self.go_on(model, self.tokens[:12], cache, 0)
        self.assertEqual(self.of(store, model).save(cache, self.tokens[:12]), 8)

    def test_another_model_is_refused_at_save(self):
        def check(model, store):
            prefixes = self.of(store, model)
            cache, _ = prefixes.restore(self.tokens)
            self.go_on(model, self.tokens, cache, 0)
            for layer in (0, -1):
                kept = cache.layers[layer].values.clone()
                cache.layers[layer].values[:, :, 92:96] += 5
                with self.assertRaises(kvterrace.UnsupportedError):
                    prefixes.save(cache, self.tokens)
                cache.layers[layer].values = kept
            self.assertEqual(store.stats()["puts"], 0)
            self.assertEqual(prefixes.save(cache, self.tokens), 96)
        self.each(check)


if __name__ == "__main__":
    need("torch", "transformers")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    import transformers

    import kvterrace
    from kvterrace import transformers as adapter
    unittest.main(verbosity=2)
