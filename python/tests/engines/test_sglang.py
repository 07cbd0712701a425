#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SGLang's factory of storage backends and its own host pools on the processor: pages come back
byte for byte in every layout, and its failure injector makes misses, never wrong bytes."""

import os
import random
import tempfile
import unittest

import kvterrace
import torch

from sglang.srt.environ import envs
from sglang.srt.mem_cache.device_pool_info import (KVBufferLayout, KVBuffers, MHABufferInfo,
                                                   MLABufferInfo)
from sglang.srt.mem_cache.hicache_storage import (HiCacheStorageConfig, HiCacheStorageExtraInfo,
                                                  HiCacheStorageFailureInjector, PoolHitPolicy,
                                                  PoolName, PoolTransfer)
from sglang.srt.mem_cache.pool_host import base as pool_base
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

ENGINE = "sglang"
LAYERS, HEADS, DIM, PAGE, PAGES = 4, 2, 32, 64, 6
TOKENS = PAGE * PAGES
CPU = torch.device("cpu")
# Pools of some kilobytes need no 10 GiB of free memory beside them.
pool_base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0


def pointers(tensors):
    return torch.tensor([one.data_ptr() for one in tensors], dtype=torch.uint64)


def mha_pool(layout, dtype=torch.bfloat16):
    """A host pool over a device pool on the processor."""
    k, v = ([torch.zeros(TOKENS + PAGE, HEADS, DIM, dtype=dtype) for _ in range(LAYERS)]
            for _ in range(2))
    info = MHABufferInfo(
        buffers=KVBuffers(k=tuple(k), v=tuple(v), k_data_ptrs=pointers(k), v_data_ptrs=pointers(v),
                          layout=KVBufferLayout.NHD),
        page_size=PAGE, head_num=HEADS, head_dim=DIM, v_head_dim=DIM, dtype=dtype, device=CPU)
    return MHATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False,
                                device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS)


def mla_pool(layout, dtype=torch.bfloat16):
    rows = [torch.zeros(TOKENS + PAGE, 1, 96, dtype=dtype) for _ in range(LAYERS)]
    info = MLABufferInfo(buffers=tuple(rows), data_ptrs=pointers(rows),
                         layer_indices=tuple(range(LAYERS)), device_layer_num=LAYERS,
                         page_size=PAGE, kv_lora_rank=64, qk_rope_head_dim=32, kv_cache_dim=96,
                         dtype=dtype, device=CPU)
    return MLATokenToKVPoolHost(info, 2.0, 0, PAGE, layout, pin_memory=False,
                                device_capacity_tokens=TOKENS, start_layer=0, end_layer=LAYERS,
                                target_layer_num=LAYERS)


def storage_config(settings, direct=1, is_mla=False, tp_rank=0, tp_size=1, model="model"):
    return HiCacheStorageConfig(
        tp_rank=tp_rank, tp_size=tp_size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=is_mla, enable_storage_metrics=False, is_page_first_layout=False,
        model_name=model,
        extra_config={"backend_name": "kvterrace", "module_path": "kvterrace.sglang",
                      "class_name": "KvterraceStorage", "interface_v1": direct,
                      "kvterrace": {"settings": settings, "revision": "1"}})


class Storage(unittest.TestCase):
    def backend(self, pool, config=None):
        """What SGLang's controller makes of its arguments, in its order."""
        config = config or storage_config({"tier.dram.capacity": "64MiB"})
        made = StorageBackendFactory.create_backend("dynamic", config, pool)
        self.addCleanup(made.close)
        made.register_mem_pool_host(pool)
        made.on_host_pools_registered()
        return made

    def fill(self, pool, seed):
        torch.manual_seed(seed)
        pool.kv_buffer.view(torch.uint8).copy_(
            torch.randint(0, 256, pool.kv_buffer.view(torch.uint8).shape, dtype=torch.uint8))

    def indices(self, pages):
        return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])

    def page_bytes(self, pool, page):
        return pool.get_data_page(page * PAGE).contiguous().view(torch.uint8).clone()

    def round_trip(self, pool, config=None):
        """Writes pages of a pool and reads them back into other pages, in another order."""
        backend, keys = self.backend(pool, config), [f"{index:064x}" for index in range(4)]
        self.fill(pool, 1)
        source, target = [3, 0, 5, 1], [2, 4, 3, 0]
        stored = [self.page_bytes(pool, page) for page in source]
        self.assertEqual(backend.batch_exists(keys), 0)
        extra = HiCacheStorageExtraInfo(prefix_keys=["f" * 64])
        self.assertEqual(backend.batch_set_v1(keys, self.indices(source), extra), [True] * 4)
        self.assertEqual(backend.batch_exists(keys + ["a" * 64]), 4)
        self.assertEqual(backend.batch_exists(["a" * 64] + keys), 0)
        self.fill(pool, 2)
        before = pool.kv_buffer.view(torch.uint8).clone()
        others = [page for page in range(pool.page_num) if page not in target]
        untouched = [self.page_bytes(pool, page) for page in others]
        self.assertEqual(backend.batch_get_v1(keys, self.indices(target)), [True] * 4)
        for page, expected in zip(target, stored):
            self.assertTrue(torch.equal(self.page_bytes(pool, page), expected))
        for page, expected in zip(others, untouched):
            self.assertTrue(torch.equal(self.page_bytes(pool, page), expected))
        self.assertFalse(torch.equal(pool.kv_buffer.view(torch.uint8), before))
        self.assertEqual(backend.batch_get_v1(["b" * 64] + keys[:1], self.indices([1, 5])),
                         [False, True])
        return backend

    def test_every_layout(self):
        for layout in ("layer_first", "page_first", "page_first_direct", "page_head"):
            with self.subTest(layout=layout):
                backend = self.round_trip(mha_pool(layout))
                self.assertIsNotNone(backend._pools["kv"].pattern)
        for layout in ("layer_first", "page_first", "page_first_direct"):
            with self.subTest(mla=layout):
                self.round_trip(mla_pool(layout), storage_config({"tier.dram.capacity": "64MiB"},
                                                                 is_mla=True))

    def test_other_types_and_ranks_are_misses(self):
        with tempfile.TemporaryDirectory(prefix="kvt-engines-") as folder:
            settings = {"device.ssd.tier": "ssd", "device.ssd.backend": "file",
                        "device.ssd.capacity": "64MiB",
                        "device.ssd.path": os.path.join(folder, "kv"),
                        "store.catalog": os.path.join(folder, "catalog")}
            keys = [f"{index:064x}" for index in range(3)]
            pool = mha_pool("page_first")
            self.fill(pool, 3)
            expected = self.page_bytes(pool, 1)
            backend = self.backend(pool, storage_config(settings))
            self.assertEqual(backend.batch_set_v1(keys, self.indices([0, 1, 2])), [True] * 3)
            backend.close()
            for other, config in (
                    (mha_pool("page_first", torch.float16), storage_config(settings)),
                    (mha_pool("layer_first"), storage_config(settings)),
                    (mha_pool("page_first"), storage_config(settings, model="other")),
                    (mha_pool("page_first"), storage_config(settings, tp_rank=1, tp_size=2))):
                backend = self.backend(other, config)
                self.assertEqual(backend.batch_exists(keys), 0)
                backend.close()
            backend = self.backend(pool, storage_config(settings))  # the same as before
            self.assertEqual(backend.batch_exists(keys), 3)
            self.assertEqual(backend.batch_get_v1(keys[1:2], self.indices([4])), [True])
            self.assertTrue(torch.equal(self.page_bytes(pool, 4), expected))
            backend.close()

    def test_the_failure_injector(self):
        """Reads and writes fail at 0.3: what is reported as read is right, always."""
        with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.3):
            for layout in ("layer_first", "page_first", "page_first_direct"):
                pool, rng = mha_pool(layout), random.Random(layout)
                backend = self.backend(pool)
                self.assertIsInstance(backend, HiCacheStorageFailureInjector)
                self.fill(pool, 5)
                known, read = {}, 0
                for number in range(200):
                    key, page = f"{rng.randrange(40):064x}", rng.randrange(PAGES)
                    if rng.random() < 0.5:
                        content = self.page_bytes(pool, page)
                        if backend.batch_set_v1([key], self.indices([page])) == [True]:
                            known.setdefault(key, content)  # the first one stays
                        continue
                    if backend.batch_get_v1([key], self.indices([page])) == [True]:
                        self.assertIn(key, known)
                        self.assertTrue(torch.equal(self.page_bytes(pool, page), known[key]))
                        read += 1
                    else:  # what a failed read leaves is not used; new content takes its place
                        pool.kv_buffer.view(torch.uint8).flatten()[:64] = number
                self.assertGreater(read, 10)
                backend.close()

    def test_flat_pages_without_the_direct_interface(self):
        pool = mha_pool("page_first")
        backend = self.backend(pool, storage_config({"tier.dram.capacity": "64MiB"}, direct=0))
        self.fill(pool, 6)
        keys = [f"{index:064x}" for index in range(3)]
        pages = [pool.get_data_page(page * PAGE) for page in (0, 1, 2)]
        self.assertTrue(backend.batch_set(keys, pages))
        self.assertEqual(backend.batch_exists(keys + ["c" * 64]), 3)
        self.assertTrue(backend.exists(keys[0]))
        found = backend.batch_get(keys + ["c" * 64],
                                  [pool.get_dummy_flat_data_page() for _ in range(4)])
        self.assertIsNone(found[3])
        for page, expected in zip(found, pages):
            self.assertTrue(torch.equal(page.view(torch.uint8),
                                        expected.contiguous().view(torch.uint8)))

    def test_further_pools(self):
        """Version 2: a second pool beside KV, all of its pages or the trailing ones."""
        pool, window = mha_pool("page_first"), mha_pool("page_head")
        backend = self.backend(pool)
        backend.register_mem_host_pool_v2(window, PoolName.SWA)
        self.fill(pool, 7)
        self.fill(window, 8)
        keys = [f"{index:064x}" for index in range(4)]
        self.assertEqual(backend.batch_set_v1(keys, self.indices([0, 1, 2, 3])), [True] * 4)
        trailing = PoolTransfer(PoolName.SWA, host_indices=self.indices([4, 5]), keys=keys[1:3],
                                hit_policy=PoolHitPolicy.TRAILING_PAGES)
        expected = [self.page_bytes(window, page) for page in (4, 5)]
        self.assertEqual(backend.batch_set_v2([trailing]), {PoolName.SWA: [True, True]})
        hit = backend.batch_exists_v2(keys, [trailing])
        self.assertEqual((hit.kv_hit_pages, hit.restorable_prefix_pages), (3, [3]))
        every = PoolTransfer(PoolName.SWA, keys=keys)
        self.assertEqual(backend.batch_exists_v2(keys, [every]).kv_hit_pages, 0)
        self.fill(window, 9)
        trailing.host_indices = self.indices([0, 1])
        self.assertEqual(backend.batch_get_v2([trailing]), {PoolName.SWA: [True, True]})
        for page, wanted in zip((0, 1), expected):
            self.assertTrue(torch.equal(self.page_bytes(window, page), wanted))
        short = PoolTransfer(PoolName.SWA, host_indices=self.indices([0]), keys=keys[:2])
        self.assertEqual(backend.batch_get_v2([short]), {PoolName.SWA: [False, False]})

    def test_a_rank_that_does_not_write(self):
        """One rank writes MLA's pages for all, so ranks with stores of their own are refused."""
        config = storage_config({"tier.dram.capacity": "64MiB"}, is_mla=True, tp_rank=1, tp_size=2)
        with self.assertRaisesRegex(kvterrace.ConfigError, "one of 2 tensor ranks"):
            self.backend(mla_pool("page_first"), config)

    def test_clear(self):
        pool = mha_pool("page_first")
        backend, keys = self.backend(pool), ["e" * 64]
        self.assertEqual(backend.batch_set_v1(keys, self.indices([0])), [True])
        backend.clear()
        self.assertEqual(backend.batch_exists(keys), 0)


if __name__ == "__main__":
    unittest.main()
