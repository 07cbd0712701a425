#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LMCache's own check of a second level, unmodified, through both plug-in points."""

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import unittest

ENGINE = "lmcache"
KEYS = 8


def specification(kind, settings, **parameters):
    name = {"plugin": "KvterraceL2Adapter", "native_plugin": "KvterraceConnector"}[kind]
    return json.dumps({"type": kind, "module_path": "kvterrace.lmcache", "class_name": name,
                       "adapter_params": {"settings": settings, **parameters}})


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
            serde = create_serde_processor(SerdeConfig("kvterrace", {"variant": variant,
                                                                     "head_dim": 64}))
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
