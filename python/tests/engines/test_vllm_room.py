#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wait for room in vLLM's CPU tier, against vLLM's own manager of tiers: no model."""

import mmap
import time
import unittest

import fake_vllm  # its spec alone: the classes are vLLM's
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager, TieringOffloadingManager)

from kvterrace.vllm import KvterraceTier

ENGINE = "vllm"
CHUNKS, ROW = 4, 1 << 16


class Region:
    """vLLM's region of host memory, as its CPU tier sees it."""

    def __init__(self):
        self.memory = mmap.mmap(-1, CHUNKS * ROW)

    def create_kv_memoryview(self):
        return memoryview(self.memory).cast("B", (CHUNKS, ROW))

    def cleanup(self):
        self.memory.close()


class Room(unittest.TestCase):
    def setUp(self):
        self.spec = fake_vllm.spec(block_bytes=ROW // 2)
        self.primary = CPUPrimaryTierOffloadingManager(CHUNKS, Region())
        self.keys = [make_offload_key(bytes([index]) * 32, 0) for index in range(2 * CHUNKS)]

    def manager(self, **keywords):
        tier = KvterraceTier(self.spec, self.primary.get_kv_memoryview(), "KvterraceTier",
                             settings={"tier.dram.capacity": "32MiB", "store.policy": "lru"},
                             revision="1", **keywords)
        manager = TieringOffloadingManager(self.primary, [tier])
        self.spec._manager = manager

        def end():
            tier.shutdown()
            self.primary.shutdown()
        self.addCleanup(end)
        return manager

    def step(self, manager):
        manager.on_schedule_end(ScheduleEndContext((), ()))

    def request(self, manager, name):
        context = ReqContext(name)
        manager.on_new_request(context)
        return context

    def store(self, manager, keys, name):
        """Chunks that a request computes: into the CPU tier and, behind it, into ours."""
        context = self.request(manager, name)
        self.assertIsNotNone(manager.prepare_store(keys, context))
        manager.complete_store(keys, context)
        manager.secondary_tiers[0].drain_jobs()
        self.step(manager)
        self.step(manager)

    def fill(self, manager):
        """The first chunks lie in our tier alone, the last ones in the CPU tier and are being
        read; nothing has room."""
        self.store(manager, self.keys[:CHUNKS], "first")
        self.store(manager, self.keys[CHUNKS:], "last")
        reader = self.request(manager, "reader")
        self.assertEqual({manager.lookup(key, reader) for key in self.keys[CHUNKS:]},
                         {LookupResult.HIT})
        manager.prepare_load(self.keys[CHUNKS:], reader)
        return reader

    def test_a_request_waits_until_a_load_has_let_go(self):
        manager = self.manager(room_seconds=60)
        reader, context = self.fill(manager), self.request(manager, "r")
        for _ in range(3):
            self.assertEqual(manager.lookup(self.keys[0], context), LookupResult.RETRY)
            self.step(manager)
        manager.complete_load(self.keys[CHUNKS:], reader)
        self.assertEqual(manager.lookup(self.keys[0], context), LookupResult.HIT_PENDING)
        self.step(manager)
        manager.secondary_tiers[0].drain_jobs()
        self.step(manager)
        self.assertEqual(manager.lookup(self.keys[0], context), LookupResult.HIT)

    def test_requests_that_wait_do_not_evict_each_other(self):
        manager = self.manager(room_seconds=60)
        self.store(manager, self.keys[:CHUNKS], "first")
        self.store(manager, self.keys[CHUNKS:], "last")
        self.store(manager, [make_offload_key(bytes([99 + index]) * 32, 0)
                             for index in range(CHUNKS)], "others")
        wanted = {"a": self.keys[:CHUNKS - 1], "b": self.keys[CHUNKS:-1]}
        contexts, promoted = {name: self.request(manager, name) for name in wanted}, []
        got_in = []
        for _ in range(60):
            new = []
            for name in [name for name in wanted if name not in got_in]:
                said = {manager.lookup(key, contexts[name]) for key in wanted[name]}
                if said == {LookupResult.HIT}:
                    if name == "a" and len(promoted) < 5:  # vLLM has no blocks for it yet
                        promoted.append(name)
                        continue
                    new.append(name)
            got_in += new
            manager.on_schedule_end(ScheduleEndContext(new, ()))
            manager.secondary_tiers[0].drain_jobs()
            if len(got_in) == 2:
                break
        self.assertEqual((got_in, promoted), (["a", "b"], ["a"] * 5))
        counts = manager.secondary_tiers[0]._counts
        self.assertEqual((counts["room_waits"], counts["room_misses"]), (1, 0))

    def test_without_a_wait_it_is_computed(self):
        manager = self.manager(room_seconds=0)
        self.fill(manager)
        self.assertEqual(manager.lookup(self.keys[0], self.request(manager, "r")),
                         LookupResult.MISS)

    def test_the_wait_is_bounded(self):
        manager = self.manager(room_seconds=0.05)
        self.fill(manager)
        context = self.request(manager, "r")
        self.assertEqual(manager.lookup(self.keys[0], context), LookupResult.RETRY)
        time.sleep(0.06)
        self.step(manager)
        self.assertEqual(manager.lookup(self.keys[0], context), LookupResult.MISS)


if __name__ == "__main__":
    unittest.main()
