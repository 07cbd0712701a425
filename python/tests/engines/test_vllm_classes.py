#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's own tiering around our tier without an engine: its spec, manager, host memory and regions,
with blocks in tensors. It runs with versions whose engine has no build for the processor, too: put
their sources before vLLM's on PYTHONPATH."""

import contextlib
import os
import time
import types
import unittest

from engine_case import EngineCase, disk_store, need

ENGINE = "vllm"
PAGE, PER_CHUNK, CHUNKS = 1 << 14, 4, 6
BLOCKS = PER_CHUNK * CHUNKS


def config_of(number, settings):
    from vllm.v1.kv_offload import config
    tier = {"type": "KvterraceTier", "module_path": "kvterrace.vllm", "settings": settings,
            "revision": "1", "enable_kv_events": True}
    return config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(32, ("first", "second"), 0),),
        worker_kv_bytes_per_block=2 * PAGE, enable_kv_cache_events=True,
        extra_config={"cpu_bytes_to_use": 16 * PER_CHUNK * 2 * PAGE, "secondary_tiers": [tier]},
        engine_id=f"kvterrace-{os.getpid()}-{number}",
        model=config.OffloadingModelConfig("model", "bfloat16"),
        cache=config.OffloadingCacheConfig(32, PER_CHUNK),
        parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
        kv_cache_layout="LBHNC")


class Classes(EngineCase):
    def until(self, ready):
        end = time.monotonic() + 120
        while not ready():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_blocks_come_back_through_all_tiers(self):
        import torch
        from vllm.v1.kv_offload import base
        from kvterrace import vllm as ours
        spec = ours.HostTieringSpec(config_of(0, disk_store(self.folder())))
        manager = spec.get_manager()
        tier, = manager.secondary_tiers
        tensors = [torch.randint(-128, 127, (64, PAGE), dtype=torch.int8) for _ in range(2)]
        worker = spec.get_worker(base.CanonicalKVCaches(
            [base.CanonicalKVCacheTensor(one, PAGE) for one in tensors],
            [[base.CanonicalKVCacheRef(index, PAGE) for index in range(2)]]))
        keys = [base.make_offload_key(bytes([index]) * 32, 0) for index in range(CHUNKS)]
        blocks = base.GPULoadStoreSpec(list(range(BLOCKS)), [BLOCKS], [0])
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

        asks = base.ReqContext("first", kv_transfer_params={"kvterrace": {"tenant": 3}})
        for index, key in enumerate(keys):
            asks.set_offload_key_position(key, 32 * PER_CHUNK * (index + 1))
        with lock:
            manager.on_new_request(asks)
            stored = manager.prepare_store(keys, asks)
        self.assertTrue(worker.submit_store(1, blocks, stored.store_spec))
        self.assertTrue(worker.get_finished()[0].success)
        with lock:
            manager.complete_store(keys, asks)
        self.until(lambda: step() or tier._store.stats()["puts"] == CHUNKS and
                   not tier.has_pending_work())
        step()
        told = [(one.medium.value, one.ownership, one.locality.value, len(one.keys), one.removed)
                for one in events if one.ownership]
        self.assertEqual(told, [("STORAGE", "KvterraceTier", "LOCAL", CHUNKS, False)])
        with lock:
            manager.on_request_finished(asks)
            manager.reset_cache()
            getattr(manager, "on_reset_flushed", lambda: None)()
        before = [one[:BLOCKS].clone() for one in tensors]
        for one in tensors:
            one.zero_()
        again = base.ReqContext("again")
        with lock:
            manager.on_new_request(again)
        self.until(lambda: all_hit(again))
        with lock:
            load = manager.prepare_load(keys, again)
        self.assertTrue(worker.submit_load(2, load, blocks))
        self.assertTrue(worker.get_finished()[0].success)
        for one, was in zip(tensors, before):
            self.assertTrue(torch.equal(one[:BLOCKS], was))
        worker.shutdown()
        manager.shutdown()
        self.assertEqual([name for name in os.listdir("/dev/shm")
                          if f"kvterrace-{os.getpid()}" in name], [])

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
