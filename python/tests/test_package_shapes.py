#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KV heads by a model's own configuration: what configurations give, and what adapters make of
it."""

import json
import os
import unittest

import fake_vllm
from package_case import PackageCase, kvterrace

fake_vllm.install()

from kvterrace import vllm as adapter  # noqa: E402  (behind the fake engine)
from kvterrace._shapes import (  # noqa: E402
    choose_shape, kv_shape, shape_of_model, wants_shape)

LAYERS, HEADS, DIM, TOKENS = 3, 2, 32, 32
BLOCK = LAYERS * 2 * HEADS * DIM * TOKENS * 2


class Shapes(PackageCase):
    def model(self, about):
        folder = self.folder()
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            file.write(about if isinstance(about, str) else json.dumps(about))
        return folder

    def test_what_configurations_give(self):
        for about, expected in (
                ({"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096},
                 (8, 128)),
                ({"num_attention_heads": 12, "hidden_size": 768}, (12, 64)),
                ({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                  "hidden_size": 2304}, (4, 256)),
                ({"text_config": {"num_attention_heads": 4, "hidden_size": 64}}, (4, 16)),
                ({"num_attention_heads": 128, "kv_lora_rank": 512, "head_dim": 64}, None),
                ({"num_attention_heads": 71, "multi_query": True, "hidden_size": 4544}, None),
                ({"num_attention_heads": 4, "num_key_value_heads": [4, 2], "head_dim": 8}, None),
                ({"num_attention_heads": 0, "hidden_size": 64}, None),
                ({"num_attention_heads": True, "head_dim": 64}, None),
                ({"num_attention_heads": "4", "head_dim": 64}, None),
                ({"hidden_size": 64}, None), ({}, None), ([], None), (None, None)):
            with self.subTest(about=about):
                self.assertEqual(kv_shape(about), expected)

    def test_models(self):
        good = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128}
        self.assertEqual(shape_of_model(self.model(good)), (2, 32))
        for wrong in ("", "{", "[1]", "\x00"):
            self.assertIsNone(shape_of_model(self.model(wrong)))
        for name in (None, "", 7, self.folder(), "no/such-model", "../..", "a b\n"):
            self.assertIsNone(shape_of_model(name))

    def test_the_rule(self):
        model = self.model({"num_attention_heads": 4, "num_key_value_heads": 2,
                            "hidden_size": 128})
        for given, wanted, expected in (((8, 128), False, (8, 128)), ((8, 128), True, (8, 128)),
                                        ((None, 0), False, (0, 0)), ((0, 0), True, (2, 32)),
                                        (("auto", 0), False, (2, 32)), ((2, "auto"), True, (2, 32)),
                                        (("auto", "auto"), False, (2, 32))):
            self.assertEqual(choose_shape("x", given, wanted, model), expected)
        self.assertEqual(choose_shape("x", (0, 0), True, "no/such"), (0, 0))
        with self.assertRaisesRegex(kvterrace.ConfigError, "no configuration"):
            choose_shape("x", ("auto", 0), True, "no/such")
        with self.assertRaisesRegex(kvterrace.ConfigError, "4 was given where .* has 2"):
            choose_shape("x", (4, "auto"), True, model)
        for settings, variant, expected in (
                (None, None, False), ({"store.variant": "lossless"}, None, False),
                ({"store.variant": "planes:k8v8,g64"}, None, True), ({}, "raw", False),
                ({}, "planes:k6v4,g64", True), ({"store.ladder": "calibrated"}, None, True),
                ({"store.ladder": "none"}, None, False)):
            self.assertEqual(wants_shape(settings, variant), expected)

    def test_a_tier_of_vllm_finds_its_shape(self):
        model = self.model({"num_attention_heads": 4, "num_key_value_heads": HEADS,
                            "head_dim": DIM})
        spec = fake_vllm.spec(block_bytes=BLOCK, name=model)
        axes = "layer,side,block,token,head,dim"
        ladder = {"settings": {"store.ladder": "calibrated"}}
        self.assertEqual(adapter._find_shape(spec, {**ladder, "axes": axes}), (HEADS, DIM))
        self.assertEqual(adapter._find_shape(spec, ladder), (0, 0))  # no order of a row is known
        self.assertEqual(adapter._find_shape(spec, {"axes": axes}), (0, 0))
        self.assertEqual(adapter._find_shape(spec, {"kv_heads": "auto"}), (HEADS, DIM))
        self.assertEqual(adapter._find_shape(spec, {"kv_heads": 8, "head_dim": 64}), (8, 64))
        for other in (fake_vllm.spec(block_bytes=BLOCK, name=model, world_size=2),
                      fake_vllm.spec(block_bytes=BLOCK // 2, name=model),
                      fake_vllm.spec(block_bytes=BLOCK, name=model, dtype="int4"),
                      fake_vllm.spec(block_bytes=BLOCK, name=model, groups=2 * spec.config.groups)):
            self.assertEqual(adapter._find_shape(other, {**ladder, "axes": axes}), (0, 0))


if __name__ == "__main__":
    unittest.main()
