#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LMCache's own check of a second level, unmodified, through both plug-in points."""

import argparse
import json
import math
import os
import re
import select
import subprocess
import sys
import tempfile
import unittest

from engine_case import MODEL, Calibrated, EngineCase, disk_store, recall_texts

ENGINE = "lmcache"
KEYS = 8


def specification(kind, settings, **parameters):
    name = {"plugin": "KvterraceL2Adapter", "native_plugin": "KvterraceConnector"}[kind]
    return json.dumps({"type": kind, "module_path": "kvterrace.lmcache", "class_name": name,
                       "adapter_params": {"settings": settings, "revision": "1", **parameters}})


class BasicCheck(unittest.TestCase):
    def check(self, kind, settings, *options):
        """Runs the check in a process of its own; every phase passes for every key."""
        done = subprocess.run(
            [sys.executable, "-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter",
             "--num-keys", str(KEYS), "--l2-adapter", specification(kind, settings), *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        for phase in (r"LOOKUP \(absent\)", "STORE", r"LOOKUP \(exist\)", "LOAD"):
            self.assertRegex(done.stdout, rf"\| {phase} .*\b{KEYS}/{KEYS} ", done.stdout)
        self.assertRegex(done.stdout, rf"Validation \(content\): {KEYS}/{KEYS}")
        self.assertNotIn("Test Failed", done.stdout)
        self.assertIsNone(re.search(r"\bERROR\b", done.stdout), done.stdout)

    def test_plugin(self):
        self.check("plugin", {"tier.dram.capacity": "64MiB"})

    def test_native_plugin(self):
        self.check("native_plugin", {"tier.dram.capacity": "64MiB"})

    def test_both_on_a_file(self):
        with tempfile.TemporaryDirectory(prefix="kvt-engines-") as folder:
            for kind in ("plugin", "native_plugin"):
                device = {"device.ssd.tier": "ssd", "device.ssd.backend": "file",
                          "device.ssd.path": os.path.join(folder, kind),
                          "device.ssd.capacity": "64MiB"}
                self.check(kind, device, "--kv-dtype", "bfloat16", "--obj-size", "131072")


class Logprobs(EngineCase):
    """The KV of the reference model through LMCache's own objects and its second level. LMCache's
    connector of vLLM needs a GPU, so transformers computes; a new level, as after a restart, gives
    the KV back, and the model goes on from it."""

    CHUNK, CONTEXT, AFTER = 256, 768, 64

    @classmethod
    def setUpClass(cls):
        import torch
        import transformers
        torch.set_num_threads(1)
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        cls.texts = recall_texts(768, 10)

    def level(self, settings, **parameters):
        """LMCache's factory makes the level from its configuration."""
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter
        from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
        given = argparse.Namespace(l2_adapter=[specification("plugin", settings, head_dim=32,
                                                             **parameters)])
        return create_l2_adapter(parse_args_to_l2_adapters_config(given).adapters[0], None)

    def objects(self, tensors):
        """LMCache's objects over tensors of [K, V][layer][token][heads x dim]."""
        from lmcache.v1.memory_management import (MemoryFormat, MemoryObjMetadata,
                                                  TensorMemoryObj)
        import torch
        return [TensorMemoryObj(one.flatten().view(torch.uint8), MemoryObjMetadata(
            shape=one.shape, dtype=one.dtype, address=one.data_ptr(), phy_size=one.nbytes,
            fmt=MemoryFormat.KV_2LTD, ref_count=1), parent_allocator=None) for one in tensors]

    def keys(self, number):
        from lmcache.v1.distributed.api import ObjectKey
        return [ObjectKey(chunk_hash=bytes([number, chunk]) + bytes(14), model_name="reference",
                          kv_rank=0) for chunk in range(self.CONTEXT // self.CHUNK)]

    def wait(self, fd):
        from lmcache.v1.platform import consume_fd
        self.assertTrue(select.select([fd], [], [], 120)[0])
        consume_fd(fd)

    def compute(self, tokens):
        """The cache of the context, as fp16 chunks of LMCache's form."""
        import torch
        import transformers
        cache = transformers.DynamicCache(config=self.model.config)
        with torch.no_grad():
            self.model(input_ids=torch.tensor([tokens[:self.CONTEXT]]), past_key_values=cache)
        sides = [torch.stack([getattr(layer, side)[0].transpose(0, 1).reshape(self.CONTEXT, -1)
                              for layer in cache.layers]) for side in ("keys", "values")]
        whole = torch.stack(sides).to(torch.float16)
        return [part.contiguous() for part in whole.split(self.CHUNK, dim=2)]

    def go_on(self, chunks, tokens):
        """Log probabilities of what follows a context whose KV is in chunks."""
        import torch
        import transformers
        whole, cache = torch.cat(chunks, dim=2).float(), transformers.DynamicCache(
            config=self.model.config)
        for layer in range(whole.shape[1]):
            cache.update(*[side[layer].reshape(self.CONTEXT, 2, 32).transpose(0, 1)[None]
                           for side in whole], layer)
        with torch.no_grad():
            out = self.model(input_ids=torch.tensor([
                tokens[self.CONTEXT:self.CONTEXT + self.AFTER]]), past_key_values=cache)
        return torch.log_softmax(out.logits[0].double(), dim=-1)

    def through(self, settings):
        """(what the model says from the computed KV, from the loaded KV, bytes that are stored)."""
        import torch
        level, computed = self.level(settings), []
        for number, tokens in enumerate(self.texts):
            chunks = self.compute(tokens)
            computed.append(self.go_on(chunks, tokens))
            level.submit_store_task(self.keys(number), self.objects(chunks))
            self.wait(level.get_store_event_fd())
            result, = level.pop_completed_store_tasks().values()
            self.assertTrue(result.is_successful())
        level._store.flush()
        stored = level._store.stats()["tiers"]["ssd"]["used_bytes"]
        level.close()
        level, loaded = self.level(settings), []
        self.addCleanup(level.close)
        for number, tokens in enumerate(self.texts):
            keys = self.keys(number)
            task = level.submit_lookup_and_lock_task(keys, {})
            self.wait(level.get_lookup_and_lock_event_fd())
            found = level.query_lookup_and_lock_result(task)
            chunks = [torch.zeros(2, 4, self.CHUNK, 64, dtype=torch.float16) for _ in keys]
            task = level.submit_load_task(keys, self.objects(chunks))
            self.wait(level.get_load_event_fd())
            got = level.query_load_result(task)
            level.submit_unlock(keys)
            self.assertTrue(all(found.test(index) and got.test(index)
                                for index in range(len(keys))))
            loaded.append(self.go_on(chunks, tokens))
        return computed, loaded, stored

    RAW = 10 * 768 * 1024

    def test_exact_forms_change_no_logprob(self):
        import torch
        computed, loaded, _ = self.through(disk_store(self.folder()))
        for first, second in zip(computed, loaded, strict=True):
            self.assertTrue(torch.equal(first, second))

    def test_a_lossy_form(self):
        ladder = Calibrated(self.folder())
        computed, loaded, stored = self.through(disk_store(
            self.folder(), **ladder.settings(), **{"store.variant": ladder.VARIANT}))
        self.assertLess(stored, 0.45 * self.RAW)
        print(f"{self.id()}: {stored} bytes for {self.RAW}", flush=True)
        ladder.check(self, [1 - math.exp(-float((first.exp() * (first - second)).sum(-1).mean()))
                            for first, second in zip(computed, loaded, strict=True)])


class Serde(unittest.TestCase):
    """The codecs before LMCache's own file level, as its storage manager chains them."""

    def test_before_a_level_of_files(self):
        import torch
        import kvterrace.lmcache_serde
        from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
        from lmcache.v1.distributed.serde import SerdeConfig, create_serde_processor
        from lmcache.v1.memory_management import (MemoryFormat, MemoryObjMetadata,
                                                  TensorMemoryObj)
        from lmcache.v1.platform import consume_fd
        self.assertEqual(kvterrace.lmcache_serde.TESTED, ("0.5.6",))

        def made(shape, dtype, data):
            about = MemoryObjMetadata(shape=torch.Size(shape), dtype=dtype, address=0,
                                      phy_size=data.numel(), fmt=MemoryFormat.KV_2LTD, ref_count=1)
            return TensorMemoryObj(data, about, parent_allocator=None)

        def wait(fd):
            self.assertTrue(select.select([fd], [], [], 60)[0])
            consume_fd(fd)

        shape, dtype = [2, 4, 256, 128], torch.bfloat16
        desc = MemoryLayoutDesc(shapes=[torch.Size(shape)], dtypes=[dtype])
        source = torch.randn(shape, dtype=torch.float32).to(dtype)
        key = ObjectKey(chunk_hash=bytes(16), model_name="model", kv_rank=0)
        for variant, exact in (("lossless", True), ("planes:k8v8,g64", False)):
            serde = create_serde_processor(SerdeConfig("kvterrace", {
                "variant": variant, "head_dim": 64, "revision": "1"}))
            self.addCleanup(serde.close)
            size = serde.estimate_serialized_size(desc)
            packed = made([size], torch.uint8, torch.zeros(size, dtype=torch.uint8))
            before = made(shape, dtype, source.flatten().view(torch.uint8).clone())
            after = made(shape, dtype, torch.zeros(source.numel() * 2, dtype=torch.uint8))
            task = serde.submit_serialize([before], [packed], [key])
            wait(serde.get_serialize_event_fd())
            self.assertTrue(serde.query_serialize_result(task))
            self.assertLess(packed.get_size(), source.numel() * 2)
            task = serde.submit_deserialize([packed], [after], [key])
            wait(serde.get_deserialize_event_fd())
            self.assertTrue(serde.query_deserialize_result(task))
            self.assertEqual(torch.equal(after.tensor, source), exact)
            self.assertLess((after.tensor.float() - source.float()).abs().max(), 0.1)
            task = serde.submit_deserialize([packed], [after], [
                ObjectKey(chunk_hash=bytes(15) + b"1", model_name="model", kv_rank=0)])
            wait(serde.get_deserialize_event_fd())
            self.assertFalse(serde.query_deserialize_result(task))


if __name__ == "__main__":
    unittest.main()
