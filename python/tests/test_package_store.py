#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package's store: bytes come back, by every way in and out; answers and lookups."""

import array
import asyncio
import gc
import mmap
import os
import time
import unittest

from package_case import LAYOUT, PackageCase, kvterrace, pattern

LAYOUTS = [
    LAYOUT,
    kvterrace.Layout(3, 2, 32, "fp16", 48, order="side_layer"),
    kvterrace.Layout(2, 1, 64, "fp32", 33),
    kvterrace.Layout(2, 4, 16, "fp8", 64),
    kvterrace.Layout(5, 1, 96, "bf16", 17, sides=1),
    kvterrace.Layout.opaque(10007),
]
AXES = ["lsbth", "lbths", "blsth", "bsthl", "slbth", "lsbht", "bth", "lbth", "sbth"]


class Bytes(PackageCase):
    def test_packed_bytes_come_back(self):
        for variant in ("raw", "lossless"):
            store = self.store(variant=variant)
            for index, layout in enumerate(LAYOUTS):
                data, key = pattern(layout.bytes, index + 1), self.key((variant, index))
                self.assertTrue(store.put(key, data, layout, recompute_seconds=1.0))
                self.assertEqual(store.get(key), data)
                store.flush()
                self.assertEqual(store.get(key), data)
                out, info = bytearray(layout.bytes), {}
                self.assertTrue(store.get_into(key, out, info=info))
                self.assertEqual(out, data)
                self.assertEqual(info["tier"], "dram")
                self.assertEqual(store.describe(key)["layouts"], [layout])

    def test_kinds_of_buffers(self):
        store, size = self.store(), LAYOUT.bytes
        data = pattern(size)
        words = array.array("H", bytes(data))
        area = mmap.mmap(-1, size)
        self.addCleanup(area.close)
        area[:] = bytes(data)
        for number, source in enumerate((bytes(data), data, memoryview(data), words, area)):
            self.assertTrue(store.put(self.key(number), source, LAYOUT))
            self.assertEqual(store.get(self.key(number)), data)
        targets = (bytearray(size), memoryview(bytearray(size)), array.array("H", bytes(size)),
                   mmap.mmap(-1, size))
        for target in targets:
            self.assertTrue(store.get_into(self.key(0), target))
            self.assertEqual(bytes(memoryview(target).cast("B")), data)
        targets[3].close()  # nothing is exported any more

    def blocks(self, layout, axes, tokens_per_block):
        """A pool for `axes` of blocks, the buffers that it consists of, and a block table."""
        size = {"fp16": 2, "bf16": 2, "fp32": 4, "fp8": 1}[layout.dtype]
        count, blocks = -(-layout.tokens // tokens_per_block), 9
        one = blocks * tokens_per_block * layout.kv_heads * layout.head_dim * size
        buffers = 1
        for letter, number in (("l", layout.layers), ("s", layout.sides)):
            if letter in axes:
                one *= number
            else:
                buffers *= number
        table = [(5 * index + 2) % blocks for index in range(count)]
        return [bytearray(b"\xee" * one) for _ in range(buffers)], table

    def test_views_give_what_packed_gives(self):
        for variant in ("raw", "lossless"):
            store = self.store(variant=variant)
            for index, layout in enumerate(LAYOUTS[:4]):
                data, key = pattern(layout.bytes, index + 3), self.key((variant, index))
                store.put(key, data, layout)
                store.flush()
                for axes in AXES:
                    pool, table = self.blocks(layout, axes, 16)
                    with kvterrace.View.axes(layout, axes, pool, tokens_per_block=16,
                                             blocks=table) as view:
                        self.assertTrue(store.get_into(key, view), axes)
                        again = self.key((variant, index, axes))
                        self.assertTrue(store.put(again, view))
                    self.assertEqual(store.get(again), data, (axes, layout))
                    held = b"".join(pool)
                    self.assertNotEqual(held.count(0xee), len(held))

    def test_a_view_leaves_other_blocks_alone(self):
        store = self.store()
        store.put(self.key("a"), pattern(LAYOUT.bytes), LAYOUT)
        pool, table = self.blocks(LAYOUT, "blsth", 16)
        view = kvterrace.View.axes(LAYOUT, "blsth", pool, tokens_per_block=16, blocks=table)
        self.assertTrue(store.get_into(self.key("a"), view))
        view.release()
        one = len(pool[0]) // 9
        for block in set(range(9)) - set(table):
            self.assertEqual(pool[0][one * block:one * (block + 1)], b"\xee" * one)

    def test_groups_of_layers(self):
        store, groups = self.store(), [LAYOUTS[0], LAYOUTS[4], LAYOUTS[5]]
        data = pattern(sum(one.bytes for one in groups))
        self.assertTrue(store.put(self.key("g"), data, groups))
        store.flush()
        self.assertEqual(store.get(self.key("g")), data)
        parts = [bytearray(one.bytes) for one in groups]
        views = [kvterrace.View.packed(*pair) for pair in zip(groups, parts)]
        self.assertTrue(store.get_into(self.key("g"), views))
        self.assertEqual(b"".join(parts), data)
        self.assertTrue(store.put(self.key("h"), views))
        self.assertEqual(store.get(self.key("h")), data)
        self.assertEqual(store.describe(self.key("g"))["layouts"], groups)

    def test_many_and_prefix(self):
        store = self.store()
        keys = [self.key(index) for index in range(8)]
        for index, key in enumerate(keys[:6]):
            store.put(key, pattern(LAYOUT.bytes, index), LAYOUT,
                      parent=keys[index - 1] if index else None)
        out = [bytearray(LAYOUT.bytes) for _ in keys]
        self.assertEqual(store.get_many(keys, out), [True] * 6 + [False] * 2)
        self.assertEqual(store.match(keys), 6)
        read = [bytearray(LAYOUT.bytes) for _ in keys]
        views = [kvterrace.View.packed(LAYOUT, one) for one in read]
        self.assertEqual(store.get_prefix(keys, views), 6)
        for index in range(6):
            self.assertEqual(out[index], pattern(LAYOUT.bytes, index))
            self.assertEqual(read[index], out[index])
        self.assertEqual(store.get_many([], []), [])

    def test_many_puts(self):
        store = self.store()
        keys = [self.key(index) for index in range(40)]
        data = [pattern(LAYOUT.bytes, index) for index in range(40)]
        self.assertEqual(store.put_many(keys, data, LAYOUT, parents=[None] + keys[:-1],
                                        first_positions=range(0, 40 * 48, 48)),
                         [kvterrace.Outcome.STORED] * 40)
        self.assertEqual(store.put_many(keys[:1], data[:1], LAYOUT), [kvterrace.Outcome.EXISTS])
        self.assertEqual(store.describe(keys[7])["first_position"], 7 * 48)
        self.assertEqual([store.get(key) for key in keys], data)
        plain = [self.key("a"), self.key("b")]
        self.assertTrue(all(store.put_many(plain, [b"1" * 5000, bytearray(9000)],
                                           recompute_seconds=1.0)))
        store.flush()
        self.assertEqual(store.get(plain[0]), b"1" * 5000)
        self.assertEqual(store.put_many([], []), [])
        self.assertEqual(len(store), 42)
        self.assertTrue(store)
        self.assertEqual(set(store), {*keys, *plain})
        found = {one.key: one for one in store.entries()}
        self.assertEqual((found[plain[1]].bytes, found[plain[1]].tier), (9000, "dram"))

    def test_a_store_without_entries_is_one(self):
        store = self.store()
        self.assertEqual((len(store), list(store), bool(store)), (0, [], True))

    def test_many_of_a_device_and_of_memory(self):
        """Entries on the device are read at once: 24 of 20 ms take no second."""
        store = self.store(settings={
            "device.d.path": os.path.join(self.folder(), "disk"), "device.d.tier": "ssd",
            "device.d.backend": "file", "device.d.capacity": "64MiB", "device.d.latency": "20ms",
            "tier.dram.capacity": "8MiB", "store.policy": "lru"})
        keys = [self.key(index) for index in range(24)]
        data = [pattern(LAYOUT.bytes, index) for index in range(24)]
        self.assertTrue(all(store.put_many(keys, data, LAYOUT)))
        store.flush()
        for key in keys[:16]:
            store.prefetch(key, "ssd")
        out = [bytearray(LAYOUT.bytes) for _ in keys]
        began = time.monotonic()
        self.assertEqual(store.get_many(keys + [self.key("none")], out + [bytearray(5)]),
                         [True] * 24 + [False])
        self.assertLess(time.monotonic() - began, 0.35)
        self.assertEqual(out, data)
        self.assertIn(True, store.get_many(keys, out, deadline=5))

    def test_puts_wait_for_room(self):
        """A request to the device takes 40 ms, and the staging has room for four entries."""
        store = kvterrace.Store(settings={
            "device.d.path": os.path.join(self.folder(), "disk"), "device.d.tier": "ssd",
            "device.d.backend": "file", "device.d.capacity": "128MiB",
            "device.d.latency": "40ms", "store.put_staging": "4MiB",
            "store.policy": "lru"})
        self.addCleanup(store.close)
        data = pattern(1 << 20)
        first = [store.put(self.key(("at once", index)), data, deadline=0) for index in range(24)]
        self.assertIn(kvterrace.Outcome.BUSY, first)
        self.assertEqual({store.put(self.key(("waits", index)), data) for index in range(24)},
                         {kvterrace.Outcome.STORED})
        self.assertEqual(set(store.put_many([self.key(("many", index)) for index in range(24)],
                                            [data] * 24)), {kvterrace.Outcome.STORED})
        self.assertRaises(kvterrace.ArgumentError, store.put, self.key("x"), data, deadline="1")

    def test_entries_of_other_hosts(self):
        """Two stores with one engine between them, which is in this process's memory."""
        settings = {"tier.remote.namespace": "entries", "tier.remote.publish": "all",
                    "tier.remote.deadline": "20", "remote.a.backend": "memory",
                    "remote.a.address": "test_entries_of_other_hosts"}
        first, second = self.store(settings=settings), self.store(settings=settings)
        keys, out = [self.key(f"r{index}") for index in range(4)], bytearray(LAYOUT.bytes)
        for index, key in enumerate(keys[:3]):
            self.assertTrue(first.put(key, pattern(LAYOUT.bytes, index), LAYOUT,
                                      parent=keys[index - 1] if index else None))
        first.flush()
        self.assertTrue(first.remote_flush(deadline=30))
        self.assertEqual((second.match(keys), second.match(keys, hosts=True, deadline=0)), (0, 0))
        self.assertEqual(second.match(keys, hosts=True), 3)
        worth = second.match_worth(keys)
        self.assertEqual((worth.stored, worth.guessed), (3, 3))
        self.assertEqual(first.match_worth(keys).guessed, 0)

        async def look(store, key):
            info = {}
            return await store.aexists(key, info=info), info["guess"]

        self.assertEqual([asyncio.run(look(store, key)) for store, key in (
            (first, keys[0]), (second, keys[0]), (second, keys[3]))],
            [(True, False), (True, True), (False, True)])

        async def fetch(key, info):
            return await second.aget_into(key, out, info=info)

        for index, key in enumerate(keys[:3]):
            info = {}
            self.assertTrue(asyncio.run(fetch(key, info)) if index == 0 else
                            second.get_into(key, out, info=info))
            self.assertEqual((out, info["tier"]), (pattern(LAYOUT.bytes, index), "remote"))
        self.assertFalse(second.get_into(keys[3], out))
        said = second.remote_stats()
        self.assertEqual((said["hits"], first.remote_stats()["published"]), (3, 3))
        self.assertEqual(len(said["node_list"]), said["nodes"])
        self.assertTrue(all(node["message"] == "" for node in said["node_list"]))

    def test_a_clear_takes_copies_of_what_was_evicted(self):
        settings = {"tier.remote.namespace": "clears", "tier.remote.publish": "all",
                    "remote.a.backend": "memory", "remote.a.address": "test_a_clear"}
        store = self.store(settings=settings, tier_dram_capacity="256KiB")
        out = bytearray(LAYOUT.bytes)
        space = kvterrace.Space(model="to be cleared")
        for everything in (False, True):
            keys = [space.key(f"c{index}") for index in range(40)]
            for key in keys:
                store.put(key, pattern(LAYOUT.bytes, 1), LAYOUT, recompute_seconds=1.0)
                store.flush()
                self.assertTrue(store.remote_flush(deadline=30))
            held = sum(store.exists(key) for key in keys)
            self.assertLess(held, 40)
            self.assertGreater(sum(store.get_into(key, out, deadline=30) for key in keys), held)
            store.clear(everything=True) if everything else store.clear(space=space)
            self.assertEqual(sum(store.get_into(key, out, deadline=30) for key in keys), 0)
            self.assertTrue(store.remote_flush(deadline=30))
            self.assertEqual(store.remote_stats()["owed_clears"], 0)
        self.refused(kvterrace.ArgumentError, "", store.clear, space=space, everything=True)

    def test_without_other_hosts(self):
        store, keys = self.store(), [self.key(index) for index in range(2)]
        store.put(keys[0], pattern(LAYOUT.bytes), LAYOUT)
        self.assertEqual(store.match(keys, hosts=True), 1)
        self.assertIsNone(store.remote_stats())
        self.refused(kvterrace.UnsupportedError, "", store.remote_flush)

    def test_a_restart_brings_entries_back(self):
        folder = self.folder()
        settings = {"device.d.path": os.path.join(folder, "disk"), "device.d.tier": "ssd",
                    "device.d.backend": "file", "device.d.capacity": "16MiB"}
        options = {"catalog": os.path.join(folder, "catalog.db"), "settings": settings}
        data = pattern(LAYOUT.bytes)
        with kvterrace.Store(tier_dram_capacity="8MiB", **options) as store:
            self.assertTrue(store.put(self.key("a"), data, LAYOUT, recompute_seconds=5.0))
            self.assertEqual(store.persist()["left"], 0)
        with kvterrace.Store(tier_dram_capacity="8MiB", **options) as store:
            self.assertEqual(store.get(self.key("a")), data)
            other = kvterrace.Space(model="test", dtype="fp16", block_tokens=48)
            self.assertIsNone(store.get(other.key("a")))


class Answers(PackageCase):
    def test_misses_are_answers(self):
        store, key = self.store(), self.key("absent")
        self.assertIsNone(store.get(key))
        self.assertIs(store.get_into(key, bytearray(64)), False)
        self.assertIs(store.exists(key), False)
        self.assertNotIn(key, store)
        self.assertIs(store.delete(key), False)
        self.assertIsNone(store.describe(key))
        self.assertIsNone(store.lease([key], 5))
        self.assertIs(store.prefetch(key), False)
        self.assertEqual(store.touch([key]), 0)
        self.assertEqual(store.hint([key], "retain", 3), 0)
        self.assertEqual(store.predict_loads([key]), [None])

    def test_outcomes_of_puts(self):
        store, data = self.store(), pattern(LAYOUT.bytes)
        first = store.put(self.key("a"), data, LAYOUT)
        again = store.put(self.key("a"), data, LAYOUT)
        self.assertEqual((first.value, bool(first)), ("stored", True))
        self.assertEqual((again.value, bool(again)), ("exists", True))
        self.assertFalse(kvterrace.Outcome.REFUSED or kvterrace.Outcome.BUSY)
        none = self.store(policy="none")
        self.assertEqual(none.put(self.key("a"), data, LAYOUT), kvterrace.Outcome.REFUSED)

    def test_leases_hints_and_worth(self):
        store, keys = self.store(), [self.key(index) for index in range(3)]
        for key in keys[:2]:
            store.put(key, pattern(LAYOUT.bytes), LAYOUT)
        store.flush()
        with store.lease(keys, 60) as lease:
            self.assertEqual(lease.held, [True, True, False])
            self.refused(kvterrace.BusyError, "KVT_BUSY", store.delete, keys[0])
            self.assertTrue(lease.extend(30))
            self.assertFalse(lease.extend(1e-9))  # over when the call is made
            self.assertFalse(lease.end())
        self.assertIsNone(store.lease(keys, 1e-9))
        self.assertFalse(lease.end())
        self.assertEqual(store.hint(keys, "demote"), 2)
        worth = store.match_worth(keys)
        self.assertEqual(worth.stored, 2)
        self.assertAlmostEqual(worth.saved_seconds, worth.recompute_seconds - worth.load_seconds)
        self.assertEqual(len([one for one in store.predict_loads(keys) if one is not None]), 2)
        self.assertTrue(store.delete(keys[0]))

    def test_tenants_and_what_was_learned(self):
        store, key = self.store(), self.key("a")
        store.set_tenant(3, alpha_seconds=2.0, loss_limit=0.1, shares={"dram": LAYOUT.bytes * 3})
        store.give_space(self.space, 3)
        self.assertTrue(store.put(key, pattern(LAYOUT.bytes), LAYOUT))
        store.flush()
        self.assertEqual(store.clear(tenant=3), 1)
        for call in (lambda: store.set_tenant(3, alpha_seconds=-1.0),
                     lambda: store.set_tenant(3, alpha_seconds="x"),
                     lambda: store.set_tenant(-1, alpha_seconds=1.0),
                     lambda: store.set_tenant(1, alpha_seconds=1.0, shares={"tape": 1}),
                     lambda: store.set_tenant(1, alpha_seconds=1.0, shares={"dram": -1}),
                     lambda: store.give_space(self.space, 1 << 31),
                     lambda: store.give_space("x", 1),
                     lambda: store.observe_quality(key, "nothing", 0.1),
                     lambda: store.observe_quality(key, "planes:k4v4,g64", "x"),
                     lambda: store.class_stats(-1)):
            with self.assertRaises(kvterrace.ArgumentError):
                call()
        self.assertEqual(store.class_stats(0)["loss_observations"], 0)
        self.assertIsNone(store.class_stats(64))
        self.assertEqual(store.stats()["leases"]["leases"], 0)
        self.assertEqual(store.stats()["hints_skipped"], 0)
        for wrong in (b"", b"no basis" * 100):
            with self.assertRaises(kvterrace.Error):
                store.add_basis(wrong)
        store.close()
        for call in (store.stats, lambda: store.class_stats(0),
                     lambda: store.add_basis(b"x"), lambda: store.give_space(self.space, 1),
                     lambda: store.set_tenant(1, alpha_seconds=1.0)):
            with self.assertRaises(kvterrace.StateError):
                call()

    def test_bytes_without_a_shape(self):
        """Nothing says what recomputing them costs, and the refusal says that."""
        store, key = self.store(policy="utility"), self.key("opaque")
        self.assertIs(store.put(key, bytes(1000)), kvterrace.Outcome.REFUSED)
        self.assertIn("needs recompute_seconds in its put", store.explain(key)["reason"])
        self.assertTrue(store.put(key, bytes(1000), recompute_seconds=1.0))
        closed = self.store()
        closed.close()
        self.assertEqual(repr(closed), "<kvterrace.Store, closed>")

    def test_what_it_says_of_itself(self):
        store = self.store()
        self.assertIsNone(store.stats()["hit_rate"])
        store.put(self.key("a"), pattern(LAYOUT.bytes), LAYOUT)
        store.flush()
        store.get(self.key("a"))
        self.assertIn("1 entries", repr(store))
        self.assertIn("1 hits of 1 gets", repr(store))
        stats = store.stats()
        self.assertEqual((stats["hits"], stats["hit_rate"]), (1, 1.0))
        self.assertEqual((stats["puts"], stats["gets"]), (1, 1))
        self.assertEqual(stats["tiers"]["dram"]["entries"], 1)
        said = store.explain(self.key("a"))
        self.assertTrue(said["reason"])
        store.get(self.key("none"))
        store.get(self.key("none"))
        store.get(self.key("a"))
        stats = store.stats()
        self.assertEqual((stats["hits"], stats["hit_rate"]), (2, 0.5))
        self.assertEqual(stats["tiers"]["dram"]["hit_rate"], 0.5)
        self.assertEqual(stats["tiers"]["ssd"]["hit_rate"], 0.0)
        self.assertIn("dram", said["options"][0]["option"]["bytes"])
        self.assertIn("kvterrace_", store.metrics())
        self.assertEqual([one["tier"] for one in store.devices()], ["dram"])
        self.assertEqual(store.health(), [])
        self.assertEqual(store.space_stats(self.space)["entries"], 1)
        self.assertEqual(store.clear(space=self.space), 1)
        self.assertIsNone(store.get(self.key("a")))

    def test_events(self):
        store = self.store()
        with store.events() as events:
            store.put(self.key("a"), pattern(LAYOUT.bytes), LAYOUT)
            store.flush()
            store.delete(self.key("a"))
            kinds = [event["kind"] for event in events.drain()]
            self.assertEqual((kinds[0], kinds[-1]), ("stored", "removed"))
            self.assertGreaterEqual(events.fileno(), 0)
        self.refused(kvterrace.StateError, "closed", events.drain)

    def test_keys_are_those_of_the_library(self):
        space = kvterrace.Space(model="m", dtype="bf16", block_tokens=256, layers=32)
        key = space.key(b"\x01\x02", group=3)
        self.assertEqual(key[:8], space.hash[:8])
        self.assertEqual(key.space, space.id)
        self.assertEqual(kvterrace.Key(bytes(key)), key)
        self.assertNotEqual(key, space.key(b"\x01\x02"))

    def test_no_descriptor_and_no_memory_is_left(self):
        def life(rounds):
            for _ in range(rounds):
                with kvterrace.Store(tier_dram_capacity="4MiB", policy="lru") as store:
                    store.put(self.key("a"), bytes(65536))
                    view = kvterrace.View.packed(kvterrace.Layout.opaque(65536), bytearray(65536))
                    store.get_into(self.key("a"), view)
                    store.events().close()
                    store.get(self.key("a"))
            gc.collect()
            with open("/proc/self/statm", encoding="ascii") as file:
                resident = int(file.read().split()[1]) * 4096
            return len(os.listdir("/proc/self/fd")), resident

        before = life(3)
        after = life(8)
        self.assertEqual(after[0], before[0])
        self.assertLess(after[1] - before[1], 16 << 20)


if __name__ == "__main__":
    unittest.main()
