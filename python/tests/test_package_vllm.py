#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The adapter of vLLM against classes that have vLLM's signatures: jobs, misses, events, restarts,
memory that is given back, and configurations that are wrong."""

import mmap
import os
import time
import unittest

import fake_vllm
from package_case import kvterrace, pattern
from vllm_case import (BLOCK, Case, DIM, HEADS, HIT, LAYERS, MISS, RETRY, ROW, ROWS, TOKENS,
                       adapter, name)


class Jobs(Case):
    def test_rows_come_back(self):
        tier, keys = self.tier(), [name(index) for index in range(8)]
        before = self.fill(range(8))
        context = fake_vllm.ReqContext("r")
        self.assertEqual({tier.lookup(key, context) for key in keys}, {MISS})
        stored, = self.store_rows(tier, keys, range(8))
        self.assertEqual((stored.success, stored.transfer_bytes), (True, 8 * 2 * BLOCK))
        self.assertEqual({tier.lookup(key, context) for key in keys}, {HIT})
        self.clear(range(8))
        loaded, = self.load_rows(tier, keys, range(8, 16))
        self.assertTrue(loaded.success)
        self.assertEqual([self.row(row) for row in range(8, 16)], before)
        self.assertEqual(self.row(0), bytes(2 * BLOCK))
        self.assertEqual(self.region[16 * ROW:17 * ROW], bytes(ROW))

    def test_a_missing_row_ends_only_itself(self):
        tier, keys = self.tier(), [name(index) for index in range(6)]
        before = self.fill(range(6))
        self.store_rows(tier, keys, range(6))
        tier._store.delete(tier._key(keys[2]))
        self.clear(range(6))
        loaded, = self.load_rows(tier, keys, range(6))
        self.assertFalse(loaded.success)
        self.assertEqual(list(loaded.successful_keys), keys[:2] + keys[3:])
        self.assertEqual([self.row(row) for row in (0, 1, 3, 4, 5)], before[:2] + before[3:])
        self.assertEqual(tier.lookup(keys[2], fake_vllm.ReqContext("r")), MISS)

    def test_a_number_that_is_no_chunk_fails_its_job(self):
        tier, keys = self.tier(), [name(index) for index in range(3)]
        before = self.fill(range(3))
        for chunk in (ROWS, -1, 1 << 40, -(1 << 70)):
            stored, = self.store_rows(tier, keys, [0, chunk, 2])
            self.assertEqual((stored.success, stored.transfer_bytes), (False, 0))
            self.assertEqual(tier.lookup(keys[0], fake_vllm.ReqContext("r")), MISS)
        self.store_rows(tier, keys, range(3))
        for chunk in (ROWS, -1, 1 << 40):
            loaded, = self.load_rows(tier, keys, [4, 5, chunk])
            self.assertEqual((loaded.success, loaded.successful_keys), (False, None))
            self.assertEqual(self.row(4), bytes(2 * BLOCK))
        loaded, = self.load_rows(tier, keys, range(4, 7))
        self.assertEqual((loaded.success, [self.row(row) for row in (4, 5, 6)]), (True, before))

    def test_what_a_load_missed_is_a_miss_for_its_request(self):
        """vLLM asks again after a failed load: an entry that is stored and cannot be had in time
        must not be promised a second time."""
        tier = self.tier(load_seconds=0.0, settings={
            "device.d.path": os.path.join(self.folder(), "disk"), "device.d.tier": "ssd",
            "device.d.backend": "file", "device.d.capacity": "64MiB", "device.d.latency": "60ms",
            "store.policy": "lru"})
        keys, context = [name(1)], fake_vllm.ReqContext("slow")
        before, = self.fill([0])
        self.store_rows(tier, keys, [0])
        tier._store.flush()
        self.assertEqual(tier.lookup(keys[0], context), HIT)
        loaded, = self.load_rows(tier, keys, [1], context)
        self.assertEqual((loaded.success, loaded.successful_keys), (False, None))
        self.assertEqual(tier.lookup(keys[0], context), MISS)
        tier.on_request_finished(context)
        self.assertEqual(tier.lookup(keys[0], context), HIT)
        tier._load_seconds = None
        loaded, = self.load_rows(tier, keys, [1], context)
        self.assertEqual((loaded.success, self.row(1)), (True, before))

    def test_chunks_of_other_hosts(self):
        """Two stores with one engine between them, which is in this process's memory."""
        shared = {"store.policy": "lru", "tier.dram.capacity": "32MiB",
                  "tier.remote.namespace": "chunks", "tier.remote.publish": "all",
                  "remote.a.backend": "memory", "remote.a.address": "test_chunks_of_other_hosts"}
        first, second = self.tier(settings=shared), self.tier(settings=shared)
        keys, context = [name(index) for index in range(6)], fake_vllm.ReqContext("r")
        before = self.fill(range(4))
        self.store_rows(first, keys[:4], range(4))
        first._store.flush()
        self.assertTrue(first._store.remote_flush(deadline=30))
        self.clear(range(4))
        self.assertEqual({second.lookup(key, context) for key in keys}, {RETRY})
        said, until = [RETRY], time.monotonic() + 30
        while RETRY in said:
            second.on_schedule_end(fake_vllm.ScheduleEndContext())
            time.sleep(0.001)
            said = [second.lookup(key, context) for key in keys]
            self.assertLess(time.monotonic(), until)
        self.assertEqual(said, [HIT] * 4 + [MISS] * 2)
        loaded, = self.load_rows(second, keys[:4], range(8, 12), context)
        self.assertTrue(loaded.success)
        self.assertEqual([self.row(row) for row in range(8, 12)], before)
        # A chunk that a host was known to have and nobody has is a miss for its request.
        later = fake_vllm.ReqContext("later")
        second.lookup(keys[5], later)
        second._request(later).asked[0].known[second._key(keys[5])] = True
        self.assertEqual(second.lookup(keys[5], later), HIT)
        loaded, = self.load_rows(second, keys[5:], [12], later)
        self.assertFalse(loaded.success)
        self.assertEqual(second.lookup(keys[5], later), MISS)
        second.on_request_finished(later)
        self.assertEqual(second.lookup(keys[5], later), RETRY)

    def test_groups_and_chains(self):
        tier = self.tier()
        keys = [name(1), name(1, 1), name(2)]
        self.fill(range(3))
        context = fake_vllm.ReqContext("r", {keys[0]: 64, keys[1]: 64, keys[2]: 128})
        self.store_rows(tier, [keys[0]], [0], context)
        self.store_rows(tier, keys[1:], [1, 2], context)
        self.assertEqual(len({tier._key(key) for key in keys}), 3)
        said = tier._store.describe(tier._key(keys[2]))
        self.assertEqual((said["parent"], said["first_position"]), (tier._key(keys[0]), 64))
        self.assertIsNone(tier._store.describe(tier._key(keys[1]))["parent"])

    def test_every_row_of_a_prompt_is_stored_while_others_are_written(self):
        """Rows of a prompt are a chain, and jobs come faster than the disk writes: the store may
        not decline a row because the one before it is still on its way."""
        tier = self.tier(recompute_seconds_per_token=1.0, settings={
            "device.d.path": os.path.join(self.folder(), "disk"), "device.d.tier": "ssd",
            "device.d.backend": "file", "device.d.capacity": "64MiB", "store.lossless": "no"})
        rows, prompts = 8, 60
        self.fill(range(rows))
        for prompt in range(prompts):
            keys = [name(prompt * rows + index) for index in range(rows)]
            context = fake_vllm.ReqContext(str(prompt), {
                key: 64 * (index + 1) for index, key in enumerate(keys)})
            stored, = self.store_rows(tier, keys, range(rows), context)
            self.assertEqual((stored.success, stored.transfer_bytes), (True, rows * 2 * BLOCK))
            tier._store.flush()
            self.assertEqual([tier.lookup(key, context) for key in keys], [HIT] * rows)
            loaded, = self.load_rows(tier, keys, range(rows, 2 * rows), context)
            self.assertTrue(loaded.success)
            for key in keys[::-1]:
                tier._store.delete(tier._key(key))
        self.assertEqual(tier._store.stats()["puts_refused"], 0)

    def test_many_jobs_at_once_and_a_drain(self):
        tier = self.tier()
        before = self.fill(range(ROWS))
        for row in range(ROWS):
            tier.submit_store(self.job([name(row)], [row], fake_vllm.ReqContext(str(row)), False))
        tier.drain_jobs()
        self.assertEqual(len(tier.get_finished_jobs()), ROWS)
        self.clear(range(ROWS))
        for row in range(ROWS):
            tier.submit_load(self.job([name(row)], [row], fake_vllm.ReqContext(str(row)), True))
        tier.drain_jobs()
        self.assertTrue(all(one.success for one in tier.get_finished_jobs()))
        self.assertEqual([self.row(row) for row in range(ROWS)], before)
        self.assertEqual(tier.get_finished_jobs(), [])

    def test_jobs_larger_than_the_queue_go_in_pieces(self):
        depth, adapter._DEPTH = adapter._DEPTH, 4
        self.addCleanup(setattr, adapter, "_DEPTH", depth)
        tier, keys = self.tier(), [name(index) for index in range(ROWS // 2)]
        before = self.fill(range(ROWS // 2))
        for first, last in ((0, 5), (5, ROWS // 2)):
            tier.submit_store(self.job(keys[first:last], range(first, last),
                                       fake_vllm.ReqContext("r"), False))
        tier.drain_jobs()
        self.assertTrue(all(one.success for one in tier.get_finished_jobs()))
        loaded, = self.load_rows(tier, keys, range(ROWS // 2, ROWS))
        self.assertTrue(loaded.success)
        self.assertEqual([self.row(row) for row in range(ROWS // 2, ROWS)], before)

    def test_a_job_after_the_store_was_closed_has_failed(self):
        tier, context = self.tier(), fake_vllm.ReqContext("r")
        self.fill([0])
        tier._store.close()
        with self.assertLogs("vllm.kvterrace", "WARNING"):
            stored, = self.store_rows(tier, [name(1)], [0], context)
            loaded, = self.load_rows(tier, [name(1)], [0], context)
        self.assertEqual((stored.success, loaded.success, loaded.successful_keys),
                         (False, False, None))
        self.assertFalse(tier.has_pending_work())

    def test_an_empty_job_ends(self):
        tier = self.tier()
        self.assertTrue(self.store_rows(tier, [], [])[0].success)
        self.assertTrue(self.load_rows(tier, [], [])[0].success)


class Shapes(Case):
    def shaped(self, **keywords):
        keywords.setdefault("axes", "lbhst")
        return self.tier(kv_heads=HEADS, head_dim=DIM, **keywords)

    def test_a_row_with_a_shape_comes_back(self):
        for axes in ("lbhst", "lbsht", "lbths", "blsth"):
            tier = self.shaped(axes=axes, salt=axes)
            before, = self.fill([3])
            self.store_rows(tier, [name(3)], [3])
            self.assertTrue(self.load_rows(tier, [name(3)], [4])[0].success)
            self.assertEqual(self.row(4), before)
            layout, = tier._store.describe(tier._key(name(3)))["layouts"]
            self.assertEqual((layout.layers, layout.kv_heads, layout.head_dim, layout.tokens),
                             (LAYERS, HEADS, DIM, 2 * TOKENS))

    def test_a_shape_that_a_row_has_not(self):
        for keywords, text in (({"kv_heads": 3, "head_dim": DIM, "axes": "lbhst"}, "a row has"),
                               ({"kv_heads": HEADS, "head_dim": DIM}, "axes is missing"),
                               ({"kv_heads": HEADS, "head_dim": DIM, "axes": "xyz"}, "axes"),
                               ({"kv_heads": HEADS}, "go together")):
            self.refused(kvterrace.ConfigError, text, self.tier, **keywords)
        for spec, text in ((fake_vllm.spec(block_bytes=BLOCK, world_size=2), "side by side"),
                           (fake_vllm.spec(block_bytes=BLOCK, dtype="int4"), "int4")):
            self.refused(kvterrace.ConfigError, text, self.tier, spec, kv_heads=HEADS,
                         head_dim=DIM, axes="lbhst")
        # Nothing of what failed keeps the region exported.
        self.view.release()
        self.region.close()

    def test_another_model_is_another_space(self):
        spaces = set()
        for keywords in ({}, {"name": "other"}, {"dtype": "float16"}, {"blocks_per_chunk": 1},
                         {"layers": 2}, {"tokens_per_block": 16}):
            config = fake_vllm.spec(block_bytes=BLOCK, **keywords).config
            rows = adapter._Rows(fake_vllm.spec(block_bytes=BLOCK, **keywords), self.view, 0, 0,
                                 None)
            spaces |= {adapter._space(config, rows, *texts).id
                       for texts in (("", ""), ("rev", ""), ("", "salt"))}
            rows.memory.release()
        self.assertEqual(len(spaces), 18)


class Life(Case):
    def test_a_restart_finds_what_was_stored(self):
        folder = self.folder()
        settings = {"store.catalog": os.path.join(folder, "catalog.db"), "store.policy": "lru",
                    "device.d.path": os.path.join(folder, "disk"), "device.d.tier": "ssd",
                    "device.d.backend": "file", "device.d.capacity": "64MiB"}
        keys, before = [name(index) for index in range(4)], self.fill(range(4))
        first = self.tier(settings=settings)
        self.store_rows(first, keys, range(4))
        first.shutdown()
        self.clear(range(4))
        second = self.tier(settings=settings)
        self.assertEqual({second.lookup(key, fake_vllm.ReqContext("r")) for key in keys}, {HIT})
        self.assertTrue(self.load_rows(second, keys, range(4))[0].success)
        self.assertEqual([self.row(row) for row in range(4)], before)
        second.shutdown()
        other = self.tier(fake_vllm.spec(block_bytes=BLOCK, name="other"), settings=settings)
        self.assertEqual({other.lookup(key, fake_vllm.ReqContext("r")) for key in keys}, {MISS})

    def test_a_second_engine_on_one_catalog_is_refused(self):
        folder = self.folder()
        settings = {"store.catalog": os.path.join(folder, "catalog.db"), "store.policy": "lru",
                    "device.d.path": os.path.join(folder, "disk"), "device.d.tier": "ssd",
                    "device.d.backend": "file", "device.d.capacity": "64MiB"}
        first, before = self.tier(settings=settings), self.fill([1])
        self.store_rows(first, [name(1)], [1])
        self.refused(kvterrace.LockedError, "", self.tier, settings=settings)
        self.assertTrue(self.load_rows(first, [name(1)], [2])[0].success)
        self.assertEqual([self.row(2)], before)
        first.shutdown()
        self.view.release()
        self.region.close()  # the one that was refused holds nothing of it

    LATE = """
import mmap, os, sys
sys.path.insert(0, {tests!r})
import fake_vllm
fake_vllm.install()
from kvterrace import StateError, vllm as adapter
region = mmap.mmap(-1, {rows} * {row})
tier = adapter.KvterraceTier(fake_vllm.spec(block_bytes={block}),
                             memoryview(region).cast("B", ({rows}, {row})), "kvt", settings={{
    "device.d.path": {disk!r}, "device.d.tier": "ssd", "device.d.backend": "file",
    "device.d.capacity": "64MiB", "device.d.latency": "200ms", "store.policy": "lru"}})
context = fake_vllm.ReqContext("r")
keys = [number.to_bytes(36, "big") for number in range(8)]
tier.submit_store(fake_vllm.TransferJob(1, keys, range(8), False, context))
tier.drain_jobs()
tier._store.flush()
tier.submit_load(fake_vllm.TransferJob(2, keys, range(8), True, context))
"""

    def late(self, end):
        """A process of its own in which a load of 200 ms is under way; `end` is what it does."""
        return self.script(self.LATE.format(
            tests=os.path.dirname(os.path.abspath(__file__)), rows=ROWS, row=ROW, block=BLOCK,
            disk=os.path.join(self.folder(), "disk")) + end)

    def test_an_exit_with_loads_in_flight(self):
        self.late("sys.exit(0)\n")

    def test_a_child_of_fork_with_loads_in_flight(self):
        said = self.late("""
child = os.fork()
if child == 0:
    try:
        tier.lookup(keys[0], context)
    except StateError as error:
        print("child:", error, flush=True)
    tier.submit_load(fake_vllm.TransferJob(3, keys, range(8), True, context))
    ended = [one for one in tier.get_finished_jobs() if one.job_id == 3]
    tier.drain_jobs()
    tier.shutdown()
    os._exit(0 if ended and not ended[0].success else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
tier.drain_jobs()
done, = [one for one in tier.get_finished_jobs() if one.job_id == 2]
print("parent:", done.success)
tier.shutdown()
""")
        self.assertIn("child:", said)
        self.assertIn("belongs to process", said)
        self.assertIn("parent: True", said)

    STORES = """
import mmap, os, resource, sys
sys.path.insert(0, {tests!r})
import fake_vllm
fake_vllm.install()
from kvterrace import SpaceError, vllm as adapter
from package_case import pattern
region = mmap.mmap(-1, {rows} * {row})
tier = adapter.KvterraceTier(fake_vllm.spec(block_bytes={block}),
                             memoryview(region).cast("B", ({rows}, {row})), "kvt",
                             store_seconds=1.0, revision="1", settings={settings!r})
def job(prompt, rows, loads):
    keys = [(8 * prompt + index).to_bytes(36, "big") for index in range(8)]
    context = fake_vllm.ReqContext(str(prompt), {{
        key: 64 * (index + 1) for index, key in enumerate(keys)}})
    return fake_vllm.TransferJob(prompt, keys, rows, loads, context)
def content(number):
    return bytes(pattern(2 * {block}, number))
def fill(prompt):
    first = prompt % 2 * 8  # the rows of the job before may still be read
    for index in range(8):
        region[(first + index) * {row}:(first + index) * {row} + 2 * {block}] = \\
            content(8 * prompt + index)
    return range(first, first + 8)
def found(prompt):
    one = job(prompt, range(16, 24), True)
    hits = [key for key in one.keys if tier.lookup(key, one.req_context).name == "HIT"]
    tier.submit_load(one)
    tier.drain_jobs()
    done, = tier.get_finished_jobs()
    tier.on_request_finished(one.req_context)
    good = one.keys if done.success else done.successful_keys or ()
    for index, key in enumerate(one.keys):
        at = (16 + index) * {row}
        assert key not in good or region[at:at + 2 * {block}] == content(8 * prompt + index)
    return len(hits), len(good)
"""

    def stores(self, folder, end, code=0):
        """A process of its own with rows that are numbered through; `end` is what it does."""
        settings = {"store.catalog": os.path.join(folder, "catalog.db"),
                    "device.d.path": os.path.join(folder, "disk"), "device.d.tier": "ssd",
                    "device.d.backend": "file", "device.d.capacity": "64MiB",
                    "store.policy": "lru"}
        return self.script(self.STORES.format(
            tests=os.path.dirname(os.path.abspath(__file__)), rows=ROWS, row=ROW, block=BLOCK,
            settings=settings) + end, code=code)

    def test_a_kill_while_stores_are_under_way(self):
        """Whatever the next process finds has its own bytes, and it stores the rest again."""
        folder, found = self.folder(), 0
        for life in range(3):
            self.stores(folder, f"""
import random, signal, threading
threading.Timer(random.Random({life}).uniform(0.05, 0.6),
                lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
for turn in range(1000000):
    prompt = turn % 20
    tier.submit_store(job(prompt, fill(prompt), False))
    tier.drain_jobs()
    tier.get_finished_jobs()
    if turn % 5 == 4:
        for one in range(prompt - 4, prompt + 1):
            for key in job(one, (), False).keys[::-1]:
                tier._store.delete(tier._key(key))
""", code=-9)
            said = self.stores(folder, """
for prompt in range(20):
    hits, good = found(prompt)
    assert good == hits, (prompt, good, hits)
    print("found", good)
    tier.submit_store(job(prompt, fill(prompt), False))
    tier.drain_jobs()
    assert all(one.success for one in tier.get_finished_jobs())
tier._store.flush()
assert [found(prompt) for prompt in range(20)] == [(8, 8)] * 20
tier.shutdown()
""")
            found += sum(int(line.split()[1]) for line in said.splitlines() if "found" in line)
        self.assertGreater(found, 0)

    def test_a_disk_that_is_full_below_the_capacity(self):
        """Files may not grow beyond 2 MiB: what is stored by then stays, stores fail, nothing is
        answered wrongly; with room again stores succeed."""
        said = self.stores(self.folder(), """
resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
for prompt in range(12):
    tier.submit_store(job(prompt, fill(prompt), False))
    tier.drain_jobs()
    tier.get_finished_jobs()
try:
    tier._store.flush()
except SpaceError:
    print("no room")
full = [found(prompt) for prompt in range(12)]
assert all(hits == good for hits, good in full), full
print("full", sum(good for _, good in full))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for prompt in range(20, 24):
    tier.submit_store(job(prompt, fill(prompt), False))
    tier.drain_jobs()
    tier.get_finished_jobs()
tier._store.flush()
assert [found(prompt) for prompt in range(20, 24)] == [(8, 8)] * 4
assert [found(prompt) for prompt in range(12)] == full
tier.shutdown()
""")
        self.assertIn("no room", said)
        stored = int(said.split("full ")[1].split()[0])
        self.assertGreater(stored, 0)
        self.assertLess(stored, 2 * (1 << 20) // (2 * BLOCK))

    def test_a_shutdown_gives_the_memory_back(self):
        tier = self.tier()
        self.fill(range(8))
        tier.submit_store(self.job([name(1)], [1], fake_vllm.ReqContext("r"), False))
        tier.shutdown()
        tier.shutdown()
        self.assertIsNone(tier.get_stats())
        self.view.release()
        self.region.close()

    def events_of(self, tier):
        return [(told.keys, told.medium.value, told.removed) for told in tier.take_events()]

    def eventful(self, **keywords):
        return self.tier(fake_vllm.spec(block_bytes=BLOCK, events=True), enable_kv_events=True,
                         **keywords)

    def test_events(self):
        tier = self.eventful()
        self.fill(range(3))
        self.store_rows(tier, [name(1), name(2)], [1, 2])
        told, = tier.take_events()
        self.assertEqual((told.keys, told.removed, told.locality, told.ownership),
                         ([name(1), name(2)], False, fake_vllm.Locality.LOCAL, "kvt"))
        self.assertTrue(told.removal_expected)  # else vLLM forgets what the removal is about
        tier._store.delete(tier._key(name(2)))
        told, = tier.take_events()
        self.assertEqual((told.keys, told.removed, told.removal_expected),
                         ([name(2)], True, False))
        self.assertEqual(list(tier.take_events()), [])

    def test_events_tell_the_tier_and_its_change(self):
        """A router weighs DRAM and SSD apart: a move is told as a place more and one less."""
        tier = self.eventful(settings={
            "tier.dram.capacity": "8MiB", "store.policy": "lru", "device.d.tier": "ssd",
            "device.d.path": os.path.join(self.folder(), "disk"), "device.d.backend": "file",
            "device.d.capacity": "256MiB"})
        self.fill(range(ROWS))
        places, seen = {}, set()
        for first in range(0, 1000, ROWS):
            keys = [name(first + index) for index in range(ROWS)]
            self.store_rows(tier, keys, range(ROWS))
            for told, medium, removed in self.events_of(tier):
                for key in told:
                    here = places.setdefault(key, [])
                    (here.remove if removed else here.append)(medium)
                    self.assertTrue(here or removed)
                    seen.add((medium, removed))
            if ("CPU", True) in seen:
                break
        self.assertEqual(seen, {("CPU", False), ("STORAGE", False), ("CPU", True)})
        tier._store.flush()
        self.events_of(tier)
        for key, medium in tier._media.items():
            tiers = {"CPU": "dram", "STORAGE": "ssd"}
            self.assertEqual(tier._store.describe(tier._key(key))["tier"], tiers[medium.value])

    def test_events_of_devices_alone_tell_no_dram(self):
        """What is staged on its way to a device is not told as a place and a move."""
        tier, seen = self.eventful(settings={
            "device.d.tier": "ssd", "device.d.path": os.path.join(self.folder(), "disk"),
            "device.d.backend": "file", "device.d.capacity": "64MiB", "device.d.latency": "20ms",
            "store.policy": "lru"}), []
        self.fill(range(4))
        self.store_rows(tier, [name(one) for one in range(4)], range(4))
        seen += self.events_of(tier)
        tier._store.flush()
        seen += self.events_of(tier)
        self.assertEqual({(medium, removed) for _, medium, removed in seen}, {("STORAGE", False)})
        self.assertEqual(sum(len(keys) for keys, _, _ in seen), 4)

    def test_events_tell_what_an_earlier_process_has_stored(self):
        folder = self.folder()
        settings = {"store.catalog": os.path.join(folder, "catalog.db"), "store.policy": "lru",
                    "device.d.tier": "ssd", "device.d.path": os.path.join(folder, "disk"),
                    "device.d.backend": "file", "device.d.capacity": "64MiB"}
        self.fill(range(3))
        first = self.tier(settings=settings)
        self.store_rows(first, [name(1), name(3)], [1, 2])
        first.shutdown()
        tier, context = self.eventful(settings=settings), fake_vllm.ReqContext("r")
        self.assertEqual(self.events_of(tier), [])
        self.assertEqual(tier.lookup(name(2), context), MISS)
        for key in (name(1), name(1), name(3)):
            self.assertEqual(tier.lookup(key, context), HIT)
        self.assertEqual(self.events_of(tier), [])  # vLLM does not know their tokens yet
        self.assertTrue(self.load_rows(tier, [name(1)], [0])[0].success)
        self.assertEqual(self.events_of(tier), [])
        self.assertEqual(self.events_of(tier), [([name(1)], "STORAGE", False)])  # once
        tier.on_request_finished(context)
        self.assertEqual(self.events_of(tier), [([name(3)], "STORAGE", False)])  # never loaded
        tier._store.delete(tier._key(name(1)))
        self.assertEqual(self.events_of(tier), [([name(1)], "STORAGE", True)])

    def test_metrics(self):
        definitions = adapter.KvterraceTier.build_metric_definitions({})
        tier = self.tier()
        self.fill(range(2))
        self.store_rows(tier, [name(1)], [1])
        self.load_rows(tier, [name(1), name(7)], [0, 1])
        stats = tier.get_stats()
        self.assertEqual({key for key, _ in [*stats.counters, *stats.gauges]}, set(definitions))
        self.assertEqual(stats.counters["vllm:kvterrace_load_misses", ()], 1)
        self.assertEqual(stats.gauges["vllm:kvterrace_entries", ("dram",)], 1)
        self.assertIsNone(tier.get_stats())  # at most one a second

    def test_the_shortest_configuration_stores(self):
        """No policy and no seconds are given: what a user writes first works."""
        tier = self.tier(settings={"tier.dram.capacity": "32MiB"})
        before = self.fill(range(2))
        self.store_rows(tier, [name(1), name(2)], [0, 1])
        self.assertTrue(self.load_rows(tier, [name(1), name(2)], [2, 3])[0].success)
        self.assertEqual([self.row(2), self.row(3)], before)

    def test_a_policy_that_declines_says_so_once(self):
        tier = self.tier(settings={"tier.dram.capacity": "32MiB"},
                         recompute_seconds_per_token=1e-12)
        self.fill(range(3))
        with self.assertLogs("vllm.kvterrace", "WARNING") as logs:
            self.assertTrue(self.store_rows(tier, [name(1), name(2)], [1, 2])[0].success)
            self.store_rows(tier, [name(3)], [0])
        self.assertEqual(len(logs.output), 1)
        self.assertEqual(tier._counts["stores_refused"], 3)

    def test_wrong_configurations(self):
        for keywords, error, text in (
                ({"settings": None}, kvterrace.ConfigError, "where the store is"),
                ({"colour": 1}, kvterrace.ConfigError, "colour"),
                ({"settings": {"nothing.known": 1}}, kvterrace.ConfigError, "nothing.known"),
                ({"config": "/does/not/exist", "settings": None}, kvterrace.Error, "")):
            self.refused(error, text, self.tier, **keywords)
        self.view.release()
        self.region.close()

    def test_another_version_serves_while_its_interface_is_the_same(self):
        script = ("import os, sys; sys.path.insert(0, %r)\n"
                  "import logging, fake_vllm, kvterrace\n"
                  "logging.basicConfig(stream=sys.stdout)\n"
                  "if 'changed' in sys.argv: del fake_vllm.JobResult.__init__\n"
                  "fake_vllm.install('0.33.1')\n"
                  "if 'gone' in sys.argv: del sys.modules['vllm.v1.kv_offload.tiering.base']\n"
                  "try:\n    import kvterrace.vllm\n    print('serves')\n"
                  "except kvterrace.UnsupportedError as error:\n    print(error)\n"
                  % os.path.dirname(os.path.abspath(__file__)))
        said = self.script(script)
        self.assertIn("tested with vLLM 0.32.0, and this is 0.33.1", said)
        self.assertIn("serves", said)
        gone = self.script("import sys; sys.argv.append('gone')\n" + script)
        self.assertIn("vLLM 0.33.1 differs: ", gone)
        self.assertIn("tiering.base", gone)
        changed = "import sys; sys.argv.append('changed')\n" + script
        said = self.script(changed)
        self.assertIn("vLLM 0.33.1 differs: ", said)
        self.assertIn("takes no successful_keys", said)
        self.assertNotIn("serves", said)
        said = self.script("import os; os.environ['KVTERRACE_UNTESTED_ENGINE'] = '1'\n" + changed)
        self.assertIn("takes no successful_keys", said)
        self.assertIn("serves", said)


if __name__ == "__main__":
    unittest.main()
