#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the adapter of transformers takes from a configuration, without torch. Models and caches are
in engines/test_transformers_identity.py, which `make test-engines` runs."""

import importlib
import sys
import types
import unittest
from unittest import mock

from package_case import PackageCase

LONG = {"rope_type": "longrope", "original_max_position_embeddings": 100}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


class Regimes(PackageCase):
    def setUp(self):
        fakes = {name: types.ModuleType(name) for name in ("torch", "transformers")}
        with mock.patch.dict(sys.modules, fakes):
            self.identity = importlib.import_module("kvterrace._identity")
            del sys.modules["kvterrace._identity"]

    def regimes(self, rotary, length, **more):
        config = types.SimpleNamespace(rope_parameters=rotary, max_position_embeddings=200, **more)
        return self.identity.regimes(config, length)

    def test_one_regime(self):
        for rotary in (None, {}, *({"rope_type": kind} for kind in ("default", "linear", "llama3",
                                                                    "yarn"))):
            self.assertEqual(self.regimes(rotary, 1 << 20), ())

    def test_longrope(self):
        for length, beyond in ((0, False), (100, False), (101, True)):
            self.assertEqual(self.regimes(LONG, length), (beyond,))

    def test_dynamic_has_no_name_from_the_limit_on(self):
        for length, found in ((0, ()), (199, ()), (200, None), (201, None)):
            self.assertEqual(self.regimes(DYNAMIC, length), found)
        earlier = dict(DYNAMIC, original_max_position_embeddings=50)
        self.assertIsNone(self.regimes(earlier, 50))

    def test_kinds_of_layers_and_parts(self):
        kinds = {"full_attention": LONG, "other": {"rope_type": "default"}}
        self.assertEqual(self.regimes(kinds, 101), (True,))
        part = types.SimpleNamespace(rope_parameters=DYNAMIC, max_position_embeddings=30)
        self.assertIsNone(self.regimes(None, 40, sub_configs={"text": None}, text=part))

    def test_sets_have_no_order(self):
        ordered = self.identity._ordered
        self.assertEqual(ordered({"b", "a", "c"}), ["a", "b", "c"])


if __name__ == "__main__":
    unittest.main()
