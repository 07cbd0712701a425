#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The adapters of LMCache against classes of its interface: what they store, find, lock, load, tell
and refuse."""

import os
import random
import select
import struct
import subprocess
import tempfile
import threading
import unittest

from package_case import BUILD, PackageCase, kvterrace, pattern
import kvterrace.codec  # noqa: E402
import fake_lmcache
from fake_lmcache import BF16, FP16, UINT8, MemoryObj, ObjectKey

_FOLDER = tempfile.TemporaryDirectory(prefix="kvt-test-")
fake_lmcache.install(_FOLDER.name)

from kvterrace import lmcache  # noqa: E402  (behind the classes)

PROFILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles",
                       "smollm2-135m-instruct.json")
SHAPE = (2, 3, 16, 64)  # K and V, layers, tokens, heads x dim
BYTES = 2 * 3 * 16 * 64 * 2


def wait(fd):
    """Waits for a descriptor and reads it, as LMCache's controllers do."""
    if not select.select([fd], [], [], 30)[0]:
        raise AssertionError("the descriptor stays still")
    os.eventfd_read(fd)


def kv_like(size, seed):
    """Normal numbers in bfloat16, over and over."""
    numbers = random.Random(seed)
    unit = b"".join(struct.pack("<f", numbers.gauss(0, 1))[2:] for _ in range(4093))
    return (unit * (size // len(unit) + 1))[:size]


def hash_of(number):
    return number.to_bytes(16, "big")


class PluginCase(PackageCase):
    def adapter(self, **parameters):
        settings = {"tier.dram.capacity": "32MiB", **parameters.pop("settings", {})}
        made = lmcache.KvterraceL2Adapter({"settings": settings, "revision": "1", **parameters})
        self.addCleanup(made.close)
        return made

    def keys(self, *numbers, **fields):
        return [ObjectKey(hash_of(number), **fields) for number in numbers]

    def object(self, seed, dtype=BF16, shape=SHAPE, size=BYTES):
        return MemoryObj(pattern(size, seed), (shape, dtype))

    def store_all(self, adapter, keys, objects):
        task = adapter.submit_store_task(keys, objects)
        wait(adapter.get_store_event_fd())
        results = adapter.pop_completed_store_tasks()
        self.assertEqual(list(results), [task])
        return results[task]

    def load(self, adapter, keys, objects):
        task = adapter.submit_load_task(keys, objects)
        wait(adapter.get_load_event_fd())
        bitmap = adapter.query_load_result(task)
        self.assertIsNone(adapter.query_load_result(task))  # a result is given once
        return bitmap.bits

    def lookup(self, adapter, keys):
        task = adapter.submit_lookup_and_lock_task(keys, {})
        wait(adapter.get_lookup_and_lock_event_fd())
        bitmap = adapter.query_lookup_and_lock_result(task)
        self.assertIsNone(adapter.query_lookup_and_lock_result(task))
        return bitmap.bits


class Plugin(PluginCase):
    def test_a_round_trip(self):
        adapter, keys = self.adapter(head_dim=32), self.keys(1, 2, 3)
        fds = {adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(),
               adapter.get_load_event_fd()}
        self.assertEqual(len(fds), 3)
        self.assertEqual(self.lookup(adapter, keys), [False] * 3)
        stored = [self.object(seed) for seed in (1, 2)]
        self.assertEqual(self.store_all(adapter, keys[:2], stored), 2 * BYTES)
        self.assertEqual(adapter.told, [("stored", keys[:2])])
        self.assertEqual(adapter.get_usage(), 2 * BYTES)
        self.assertEqual(self.lookup(adapter, keys), [True, True, False])
        targets = [self.object(9) for _ in keys]
        self.assertEqual(self.load(adapter, keys, targets), [True, True, False])
        self.assertEqual([target.data for target in targets[:2]], [one.data for one in stored])
        self.assertEqual(adapter.told[-1], ("accessed", keys[:2]))
        again = adapter.submit_store_task(keys[:2], stored)
        wait(adapter.get_store_event_fd())
        self.assertEqual(adapter.pop_completed_store_tasks(), {again: 0})
        self.assertEqual(adapter.get_usage(), 2 * BYTES)

    def test_listeners_hear_of_a_load_before_its_descriptor(self):
        adapter, keys, heard = self.adapter(), self.keys(1, 2, 3), []
        adapter.register_listener(heard.append)
        descriptor = adapter.get_load_event_fd()
        self.store_all(adapter, keys[:2], [self.object(1), self.object(2)])
        for _ in range(20):  # a notice that came later would be seen in one of them
            task = adapter.submit_load_task(keys, [self.object(9) for _ in keys])
            wait(descriptor)
            self.assertEqual(heard, [keys[:2]])
            self.assertEqual(adapter.query_load_result(task).bits, [True, True, False])
            self.assertEqual(heard, [keys[:2]])  # once
            heard.clear()
        task = adapter.submit_load_task(keys[2:], [self.object(9)])
        wait(descriptor)
        self.assertEqual((heard, adapter.query_load_result(task).bits), ([], [False]))
        self.assertEqual(adapter.get_load_event_fd(), descriptor)

    def test_a_listener_that_fails_stops_no_load(self):
        adapter, keys = self.adapter(), self.keys(1)
        adapter.register_listener(lambda keys: 1 // 0)
        self.store_all(adapter, keys, [self.object(1)])
        for _ in range(2):
            with self.assertLogs("kvterrace.lmcache", "ERROR"):
                self.assertEqual(self.load(adapter, keys, [self.object(9)]), [True])

    def test_a_late_listener_hears_of_a_load_with_its_result(self):
        adapter, keys, heard = self.adapter(), self.keys(1), []
        adapter.get_load_event_fd()
        adapter.register_listener(heard.append)
        self.store_all(adapter, keys, [self.object(1)])
        self.assertEqual(self.load(adapter, keys, [self.object(9)]), [True])
        self.assertEqual(heard, [keys])

    def test_the_layout_is_that_of_the_object(self):
        adapter, keys = self.adapter(head_dim=32), self.keys(1, 2, 3, 4)
        self.store_all(adapter, keys, [
            self.object(1), self.object(2, shape=(3, 32, 64)), self.object(3, UINT8, (BYTES,)),
            MemoryObj(pattern(BYTES + 512, 4), (SHAPE, BF16), ((1, 1, 4, 64), FP16))])
        joined = adapter._keys.join(keys)
        found = [adapter._store.describe(joined[at:at + 32])["layouts"] for at in range(0, 128, 32)]
        layout = kvterrace.Layout(layers=3, kv_heads=2, head_dim=32, dtype="bf16", tokens=16,
                                  order="side_layer")
        self.assertEqual(found[0], [layout])
        self.assertEqual((found[1][0].sides, found[1][0].layers, found[1][0].tokens), (1, 3, 32))
        self.assertEqual(found[2], [kvterrace.Layout.opaque(BYTES)])
        self.assertEqual([one.dtype for one in found[3]], ["bf16", "fp16"])

    def test_mixed_sizes_in_a_batch(self):
        adapter, keys = self.adapter(head_dim=32), self.keys(*range(6))
        def make(seed):
            return [self.object(seed), self.object(seed, shape=(3, 32, 64)),
                    MemoryObj(pattern(100, seed), ((100,), UINT8)),
                    MemoryObj(pattern(77, seed), ((77,), UINT8)),
                    MemoryObj(pattern(BYTES + 512, seed), (SHAPE, BF16), ((1, 1, 4, 64), FP16)),
                    MemoryObj(pattern(400, seed), ((400,), UINT8), used=123)]
        stored, targets = make(1), make(2)
        targets[5] = MemoryObj(pattern(400, 2), ((400,), UINT8))
        self.store_all(adapter, keys, stored)
        self.assertEqual(self.load(adapter, keys, targets), [True] * 6)
        for one, target in zip(stored[:5], targets):
            self.assertEqual(one.data, target.data)
        # A serde has written less than it had room for: so much comes back, in front.
        self.assertEqual(stored[5].data[:123], targets[5].data[:123])

    def test_another_type_is_a_miss_and_makes_room(self):
        adapter, keys = self.adapter(head_dim=32), self.keys(1, 2)
        self.store_all(adapter, keys, [self.object(1), self.object(2)])
        target = self.object(7, FP16)
        self.assertEqual(self.load(adapter, keys, [target, self.object(7)]), [False, True])
        self.assertEqual(target.data, pattern(BYTES, 7))  # and not touched
        self.assertIn(("deleted", keys[:1]), adapter.told)
        self.store_all(adapter, keys[:1], [self.object(3, FP16)])
        self.assertEqual(self.load(adapter, keys[:1], [target]), [True])
        self.assertEqual(target.data, pattern(BYTES, 3))

    def test_salts_models_ranks_and_groups_are_apart(self):
        adapter = self.adapter(head_dim=32)
        apart = [ObjectKey(hash_of(1)), ObjectKey(hash_of(1), cache_salt="b"),
                 ObjectKey(hash_of(1), model_name="other"), ObjectKey(hash_of(1), kv_rank=1),
                 ObjectKey(hash_of(1), object_group_id=1), ObjectKey(hash_of(1)[1:])]
        for seed, key in enumerate(apart):
            self.assertEqual(self.lookup(adapter, [key]), [False])
            self.store_all(adapter, [key], [self.object(seed)])
        targets = [self.object(99) for _ in apart]
        self.assertEqual(self.load(adapter, apart, targets), [True] * 6)
        for seed, target in enumerate(targets):
            self.assertEqual(target.data, pattern(BYTES, seed))
        joined = adapter._keys.join(apart)
        spaces = {joined[at:at + 8] for at in range(0, len(joined), 32)}
        self.assertEqual(len(spaces), 3)  # of the model, its salt, and the other model

    def test_locks_hold_and_end(self):
        adapter, keys = self.adapter(head_dim=32), self.keys(1, 2)
        self.store_all(adapter, keys, [self.object(1), self.object(2)])
        adapter._store.flush()
        self.assertEqual(self.lookup(adapter, keys), [True, True])
        self.assertEqual(self.lookup(adapter, keys[:1]), [True])
        adapter.delete(keys)
        self.assertEqual(self.lookup(adapter, keys), [True, True])  # held: nothing went
        for _ in range(2):
            adapter.submit_unlock(keys)
        adapter.delete(keys)
        self.assertEqual(self.lookup(adapter, keys), [True, False])  # the first has a third lock
        for _ in range(3):
            adapter.submit_unlock(keys)  # more than there are do no harm
        adapter.delete(keys)
        self.assertEqual(self.lookup(adapter, keys), [False, False])
        self.assertEqual(adapter.get_usage(), 0)
        self.assertEqual(adapter.report_status()["locked_key_count"], 0)

    def test_a_lock_that_nobody_ends_ends_by_itself(self):
        adapter, keys = self.adapter(head_dim=32, lock_seconds=0.05), self.keys(1)
        self.store_all(adapter, keys, [self.object(1)])
        adapter._store.flush()
        self.lookup(adapter, keys)
        ended = threading.Event()
        ended.wait(0.1)
        self.lookup(adapter, self.keys(2))  # drops what has ended
        self.assertEqual(adapter.report_status()["locked_key_count"], 0)
        adapter.delete(keys)
        self.assertEqual(self.lookup(adapter, keys), [False])

    def test_what_the_store_evicts_is_told(self):
        adapter = self.adapter(head_dim=32, settings={"tier.dram.capacity": "1MiB"})
        keys = self.keys(*range(128))
        for start in range(0, 128, 16):
            self.store_all(adapter, keys[start:start + 16],
                           [self.object(seed) for seed in range(start, start + 16)])
            adapter._store.flush()
        usage = adapter.get_usage()
        self.assertLess(usage, 128 * BYTES)
        found = self.lookup(adapter, keys)
        self.assertEqual(usage, sum(found) * BYTES)
        gone = [key for kind, told in adapter.told if kind == "deleted" for key in told]
        self.assertEqual(len(gone), 128 - sum(found))
        adapter.submit_unlock(keys)

    def test_many_tasks_at_once(self):
        adapter = self.adapter(head_dim=32)
        batches = [self.keys(*range(start, start + 8)) for start in range(0, 64, 8)]
        tasks = [adapter.submit_store_task(batch, [self.object(7) for _ in batch])
                 for batch in batches]
        done = {}
        while len(done) < len(tasks):
            wait(adapter.get_store_event_fd())
            done.update(adapter.pop_completed_store_tasks())
        self.assertEqual(set(done), set(tasks))
        targets = [[self.object(1) for _ in batch] for batch in batches]
        loads = [adapter.submit_load_task(batch, target)
                 for batch, target in zip(batches, targets)]
        while loads:
            wait(adapter.get_load_event_fd())
            # Asked for one by one, as the prefetch controller does: no wake is lost.
            bitmap = adapter.query_load_result(loads[-1])
            if bitmap is not None:
                self.assertTrue(all(bitmap.bits))
                loads.pop()
                if loads:
                    adapter._loads.tasks.signal()
        for target in targets:
            self.assertTrue(all(one.data == pattern(BYTES, 7) for one in target))

    def test_a_layout_that_nobody_knows_is_bytes_and_said_once(self):
        adapter, data = self.adapter(head_dim=32), pattern(96, 7)
        shapes = (((2, 3, 4, 2, 2), UINT8), ((3, 32), UINT8), ((96, 1), UINT8))
        with self.assertLogs("kvterrace.lmcache", "WARNING") as logs:
            for number, group in enumerate(shapes):
                keys = self.keys(number)
                self.store_all(adapter, keys, [MemoryObj(bytearray(data), group)])
                target = MemoryObj(bytearray(96), group)
                self.assertEqual(self.load(adapter, keys, [target]), [True])
                self.assertEqual(target.data, data)
                about = adapter._store.describe(adapter._keys.join(keys))
                self.assertEqual(about["layouts"][0].dtype, "opaque")
        self.assertEqual(len(logs.output), 1)
        self.assertIn("as bytes", logs.output[0])

    def test_a_policy_that_declines_says_so_once(self):
        adapter = self.adapter(settings={"store.policy": "utility"})
        with self.assertLogs("kvterrace.lmcache", "WARNING") as logs:
            for number in (1, 2):
                keys = self.keys(number)
                self.store_all(adapter, keys, [MemoryObj(pattern(96, 7), ((96,), UINT8))])
                self.assertEqual(self.lookup(adapter, keys), [False])
        self.assertEqual(len(logs.output), 1)
        self.assertIn("recompute_seconds", logs.output[0])

    def test_a_second_level_on_one_catalog_is_refused(self):
        folder = self.folder()
        settings = {"store.catalog": os.path.join(folder, "catalog.db"),
                    "device.d.path": os.path.join(folder, "disk"), "device.d.tier": "ssd",
                    "device.d.backend": "file", "device.d.capacity": "64MiB"}
        first, keys = self.adapter(settings=settings), self.keys(1)
        self.store_all(first, keys, [self.object(1)])
        self.refused(kvterrace.LockedError, "", self.adapter, settings=settings)
        target = self.object(2)
        self.assertEqual(self.load(first, keys, [target]), [True])
        self.assertEqual(target.data, self.object(1).data)

    def test_wrong_tasks_fail_and_say_why(self):
        adapter, keys = self.adapter(head_dim=32), self.keys(1, 2)
        device = MemoryObj(pattern(BYTES, 1), (SHAPE, BF16), is_cpu=False)
        self.assertFalse(self.store_all(adapter, keys[:1], [device]).is_successful())
        self.assertEqual(self.load(adapter, keys[:1], [device]), [False])
        self.assertFalse(self.store_all(adapter, keys, [self.object(1)]).is_successful())
        self.assertEqual(self.load(adapter, [], []), [])
        self.assertEqual(self.lookup(adapter, []), [])
        self.assertEqual(self.lookup(adapter, [ObjectKey(b"", kv_rank=-1)]), [False])

    def test_parameters(self):
        for given, text in (({"capacity": 1}, "unknown parameter capacity"),
                            ({"head_dim": "64"}, "head_dim is int"),
                            ({"head_dim": 0}, "head_dim is at least 1"),
                            ({"lock_seconds": 0}, "lock_seconds is at least"),
                            ({"settings": {"tier.dram.capacitty": "1MiB"}}, "capacitty"),
                            ([], "are an object")):
            with self.assertRaises(kvterrace.Error) as caught:
                lmcache.KvterraceL2Adapter(given)
            self.assertIn(text, str(caught.exception))

    def test_another_version_serves_while_its_interface_is_the_same(self):
        said = self.script(
            "import logging, sys, tempfile\n"
            f"sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})\n"
            "logging.basicConfig(stream=sys.stdout)\n"
            "import fake_lmcache\n"
            "fake_lmcache.install(tempfile.mkdtemp(), '0.9.1')\n"
            "import kvterrace.lmcache\n"
            "print('serves')\n")
        self.assertIn("tested with LMCache 0.5.6, and this is 0.9.1: what the adapter uses of it "
                      "is the same", said)
        self.assertIn("serves", said)

    def test_after_the_close(self):
        adapter, keys = self.adapter(head_dim=32), self.keys(1)
        self.store_all(adapter, keys, [self.object(1)])
        before = len(os.listdir("/proc/self/fd"))
        adapter.close()
        adapter.close()
        self.assertLess(len(os.listdir("/proc/self/fd")), before)
        self.assertFalse(adapter.report_status()["is_healthy"])


class Lossy(PluginCase):
    """Forms of a calibrated ladder, through the plugin."""

    def test_a_form_of_the_ladder(self):
        folder, command = self.folder(), os.path.join(BUILD, "kvterrace")
        if not os.path.exists(command):
            self.skipTest("the build has no command that imports profiles")
        profile = os.path.join(folder, "profile.db")
        subprocess.run([command, "profile", "import", "--database", profile, PROFILE], check=True,
                       stdout=subprocess.DEVNULL)
        shape, layout = (2, 30, 64, 192), kvterrace.Layout(30, 3, 64, "bf16", 64,
                                                           order="side_layer")
        adapter = self.adapter(head_dim=64, settings={
            "store.policy": "lru", "store.variant": "planes:k8v8,g64", "store.profile": profile,
            "store.ladder": "calibrated", "store.ladder_layout": "30x3x64:bf16",
            "store.ladder_class": "pooled", "store.loss_limit": "0.2", "store.learn": "no"})
        keys = self.keys(*range(4))
        sources = [kv_like(layout.bytes, number) for number in range(4)]
        self.store_all(adapter, keys, [MemoryObj(bytearray(one), (shape, BF16)) for one in sources])
        adapter._store.flush()
        targets = [MemoryObj(bytearray(layout.bytes), (shape, BF16)) for _ in keys]
        self.assertEqual(self.load(adapter, keys, targets), [True] * 4)
        for key, source, target in zip(keys, sources, targets):
            about = adapter._store.describe(adapter._keys.join([key]))
            self.assertEqual(about["variant"], "planes:k8v8,g64")
            self.assertLess(about["stored_bytes"], 0.7 * layout.bytes)
            # What comes back is what the form makes of the entry, bit for bit, so that the loss is
            # the one that was calibrated.
            record = kvterrace.codec.encode(source, layout, about["variant"])
            self.assertEqual(target.data, kvterrace.codec.decode(record))
            self.assertNotEqual(target.data, source)


class Serde(PackageCase):
    def coders(self, **parameters):
        made = fake_lmcache.SERDES["kvterrace"]({"revision": "1", **parameters})
        return made.serializer, made.deserializer

    def refused_otherwise(self, groups, data, **parameters):
        """A record of another key and a damaged one are refused; returns the bytes written."""
        serializer, deserializer = self.coders(**parameters)
        source = MemoryObj(bytearray(data), *groups)
        room = serializer.estimate_serialized_size(source.metadata)
        target = MemoryObj(bytearray(room + 3), ((room + 3,), UINT8))
        target.set_used_size(room)
        key = ObjectKey(hash_of(1))
        written = serializer.serialize(source, target, key)
        self.assertLessEqual(written, room)
        found = MemoryObj(bytearray(len(data)), *groups)
        deserializer.deserialize(target, found, key)
        with self.assertRaises(kvterrace.MismatchError):
            deserializer.deserialize(target, found, ObjectKey(hash_of(2)))
        target.data[written // 2] ^= 1
        with self.assertRaises(kvterrace.Error):
            deserializer.deserialize(target, found, key)
        return written

    def test_exact_forms(self):
        data = kv_like(BYTES, 1)
        for groups, content in ((((SHAPE, BF16),), data), ((((BYTES,), UINT8),), data),
                                (((SHAPE, BF16), ((1, 1, 4, 64), FP16)), data + data[:512])):
            serializer, deserializer = self.coders()
            source = MemoryObj(bytearray(content), *groups)
            room = serializer.estimate_serialized_size(source.metadata)
            target, key = MemoryObj(bytearray(room), ((room,), UINT8)), ObjectKey(hash_of(1))
            serializer.serialize(source, target, key)
            found = MemoryObj(bytearray(len(content)), *groups)
            deserializer.deserialize(target, found, key)
            self.assertEqual(found.data, source.data)

    def test_a_lossy_form(self):
        layout = kvterrace.Layout(3, 2, 32, "bf16", 256, order="side_layer")
        shape, data = (2, 3, 256, 64), kv_like(layout.bytes, 2)
        written = self.refused_otherwise(((shape, BF16),), data, variant="planes:k8v8,g32",
                                         head_dim=32)
        self.assertLess(written, layout.bytes)
        record = kvterrace.codec.encode(data, layout, "planes:k8v8,g32")
        serializer, deserializer = self.coders(variant="planes:k8v8,g32", head_dim=32)
        source = MemoryObj(bytearray(data), (shape, BF16))
        room = serializer.estimate_serialized_size(source.metadata)
        target, key = MemoryObj(bytearray(room), ((room,), UINT8)), ObjectKey(hash_of(1))
        serializer.serialize(source, target, key)
        back = MemoryObj(bytearray(layout.bytes), (shape, BF16))
        deserializer.deserialize(target, back, key)
        self.assertEqual(back.data, kvterrace.codec.decode(record))
        other = MemoryObj(bytearray(layout.bytes), (shape, FP16))
        with self.assertRaises(kvterrace.ArgumentError):
            deserializer.deserialize(target, other, key)

    def test_parameters(self):
        for given, text in (({"variant": "planes:k99"}, "no variant"), ({"bits": 4}, "bits"),
                            ({"max_workers": 0}, "at least 1")):
            with self.assertRaises(kvterrace.Error) as caught:
                self.coders(**given)
            self.assertIn(text, str(caught.exception))


class Connector(PackageCase):
    def connector(self, policy="lru", **parameters):
        settings = {"tier.dram.capacity": "32MiB", "store.policy": policy}
        made = lmcache.KvterraceConnector(settings=settings, **parameters)
        self.addCleanup(made.close)
        return made

    def run_one(self, connector, number):
        """The completion of a task, as the thread of NativeConnectorL2Adapter takes it."""
        self.assertTrue(select.select([connector.event_fd()], [], [], 30)[0])
        done = {one[0]: one for one in connector.drain_completions()}
        self.assertEqual(list(done), [number])
        self.assertFalse(select.select([connector.event_fd()], [], [], 0)[0])  # no loop spins
        return done[number][1:]

    def texts(self, *numbers, **fields):
        return [ObjectKey(hash_of(number), **fields).text() for number in numbers]

    def test_a_round_trip_with_mixed_sizes(self):
        connector = self.connector()
        texts = self.texts(1, 2) + self.texts(1, cache_salt="tenant")
        data = [pattern(size, size) for size in (BYTES, 1000, 7)]
        views = [memoryview(one) for one in data]
        self.assertEqual(self.run_one(connector, connector.submit_batch_exists(texts)),
                         (True, "", [False] * 3))
        self.assertEqual(self.run_one(connector, connector.submit_batch_set(texts, views)),
                         (True, "", [True] * 3))
        self.assertEqual(self.run_one(connector, connector.submit_batch_set(texts, views)),
                         (True, "", [True] * 3))
        self.assertEqual(self.run_one(connector, connector.submit_batch_exists(texts)),
                         (True, "", [True] * 3))
        targets = [bytearray(len(one)) for one in data] + [bytearray(5)]
        texts += self.texts(3)
        self.assertEqual(self.run_one(connector, connector.submit_batch_get(texts, targets)),
                         (True, "", [True, True, True, False]))
        self.assertEqual(targets[:3], data)
        self.assertEqual(self.run_one(connector, connector.submit_batch_delete(texts)),
                         (True, "", [True, True, True, False]))
        self.assertEqual(self.run_one(connector, connector.submit_batch_exists(texts)),
                         (True, "", [False] * 4))

    def test_a_policy_that_declines_says_so_once(self):
        connector, texts = self.connector("utility"), self.texts(1, 2)
        views = [memoryview(pattern(1000, one)) for one in (1, 2)]
        with self.assertLogs("kvterrace.lmcache", "WARNING") as logs:
            for _ in range(2):
                self.assertEqual(self.run_one(connector, connector.submit_batch_set(texts, views)),
                                 (False, "KVT_REFUSED", [False] * 2))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("recompute_seconds", logs.output[0])

    def test_another_size_is_a_miss_and_makes_room(self):
        """As after a restart with another dtype, or behind a serde, whose records are shorter than
        the buffers that they are asked for with: the reason is said, and the next put is taken."""
        connector, texts = self.connector(), self.texts(1, 2)
        data = [pattern(BYTES, seed) for seed in (1, 2)]
        self.run_one(connector, connector.submit_batch_set(texts, data))
        for size in (BYTES - 1, BYTES + 1):
            wrong, other = bytearray(size), bytearray(BYTES)
            with self.assertLogs("kvterrace.lmcache", "WARNING") as logs:
                done = self.run_one(connector, connector.submit_batch_get(texts, [wrong, other]))
                connector._said = type(connector._said)(lmcache._log)  # to be said anew
            self.assertEqual(done, (True, "", [False, True]))
            self.assertIn("behind one use the `plugin`", logs.output[0])
            self.assertEqual((wrong, other), (bytearray(size), data[1]))
            self.assertEqual(self.run_one(connector, connector.submit_batch_exists(texts)),
                             (True, "", [False, True]))
            self.assertEqual(self.run_one(connector, connector.submit_batch_set(texts, data)),
                             (True, "", [True, True]))
        target = bytearray(BYTES)
        self.run_one(connector, connector.submit_batch_get(texts[:1], [target]))
        self.assertEqual(target, data[0])

    def test_what_cannot_be_begun(self):
        connector = self.connector()
        done = self.run_one(connector, connector.submit_batch_set(self.texts(1, 2), [b""]))
        self.assertEqual((done[0], done[2]), (False, [False, False]))
        done = self.run_one(connector, connector.submit_batch_get(self.texts(1), [b"read-only"]))
        self.assertIn("read-only", done[1])
        with self.assertRaises(kvterrace.ConfigError):
            lmcache.KvterraceConnector(head_dim=64)


if __name__ == "__main__":
    unittest.main()
