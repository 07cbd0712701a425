#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's own tiering around our tier without an engine: its spec, manager, host memory and regions,
with blocks in tensors. It runs with versions whose engine has no build for the processor, too: put
their sources before vLLM's on PYTHONPATH."""

import contextlib
import itertools
import os
import time
import types
import unittest

from engine_case import EngineCase, disk_store, need

ENGINE = "vllm"
PAGE, PER_CHUNK, CHUNKS = 1 << 14, 4, 6
BLOCKS = PER_CHUNK * CHUNKS


def config_of(number, settings, rank=0, ranks=1, page=PAGE, groups=1, second=2, **more):
    """rank: of so many workers of tensor parallelism. page: a layer's bytes of a block of one
    worker. second: the layers of the last group. more: of the tier."""
    from vllm.v1.kv_offload import config
    tier = {"type": "KvterraceTier", "module_path": "kvterrace.vllm", "settings": settings,
            "revision": "1", "enable_kv_events": True, **more}
    return config.OffloadingConfig(
        groups=tuple(config.OffloadingGroupConfig(
            32, tuple(f"layer{index}" for index in range(2 if group + 1 < groups else second)),
            group) for group in range(groups)),
        worker_kv_bytes_per_block=2 * page, enable_kv_cache_events=True,
        extra_config={"cpu_bytes_to_use": 16 * PER_CHUNK * 2 * page * ranks,
                      "secondary_tiers": [tier]},
        engine_id=f"kvterrace-{os.getpid()}-{number}",
        model=config.OffloadingModelConfig("model", "bfloat16"),
        cache=config.OffloadingCacheConfig(32, PER_CHUNK),
        parallel=config.OffloadingParallelConfig(rank, ranks, ranks, 1, 1, 1, 0, 1, None, False),
        kv_cache_layout="LBHNC")


class Classes(EngineCase):
    def until(self, ready):
        end = time.monotonic() + 120
        while not ready():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_blocks_come_back_through_all_tiers(self):
        import torch
        tensors = [torch.randint(-128, 127, (64, PAGE), dtype=torch.int8) for _ in range(2)]
        config = config_of(0, disk_store(self.folder()))
        before = self.live_of([config], [tensors], store=True)
        for one, was in zip(tensors, before[0]):
            self.assertTrue(torch.equal(one[:BLOCKS], was))

    def test_heads_of_workers_make_one_row(self):
        """Two workers that have a head each, and then one that has both, over one store; the same
        with two groups of layers."""
        import importlib.util
        import numpy
        import torch
        if importlib.util.find_spec("vllm._C") is None:
            self.skipTest("these sources of vLLM have no kernels")
        from kvterrace._vllm_copies import learn_order
        settings, heads, page = disk_store(self.folder()), (2, 32), 2 * 2 * 32 * 32
        tier = {"kv_heads": heads[0], "head_dim": heads[1]}
        for number, groups in ((10, 1), (20, 2)):
            tensors = [[torch.randint(-128, 127, (64, page), dtype=torch.int8) for _ in range(2)]
                       for _ in range(2)]
            self.live_of([config_of(number, settings, rank, 2, page, groups, **tier)
                          for rank in range(2)], tensors, store=True)
            whole = [torch.zeros((64, 2 * page), dtype=torch.int8) for _ in range(2)]
            self.live_of([config_of(number + 1, settings, 0, 1, 2 * page, groups, **tier)],
                         [whole], store=False)
            orders = [learn_order(count, 32, 32, torch.bfloat16).places for count in (1, 2)]
            for layer in range(2):
                said = whole[layer].numpy().view("u2")[:BLOCKS, orders[1]].reshape(-1, 2, 32, 2, 32)
                for rank in range(2):
                    was = tensors[rank][layer].numpy().view("u2")[:BLOCKS, orders[0]]
                    numpy.testing.assert_array_equal(said[:, :, :, rank],
                                                     was.reshape(-1, 2, 32, 32))

    def test_rows_that_have_no_shape(self):
        from kvterrace import ConfigError, vllm as ours
        settings = disk_store(self.folder())
        for why, wrong in (("workers", {"ranks": 2, "kv_heads": 3}),
                           ("groups of layers", {"groups": 2, "second": 1, "kv_heads": 2})):
            with self.assertRaisesRegex(ConfigError, why):
                ours.HostTieringSpec(config_of(30, settings, head_dim=32, **wrong))

    def live_of(self, configs, caches, store):
        """The blocks of one engine, whose workers have a configuration and tensors each: stored,
        forgotten and loaded, or loaded alone. Returns what the blocks were."""
        from vllm.v1.kv_offload import base
        from kvterrace import vllm as ours
        specs = [ours.HostTieringSpec(config) for config in configs]
        manager = specs[0].get_manager()
        tier, = manager.secondary_tiers
        groups = len(configs[0].groups)
        workers = [spec.get_worker(base.CanonicalKVCaches(
            [base.CanonicalKVCacheTensor(one, one.shape[1]) for one in tensors],
            [[base.CanonicalKVCacheRef(index, tensors[0].shape[1]) for index in range(2)]
             for _ in range(groups)])) for spec, tensors in zip(specs, caches)]
        group = groups - 1
        keys = [base.make_offload_key(bytes([index]) * 32, group) for index in range(CHUNKS)]
        blocks = base.GPULoadStoreSpec(list(range(BLOCKS)), [0] * group + [BLOCKS], [0] * groups)
        lock = getattr(manager, "lock", contextlib.nullcontext())
        events = []

        def step():
            with lock:
                manager.on_schedule_end(base.ScheduleEndContext((), ()))
                events.extend(manager.take_events())

        def all_hit(context):
            with lock:
                found = [manager.lookup(key, context) for key in keys]
            step()
            return set(found) == {base.LookupResult.HIT}

        if store:
            asks = base.ReqContext("first", kv_transfer_params={"kvterrace": {"tenant": 3}})
            for index, key in enumerate(keys):
                asks.set_offload_key_position(key, 32 * PER_CHUNK * (index + 1))
            with lock:
                manager.on_new_request(asks)
                stored = manager.prepare_store(keys, asks)
            for worker in workers:
                self.assertTrue(worker.submit_store(1, blocks, stored.store_spec))
                self.assertTrue(worker.get_finished()[0].success)
            with lock:
                manager.complete_store(keys, asks)
            self.until(lambda: step() or tier._store.stats()["puts"] == CHUNKS and
                       not tier.has_pending_work())
            step()
            told = [(one.medium.value, one.ownership, one.locality.value, len(one.keys),
                     one.removed) for one in events if one.ownership]
            self.assertEqual(told, [("STORAGE", "KvterraceTier", "LOCAL", CHUNKS, False)])
            with lock:
                manager.on_request_finished(asks)
                manager.reset_cache()
                getattr(manager, "on_reset_flushed", lambda: None)()
        before = [[one[:BLOCKS].clone() for one in tensors] for tensors in caches]
        for one in itertools.chain(*caches):
            one.zero_()
        again = base.ReqContext("again")
        with lock:
            manager.on_new_request(again)
        events.clear()
        self.until(lambda: all_hit(again))
        self.assertEqual([one for one in events if one.ownership], [])  # vLLM knows no tokens yet
        step()
        step()
        self.assertEqual(sorted(key for one in events if one.ownership for key in one.keys),
                         [] if store else sorted(keys))
        with lock:
            load = manager.prepare_load(keys, again)
        for worker in workers:
            self.assertTrue(worker.submit_load(2, load, blocks))
            self.assertTrue(worker.get_finished()[0].success)
            worker.shutdown()
        manager.shutdown()
        self.assertEqual([name for name in os.listdir("/dev/shm")
                          if f"kvterrace-{os.getpid()}" in name], [])
        return before

    def test_rows_of_a_region_of_several_files(self):
        """vLLM 0.33 makes regions of 32 files that lie one behind the other."""
        import inspect
        import torch
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload.cpu import shared_offload_region as regions
        from vllm.v1.kv_offload.tiering.base import TransferJob
        from kvterrace import vllm as ours
        made = regions.SharedOffloadRegion
        several = {}
        if "num_segments" in inspect.signature(made).parameters:
            regions._MIN_SEGMENT_BYTES, several = 1 << 16, {"num_segments": 32}
        region = made(f"kvterrace-{os.getpid()}", 64, None, 1 << 16, 1 << 16, **several)
        self.assertEqual(len(getattr(region, "_segments", [0])), 32 if several else 1)
        view = region.create_kv_memoryview()
        tier = ours.KvterraceTier(types.SimpleNamespace(
            config=config_of(1, {}), replicated_layout=False, kv_events_config=None), view, "tier",
            settings=disk_store(self.folder()), revision="1")
        rows = region.base_tensor.view(64, -1) if several else region._base.view(64, -1)
        rows[:32] = torch.randint(-128, 127, (32, 1 << 16), dtype=torch.int8)
        keys = [base.make_offload_key(bytes([index]) * 32, 0) for index in range(32)]
        for number, (submit, chunks) in enumerate(((tier.submit_store, range(32)),
                                                   (tier.submit_load, range(32, 64)))):
            submit(TransferJob(number, keys, list(chunks), bool(number), base.ReqContext("r")))
            tier.drain_jobs()
            self.assertEqual([one.success for one in tier.get_finished_jobs()], [True])
            tier._store.flush()
        self.assertTrue(torch.equal(rows[:32], rows[32:]))
        del rows
        tier.shutdown()
        view.release()
        region.cleanup()


if __name__ == "__main__":
    need("vllm", "vllm.v1.kv_offload.tiering.spec")
    unittest.main(verbosity=2)
