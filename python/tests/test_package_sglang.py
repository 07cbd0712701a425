#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The adapter of SGLang against classes of its interface: pages in every order, runs, ranks, pools
that say little, and what is refused."""

import os
import tempfile
import types
import unittest

from package_case import PackageCase, kvterrace, pattern
import fake_sglang
from fake_sglang import Config, HostPool, Indices, PoolHitPolicy, PoolName, Tensor, Transfer

_FOLDER = tempfile.TemporaryDirectory(prefix="kvt-test-")
fake_sglang.install(_FOLDER.name)

from kvterrace import sglang  # noqa: E402  (behind the classes)

PAGE = 16
SHARED = {"tier.remote.namespace": "ranks", "tier.remote.publish": "all",
          "remote.a.backend": "memory", "remote.a.address": "ranks"}


def indices(*pages):
    return Indices(index for page in pages for index in range(page * PAGE, (page + 1) * PAGE))


def keys(*numbers):
    return [f"{number:064x}" for number in numbers]


class Storage(PackageCase):
    def backend(self, pool=None, direct=1, settings=None, other=None, **fields):
        given = {"settings": {"tier.dram.capacity": "32MiB", **(settings or {})},
                 "revision": "1", **(other or {})}
        made = sglang.KvterraceStorage(
            Config({"interface_v1": direct, "kvterrace": given}, **fields), {})
        self.addCleanup(made.close)
        if pool is not None:
            made.register_mem_pool_host(pool)
        return made

    def fill(self, pool, seed):
        pool.data[:] = pattern(len(pool.data), seed)

    def round_trip(self, pool):
        """Pages come back into other places of the same pool, and nothing else is touched."""
        backend = self.backend(pool)
        self.fill(pool, 1)
        self.assertEqual(backend.batch_set_v1(keys(1, 2), indices(3, 0)), [True, True])
        self.assertEqual(backend.batch_set_v1(keys(1, 2), indices(3, 0)), [True, True])
        self.assertEqual(backend.batch_exists(keys(1, 2, 3)), 2)
        self.assertEqual(backend.batch_exists(keys(3, 1)), 0)
        self.assertEqual(backend.batch_exists([]), 0)
        before = bytes(pool.data)
        self.assertEqual(backend.batch_get_v1(keys(1, 2), indices(3, 0)), [True, True])
        self.assertEqual(bytes(pool.data), before)  # the same pages: nothing changes
        self.fill(pool, 2)
        self.assertEqual(backend.batch_get_v1(keys(1, 9, 2), indices(3, 5, 0)),
                         [True, False, True])
        return backend, before

    def test_pages_by_views(self):
        for layout in ("page_first", "page_first_direct"):
            pool = HostPool(layout)
            backend, before = self.round_trip(pool)
            self.assertEqual(backend._pools["kv"].layout.kv_heads, 2)
            half = pool.page_bytes // 2
            for page in (0, 3):
                for at, size in pool.halves(page):
                    self.assertEqual(pool.data[at:at + size], before[at:at + size])
            untouched = pattern(len(pool.data), 2)
            self.assertEqual(pool.data[half:3 * half], untouched[half:3 * half])
            self.assertEqual(pool.data[4 * half:6 * half], untouched[4 * half:6 * half])

    def test_pages_of_other_hosts(self):
        """Two stores with one engine between them, which is in this process's memory."""
        shared = {"store.policy": "lru", "tier.remote.namespace": "pages",
                  "tier.remote.publish": "all", "remote.a.backend": "memory",
                  "remote.a.address": "test_pages_of_other_hosts"}
        for layout in ("page_first", "page_first_direct"):
            pool, other = HostPool(layout), HostPool(layout)
            first = self.backend(pool, settings=shared)
            second = self.backend(other, settings=shared)
            self.fill(pool, 1)
            self.assertEqual(first.batch_set_v1(keys(1, 2), indices(0, 1)), [True, True])
            first._store.flush()
            self.assertTrue(first._store.remote_flush(deadline=30))
            ours = [second._keys("kv", [key]) for key in keys(1, 2)]
            self.assertEqual(second._store.match(ours), 0)
            self.assertEqual(second.batch_exists(keys(1, 2, 3)), 2)
            self.assertEqual(second.batch_get_v1(keys(1, 2, 3), indices(0, 1, 2)),
                             [True, True, False])
            self.assertEqual([other.get(page) for page in (0, 1)],
                             [pool.get(page) for page in (0, 1)])
            self.assertEqual(second._store.remote_stats()["hits"], 2)

    def test_layer_first_by_views(self):
        pool = HostPool("layer_first")
        _, before = self.round_trip(pool)
        row = 2 * 32 * 2
        whole = pattern(len(pool.data), 2)
        for layer in range(6):  # K's layers, then V's
            for page in (0, 3):
                at = (layer * 6 + page) * PAGE * row
                whole[at:at + PAGE * row] = before[at:at + PAGE * row]
        self.assertEqual(pool.data, whole)

    def test_pools_that_say_little(self):
        for pool in (HostPool("page_first", ranges=True), HostPool("page_first", flat=True)):
            backend = self.backend(pool)
            self.fill(pool, 1)
            stored = [pool.get(3), pool.get(0)]
            self.assertEqual(backend.batch_set_v1(keys(1, 2), indices(3, 0)), [True, True])
            self.fill(pool, 2)
            self.assertEqual(backend.batch_exists(keys(1, 2)), 2)
            self.assertEqual(backend.batch_get_v1(keys(1, 2), indices(5, 4)), [True, True])
            self.assertEqual([pool.get(5), pool.get(4)], stored)

    def test_more_pages_than_the_queue_takes(self):
        pool = HostPool("page_first")
        backend = self.backend(pool)
        for kind in list(backend._queues):
            backend._queues[kind].close()
            backend._queues[kind] = type(backend._queues[kind])(backend._store, depth=2)
        self.fill(pool, 1)
        before = bytes(pool.data)
        self.assertEqual(backend.batch_set_v1(keys(*range(5)), indices(*range(5))), [True] * 5)
        self.fill(pool, 2)
        self.assertEqual(backend.batch_get_v1(keys(*range(5)), indices(*range(5))), [True] * 5)
        for page in range(5):
            for at, size in pool.halves(page):
                self.assertEqual(pool.data[at:at + size], before[at:at + size])

    def test_the_chain_of_pages_is_known(self):
        pool = HostPool("page_first")
        backend = self.backend(pool)
        extra = types.SimpleNamespace(prefix_keys=keys(1))
        backend.batch_set_v1(keys(1), indices(0), types.SimpleNamespace(prefix_keys=[]))
        backend.batch_set_v1(keys(2, 3), indices(1, 2), extra)
        joined = backend._keys("kv", keys(1, 2, 3))
        about = [backend._store.describe(joined[at:at + 32]) for at in range(0, 96, 32)]
        self.assertEqual([one["parent"] for one in about], [None, joined[:32], joined[32:64]])
        self.assertEqual([one["first_position"] for one in about], [0, PAGE, 2 * PAGE])

    def test_what_decides_the_bytes_is_of_the_space(self):
        pools = [HostPool("page_first"), HostPool("page_first", dtype="float16"),
                 HostPool("page_first_direct"), HostPool("page_first", heads=4),
                 HostPool("page_first", ranges=True)]
        configs = [{}, {"tp_rank": 1, "tp_size": 2}, {"pp_rank": 1, "pp_size": 2},
                   {"model_name": "other"}, {"attn_cp_rank": 1, "attn_cp_size": 2}]
        spaces = set()
        for pool in pools:
            for fields in configs:
                backend = self.backend(pool, **fields)
                spaces.add(backend._spaces["kv"].hash)
                backend.close()
        self.assertEqual(len(spaces), len(pools) * len(configs))
        shared = {self.backend(pools[0], settings=SHARED, is_mla_model=True, tp_rank=rank,
                               tp_size=2)._spaces["kv"].hash for rank in (0, 1)}
        self.assertEqual(len(shared), 1)

    def test_one_rank_writes(self):
        pool = HostPool("page_first")
        backend = self.backend(pool, settings=SHARED, is_mla_model=True, tp_rank=1, tp_size=2)
        self.assertEqual(backend.batch_set_v1(keys(1), indices(0)), [True])
        self.assertEqual(backend.batch_exists(keys(1)), 0)

    def test_further_pools(self):
        pool, window = HostPool("page_first"), HostPool("page_first_direct")
        backend = self.backend(pool)
        backend.register_mem_host_pool_v2(window, PoolName.SWA)
        self.fill(window, 3)
        content = window.get(5)
        backend.batch_set_v1(keys(1, 2, 3), indices(0, 1, 2))
        transfer = Transfer(PoolName.SWA, keys(2), indices(5), PoolHitPolicy.TRAILING_PAGES)
        self.assertEqual(backend.batch_set_v2([transfer]), {PoolName.SWA: [True]})
        hit = backend.batch_exists_v2(keys(1, 2, 3), [transfer])
        self.assertEqual((hit.kv_hit_pages, hit.extra_pool_hit_pages),
                         (2, {PoolName.KV: 3, PoolName.SWA: 2}))
        self.assertEqual(hit.restorable_prefix_pages, [2])
        hit = backend.batch_exists_v2(keys(1, 2, 3), [Transfer(PoolName.SWA, keys(1, 2, 3))])
        self.assertEqual(hit.kv_hit_pages, 0)
        transfer.host_indices = indices(1)
        self.assertEqual(backend.batch_get_v2([transfer]), {PoolName.SWA: [True]})
        self.assertEqual(window.get(1), content)
        unknown = Transfer(PoolName.MAMBA, keys(1), indices(0))
        self.assertEqual(backend.batch_get_v2([unknown]), {PoolName.MAMBA: [False]})
        with self.assertRaises(ValueError):
            backend.batch_exists_v2(keys(1), [Transfer(PoolName.SWA, keys(1), None,
                                                       PoolHitPolicy.BLOCK_GROUPS)])

    def test_flat_pages(self):
        backend = self.backend(HostPool("page_first"), direct=0)
        pages, runs = [Tensor(pattern(4096, seed)) for seed in (1, 2)], []
        for queue in set(backend._queues.values()):
            def counted(task, *rest, run=queue.run):
                runs.append(task.count)
                return run(task, *rest)
            queue.run = counted
        self.assertTrue(backend.batch_set(keys(1, 2), pages))
        self.assertEqual(backend.batch_exists(keys(1, 2, 3)), 2)
        self.assertTrue(backend.exists(keys(2)[0]))
        targets = [Tensor(bytearray(4096)) for _ in range(3)]
        found = backend.batch_get(keys(1, 2, 3), targets)
        self.assertEqual([one.data for one in found[:2]], [one.data for one in pages])
        self.assertIsNone(found[2])
        self.assertEqual(runs, [2, 3])  # of a batch one task, whose requests go together
        self.assertIsNone(backend.get(keys(1)[0], Tensor(bytearray(100))))  # another size
        self.assertIsNone(backend.get(keys(1)[0]))
        self.assertFalse(backend.set(keys(5)[0]))

    def test_wrong_calls_are_misses(self):
        pool = HostPool("page_first")
        backend = self.backend(pool)
        self.fill(pool, 1)
        before = bytes(pool.data)
        for wrong in (indices(0)[:-1], Indices(range(3, 3 + PAGE)), indices(99), None):
            self.assertEqual(backend.batch_set_v1(keys(1), wrong), [False])
            self.assertEqual(backend.batch_get_v1(keys(1), wrong), [False])
        self.assertEqual(bytes(pool.data), before)
        self.assertEqual(backend.batch_exists(keys(1)), 0)
        self.assertEqual(backend.batch_set_v1([], indices()), [])
        self.assertEqual(self.backend().batch_get_v1(keys(1), indices(0)), [False])  # no pool
        backend.close()
        backend.close()
        self.assertEqual(backend.batch_get_v1(keys(1), indices(0)), [False])

    def test_parameters(self):
        with self.assertRaises(kvterrace.ConfigError) as caught:
            self.backend(other={"thread": 2})
        self.assertIn("unknown parameter thread", str(caught.exception))
        folder = self.folder()
        device = {"device.a.tier": "ssd", "device.a.backend": "file", "device.a.capacity": "16MiB",
                  "device.a.path": os.path.join(folder, "kv-{rank}")}
        for rank in (0, 1):
            self.backend(settings=device, tp_rank=rank, tp_size=2)
        self.assertEqual(sorted(os.listdir(folder)), ["kv-tp0-pp0", "kv-tp1-pp0"])

    def test_another_version_serves_while_its_interface_is_the_same(self):
        said = self.script(
            "import logging, sys, tempfile\n"
            f"sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
            "logging.basicConfig(stream=sys.stdout)\n"
            "import fake_sglang\n"
            "fake_sglang.install(tempfile.mkdtemp(), '0.6.0')\n"
            "import kvterrace.sglang\n"
            "print('serves')\n")
        self.assertIn("tested with SGLang 0.5.23, and this is 0.6.0: what the adapter uses of it "
                      "is the same", said)
        self.assertIn("serves", said)


if __name__ == "__main__":
    unittest.main()
