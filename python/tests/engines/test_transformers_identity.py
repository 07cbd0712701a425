#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers: KV of something else is never restored and never saved. One test for each row of
"What decides KV" in docs/ENGINES.md, on tiny models whose weights are drawn wide."""

import copy
import json
import os
import subprocess
import sys
import unittest

from engine_case import EngineCase, need

ENGINE = "transformers"
CHUNK = 32
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "vocab_size": 200,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
         "initializer_range": 0.25}
LIMIT = 200


def llama(seed=0, **more):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **more})).eval()


def longrope():
    torch.manual_seed(0)
    rotary = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 1.0,
              "original_max_position_embeddings": LIMIT, "short_factor": [1.0] * 8,
              "long_factor": [1.0 + 4 * index for index in range(8)]}
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(
        **SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        original_max_position_embeddings=LIMIT, rope_parameters=rotary)).eval()


def dynamic():
    return llama(max_position_embeddings=LIMIT, rope_parameters={
        "rope_type": "dynamic", "factor": 8.0, "rope_theta": 1e4})


def adapters(model, names="ab", first=5):
    for seed, name in enumerate(names, first):
        torch.manual_seed(seed)
        model.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj"],
                                          init_lora_weights=False), adapter_name=name)
    model.set_adapter(names[0])
    return model.eval()


class Case(EngineCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.store = kvterrace.Store(policy="lru", tier_dram_capacity="64MiB")
        self.addCleanup(self.store.close)
        draw = torch.Generator().manual_seed(1)
        self.ids = torch.randint(3, 199, (600,), generator=draw).tolist()

    def prefixes(self, model, **keywords):
        return adapter.Prefixes(self.store, model, **{"chunk": CHUNK, **keywords})

    def run_model(self, model, tokens, cache=None, **more):
        cache = transformers.DynamicCache(config=model.config) if cache is None else cache
        with torch.no_grad():
            out = model(input_ids=torch.tensor([tokens[cache.get_seq_length():]]),
                        past_key_values=cache, use_cache=True, **more)
        return cache, out.logits[0, -1].float()

    def saved(self, model, length=96, **keywords):
        """Prefixes that hold the first tokens."""
        made = self.prefixes(model, **keywords)
        self.assertEqual(made.save(self.run_model(model, self.ids[:length])[0], self.ids[:length]),
                         length // CHUNK * CHUNK)
        return made

    def refused(self, text, call, *arguments, **keywords):
        puts = self.store.stats()["puts"]
        with self.assertRaises(kvterrace.UnsupportedError) as caught:
            call(*arguments, **keywords)
        self.assertIn(text, str(caught.exception))
        self.assertEqual(self.store.stats()["puts"], puts)

    def hit(self, prefixes, length=96):
        """It restores these tokens, and the model goes on from them as from its own."""
        model, tokens = prefixes.model, self.ids[:length + 1]
        cache, count = prefixes.restore(tokens)
        self.assertEqual(count, length // CHUNK * CHUNK)
        mine, theirs = self.run_model(model, tokens, cache)[1], self.run_model(model, tokens)[1]
        self.assertLess(float((mine - theirs).abs().max()), 1e-4)

    def miss(self, prefixes, length=96):
        self.assertEqual(prefixes.restore(self.ids[:length + 1])[1], 0)


class Weights(Case):
    def test_models_without_a_name(self):
        first, second = llama(0), llama(9)
        self.hit(self.saved(first))
        self.miss(self.prefixes(second))
        self.hit(self.prefixes(llama(0)))  # equal content is the same model
        self.miss(self.prefixes(llama(0), name="m"))

    def test_in_place(self):
        def multiply(model):
            with torch.no_grad():
                for one in model.parameters():
                    one.mul_(1.05)

        def past_the_counters(model):
            for one in model.parameters():
                one.data.mul_(1.1)

        def step(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(input_ids=torch.tensor([self.ids[:8]])).logits.sum().backward()
            optimizer.step()

        def load(model):
            model.load_state_dict(llama(4).state_dict())

        def replace(model):
            old = model.model.layers[1].self_attn.k_proj
            old.weight = torch.nn.Parameter(old.weight.detach() * 1.05)

        def one_row(model):
            with torch.no_grad():
                model.model.embed_tokens.weight[self.ids[0]] += 1

        def memory(model):
            model.model.layers[0].self_attn.v_proj.weight.detach().numpy()[:] *= 2

        def buffer(model):
            model.model.rotary_emb.inv_freq.mul_(0.5)

        def scaling(model):
            model.model.layers[0].self_attn.scaling *= 2

        def resize(model):
            model.resize_token_embeddings(208)

        for change in (multiply, past_the_counters, step, load, replace, one_row, memory, buffer,
                       scaling, resize):
            with self.subTest(change.__name__):
                model = llama()
                prefixes = self.saved(model)
                before = self.run_model(model, self.ids[:96])[0]
                change(model)
                self.miss(prefixes)
                self.miss(self.prefixes(model))
                if change not in (resize, one_row, scaling):  # these leave the kept layers alone
                    self.refused("off what the model computes", prefixes.save, before, self.ids)
                self.hit(self.saved(model))

    def test_what_the_samples_cannot_see(self):
        model = llama()
        prefixes = self.saved(model)
        model.model.embed_tokens.weight.data[self.ids[0], 1] += 1  # past torch's counters
        self.assertGreater(prefixes.restore(self.ids[:97])[1], 0)
        self.miss(self.prefixes(model))  # made anew it reads everything

    def test_every_tensor_counts(self):
        """Any byte of any tensor is in the content, whatever its type and its size."""
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool):
            for size in (1, 7, 20000, (1 << 18) + 3):
                tensor = torch.zeros(size, dtype=dtype)
                known = {identity._content(tensor)}
                for index in {0, size // 2, size - 1}:
                    other = tensor.clone()
                    other[index] = 1
                    known.add(identity._content(other))
                self.assertEqual(len(known), len({0, size // 2, size - 1}) + 1, (dtype, size))
        wide = torch.randn(300, 400)
        self.assertEqual(identity._content(wide.t()), identity._content(wide.t().contiguous()))
        self.assertEqual(identity._content(wide[1:]), identity._content(wide[1:].clone()))

    def test_another_process(self):
        """Names do not depend on the process: no address, no order of a set."""
        script = ("import sys, json; sys.path[:0] = json.loads(sys.argv[1])\n"
                  "import test_transformers_identity as t; t.load()\n"
                  "print(t.keys_of_all())")
        said = {subprocess.run([sys.executable, "-c", script, json.dumps(sys.path)], check=True,
                               stdout=subprocess.PIPE, text=True,
                               env=dict(os.environ, PYTHONHASHSEED=seed)).stdout
                for seed in ("1", "2")}
        self.assertEqual(said, {keys_of_all() + "\n"})

    def test_a_revision(self):
        model = llama()
        prefixes = self.saved(model, revision="one")
        self.hit(self.prefixes(model, revision="one"))
        self.miss(self.prefixes(model, revision="two"))
        self.miss(self.prefixes(model))
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
        self.refused("since the revision was named", prefixes.restore, self.ids[:97])
        self.refused("since the revision was named", prefixes.save,
                     self.run_model(model, self.ids[:96])[0], self.ids[:96])
        self.miss(self.prefixes(model, revision="two"))
        with self.assertRaises(kvterrace.ArgumentError):
            self.prefixes(model, revision="")

    def test_quantised_and_offloaded(self):
        model = llama()
        model.config.quantization_config = {"quant_method": "none of ours"}
        self.refused("quantised", self.prefixes, model)
        self.hit(self.saved(model, revision="8 bits of this kind"))
        model = llama()
        model.lm_head = model.lm_head.to("meta")
        self.refused("offloaded", self.prefixes, model)
        self.assertEqual(len(self.prefixes(model, revision="r").keys(self.ids[:64])), 2)

    def test_shards(self):
        model = llama()
        model._tp_size = 2
        for revision in (None, "r"):
            self.refused("tensor ranks", self.prefixes, model, revision=revision)


class Adapters(Case):
    def test_switched(self):
        for revision in (None, "base"):
            with self.subTest(revision=revision):
                model = adapters(llama())
                prefixes = self.saved(model, revision=revision)
                before = self.run_model(model, self.ids[:96])[0]
                model.set_adapter("b")
                self.miss(prefixes)
                self.miss(self.prefixes(model, revision=revision))
                self.refused("off what the model computes", prefixes.save, before, self.ids)
                model.disable_adapters()
                self.miss(prefixes)
                model.enable_adapters()
                model.set_adapter("a")
                self.hit(prefixes)
                self.hit(self.prefixes(model, revision=revision))

    def test_names_are_not_enough(self):
        for revision in (None, "base"):
            self.saved(adapters(llama()), revision=revision)
            self.miss(self.prefixes(adapters(llama(), first=7), revision=revision))
            self.hit(self.prefixes(adapters(llama()), revision=revision))
            model = adapters(llama())
            prefixes = self.prefixes(model, revision=revision)
            self.hit(prefixes)
            part = model.model.layers[0].self_attn.k_proj
            part.set_scale("a", 0.5)
            self.miss(prefixes)
            part.set_scale("a", 1.0)
            self.hit(prefixes)
            with torch.no_grad():
                part.lora_B["a"].weight.mul_(2)
            self.miss(prefixes)

    def test_one_that_is_not_active_changes_nothing(self):
        model = adapters(llama(), "a")
        prefixes = self.saved(model)
        adapters(model, "c", 9)
        model.set_adapter("a")
        self.hit(prefixes)
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.lora_B["c"].weight.mul_(2)
        self.hit(prefixes)

    def test_merged(self):
        model = adapters(llama())
        prefixes = self.saved(model)
        wrapped = peft.get_peft_model(llama(), peft.LoraConfig(
            r=4, target_modules=["k_proj", "v_proj"], init_lora_weights=False)).eval()
        self.miss(self.prefixes(wrapped))
        made = self.saved(wrapped)
        wrapped.merge_adapter()
        self.miss(made)
        self.hit(self.saved(wrapped))
        plain = wrapped.merge_and_unload()
        self.miss(self.prefixes(plain), 96)
        self.hit(prefixes)
        self.saved(llama())
        self.miss(self.prefixes(plain))

    def test_kv_that_depends_on_more_than_a_prefix(self):
        for config in (peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
                       peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")):
            self.refused("virtual tokens", self.prefixes, peft.get_peft_model(llama(), config))
        config = peft.LoraConfig(r=4, target_modules=["k_proj"], task_type="CAUSAL_LM",
                                 alora_invocation_tokens=[5, 6])
        self.refused("from its invocation on", self.prefixes,
                     peft.get_peft_model(llama(), config).eval())


class Configuration(Case):
    def test_rotary_types(self):
        made = [llama(rope_parameters=one) for one in (
            {"rope_type": "default", "rope_theta": 1e4},
            {"rope_type": "default", "rope_theta": 5e5},
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
            {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
            {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
             "high_freq_factor": 4.0, "original_max_position_embeddings": 64})]
        for model in made:
            self.miss(self.prefixes(model))
            self.hit(self.saved(model))

    def test_changed_after_loading(self):
        model = llama()
        prefixes = self.saved(model)
        model.config.rope_parameters = dict(model.config.rope_parameters, rope_theta=77.0)
        self.miss(prefixes)
        model = llama()
        model.config.eos_token_id = 7  # decides no KV
        self.hit(self.prefixes(model))

    def test_longrope_on_both_sides(self):
        model = longrope()
        self.saved(model, 160)
        self.miss(self.prefixes(model), 300)
        self.hit(self.prefixes(model), 160)
        self.hit(self.saved(model, LIMIT), LIMIT - 1)  # at the limit it is the short side
        self.saved(model, 300)
        self.hit(self.prefixes(model), 290)
        self.hit(self.prefixes(model), 160)
        prefixes = self.prefixes(model)
        mixed = self.run_model(model, self.ids[:300],
                               self.run_model(model, self.ids[:160])[0])[0]
        for key in prefixes.keys(self.ids[:300]):
            self.store.delete(key)
        self.refused("K of layer 0", prefixes.save, mixed, self.ids[:300])
        cropped = self.run_model(model, self.ids[:300])[0]
        for layer in cropped.layers:
            layer.keys, layer.values = layer.keys[:, :, :160], layer.values[:, :, :160]
        self.refused("K of layer 0", self.prefixes(model, salt="w").save, cropped, self.ids[:160])

    def test_dynamic(self):
        model = dynamic()
        prefixes = self.saved(model, 160)
        self.hit(prefixes, 160)
        self.miss(prefixes, 300)
        self.assertEqual(prefixes.keys(self.ids[:300]), [])
        long = self.run_model(model, self.ids[:300])[0]
        self.refused("dynamic NTK", prefixes.save, long, self.ids[:300])
        self.refused("dynamic NTK", prefixes.save, long, self.ids[:160])
        self.hit(prefixes, 160)  # the model has been beyond the limit since

    def test_types(self):
        model = llama()
        prefixes = self.saved(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            self.miss(prefixes)
            cache = self.run_model(model, self.ids[:96])[0]
        self.refused("off what the model computes", self.prefixes(model, salt="t").save, cache,
                     self.ids)
        model.set_attn_implementation("eager")
        self.miss(prefixes)
        self.hit(self.saved(model))
        self.miss(self.prefixes(llama().to(torch.bfloat16)))

    def test_salt_and_chunk(self):
        self.saved(llama())
        self.miss(self.prefixes(llama(), salt="tenant"))
        self.miss(self.prefixes(llama(), chunk=16))

    def test_code(self):
        class Own(transformers.LlamaForCausalLM):
            pass

        own = Own(llama().config).eval()
        self.refused("code that is not transformers' (", self.prefixes, own)
        self.hit(self.saved(own, revision="r"))
        model = llama()
        prefixes = self.saved(model)
        hook = model.model.layers[0].register_forward_hook(lambda module, given, out: out * 2)
        self.refused("code that is not transformers'", prefixes.restore, self.ids[:97])
        hook.remove()
        self.hit(prefixes)
        layer = model.model.layers[0]
        layer.forward = lambda *given, **more: type(layer).forward(layer, *given, **more) * 2
        self.refused("code that is not transformers'", prefixes.restore, self.ids[:97])

    def test_training(self):
        model = llama()
        prefixes = self.saved(model)
        model.train()
        self.refused("model.eval()", prefixes.restore, self.ids[:97])
        model.eval()
        model.add_adapter(peft.LoraConfig(r=4, target_modules=["k_proj"], lora_dropout=0.5), "a")
        self.refused("model.eval()", self.prefixes(model).restore, self.ids[:97])


class Caches(Case):
    """What save takes: KV of these ids, at positions from 0, by the model as it is."""

    def wrong(self, cache, tokens=None, text="off what the model computes", model=None):
        self.refused(text, self.prefixes(model or self.model, salt="w").save, cache,
                     self.ids[:96] if tokens is None else tokens)

    def setUp(self):
        super().setUp()
        self.model = llama()

    def test_ids(self):
        cache = self.run_model(self.model, self.ids[:96])[0]
        for index in (0, 40, 95):
            other = self.ids[:96]
            other[index] = 3 + (other[index] - 2) % 190
            self.wrong(cache, other)
        self.wrong(cache, self.ids[1:97])

    def test_padding_masks_and_positions(self):
        pads, ids = [0] * 16, self.ids[:80]
        mask = torch.tensor([[0] * 16 + [1] * 80])
        places = torch.tensor([[0] * 16 + list(range(80))])
        padded = self.run_model(self.model, pads + ids, attention_mask=mask,
                                position_ids=places)[0]
        self.wrong(padded, pads + ids)
        self.wrong(self.run_model(self.model, pads + ids, attention_mask=mask)[0], pads + ids)
        for layer in padded.layers:  # the pads cut off: they are the KV of the prompt alone
            layer.keys, layer.values = layer.keys[:, :, 16:], layer.values[:, :, 16:]
        self.assertEqual(self.prefixes(self.model).save(padded, ids), 64)
        for first in (1, 100):
            self.wrong(self.run_model(self.model, self.ids[:96], position_ids=torch.arange(
                first, first + 96)[None])[0])
        hole = torch.ones(1, 96, dtype=torch.int64)
        hole[0, :48] = 0
        self.wrong(self.run_model(self.model, self.ids[:96], attention_mask=hole)[0])

    def test_cropped(self):
        cache = self.run_model(self.model, self.ids[:160])[0]
        front = copy.deepcopy(cache)
        for layer in front.layers:
            layer.keys, layer.values = layer.keys[:, :, 64:], layer.values[:, :, 64:]
        self.wrong(front, self.ids[64:160])
        for layer in cache.layers:  # behind: what is left is a prefix
            layer.keys, layer.values = layer.keys[:, :, :70], layer.values[:, :, :70]
        self.assertEqual(self.prefixes(self.model).save(cache, self.ids[:160]), 64)
        other = self.ids[:70] + self.ids[200:290]
        self.run_model(self.model, other, cache)
        self.assertEqual(self.prefixes(self.model).save(cache, other), 160)

    def test_without_positions_in_the_first_layer(self):
        """ALiBi: tokens before the cut are seen at the first tokens of the other layers."""
        torch.manual_seed(0)
        model = transformers.BloomForCausalLM(transformers.BloomConfig(
            vocab_size=200, hidden_size=64, n_layer=3, n_head=4, initializer_range=0.25)).eval()
        self.hit(self.saved(model))
        front = self.run_model(model, self.ids[:160])[0]
        for layer in front.layers:
            layer.keys, layer.values = layer.keys[:, :, 64:], layer.values[:, :, 64:]
        self.wrong(front, self.ids[64:160], model=model, text="of layer 1")

    def test_embeddings(self):
        table = self.model.get_input_embeddings()
        given = table(torch.tensor([self.ids[:96]])).detach()
        cache = transformers.DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.model(inputs_embeds=given, past_key_values=cache)
        self.assertEqual(self.prefixes(self.model).save(cache, self.ids[:96]), 96)
        given[0, 50] = torch.randn(64)  # an image stands in place of a token
        cache = transformers.DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.model(inputs_embeds=given, past_key_values=cache)
        self.wrong(cache)

    def test_of_another_model(self):
        self.wrong(self.run_model(llama(9), self.ids[:96])[0])
        empty = transformers.DynamicCache(config=self.model.config)
        self.assertEqual(self.prefixes(self.model).save(empty, self.ids[:96]), 0)
        for layer in self.run_model(self.model, self.ids[:96], empty)[0].layers:
            layer.values[:, :, 91] = float("nan")
        self.wrong(empty)

    def test_what_changes_between_restore_and_save(self):
        model = adapters(self.model)
        prefixes = self.prefixes(model)
        cache, _ = prefixes.restore(self.ids[:97])
        self.run_model(model, self.ids[:96], cache)
        model.set_adapter("b")
        self.refused("was restored for other weights", prefixes.save, cache, self.ids[:96])
        model.set_adapter("a")
        self.assertEqual(prefixes.save(cache, self.ids[:96]), 96)

    def test_your_word(self):
        other = self.run_model(llama(9), self.ids[:96])[0]
        self.assertEqual(self.prefixes(self.model, check=False).save(other, self.ids), 96)

    def test_rounding_is_no_difference(self):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            model = llama().to(dtype)
            cache = transformers.DynamicCache(config=model.config)
            for end in (50, 51, 52, 53, 170, 171):  # products of many shapes
                self.run_model(model, self.ids[:end], cache)
            self.assertEqual(self.prefixes(model).save(cache, self.ids[:171]), 160)

    def test_experts_that_turn_on_a_digit(self):
        for dtype in (torch.float16, torch.bfloat16):
            torch.manual_seed(0)
            model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
                **{**SMALL, "num_hidden_layers": 12, "num_local_experts": 8, "sliding_window": None,
                   "initializer_range": 0.1})).to(dtype).eval()
            for first in range(0, 400, 100):
                ids = self.ids[first:first + 161]
                cache = transformers.DynamicCache(config=model.config)
                for end in (50, 51, 161):
                    self.run_model(model, ids[:end], cache)
                self.assertEqual(self.prefixes(model).save(cache, ids), 160)
                self.refused("off what the model computes", self.prefixes(model, salt="w").save,
                             cache, ids[:80] + ids[81:] + [5])

    def test_lossy_forms_are_not_put_again(self):
        """A chunk that was read in a lossy form and has left the store stays away."""
        prefixes = self.saved(self.model)
        cache, count = prefixes.restore(self.ids[:97])
        self.assertEqual((count, cache._kvterrace[1]), (96, set()))
        keys = prefixes.keys(self.ids[:96])
        cache._kvterrace = cache._kvterrace[0], {keys[1], keys[2]}
        self.run_model(self.model, self.ids[:160], cache)
        for key in keys:
            self.store.delete(key)
        self.assertEqual(prefixes.save(cache, self.ids[:160]), 32)
        self.assertEqual([key in self.store for key in keys], [True, False, False])


def keys_of_all():
    """The first key of some models, in hexadecimal."""
    with kvterrace.Store(policy="lru", tier_dram_capacity="64MiB") as store:
        made = [adapter.Prefixes(store, model, chunk=CHUNK)
                for model in (llama(), adapters(llama()), longrope(), dynamic())]
        return " ".join(one.keys(range(CHUNK))[0].hex() for one in made)


def load():
    global torch, transformers, peft, kvterrace, adapter, identity
    import peft
    import torch
    import transformers

    import kvterrace
    from kvterrace import _identity as identity
    from kvterrace import transformers as adapter


if __name__ == "__main__":
    need("torch", "transformers", "peft")
    load()
    unittest.main(verbosity=2)
