#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stores that another process lends: the same calls, what is the server's, memory that both have
mapped, servers that die and come back."""

import asyncio
import ctypes
import fcntl
import gc
import mmap
import os
import select
import socket
import threading
import time
import unittest

from package_case import LAYOUT, PackageCase, kvterrace, pattern
from kvterrace._tasks import GET, PUT, Places, Tasks, make_like

PAGE = 4096


class ConnectCase(PackageCase):
    def setUp(self):
        super().setUp()
        self.lends = self.server()

    def connect(self, **options):
        store = kvterrace.Store(connect=self.lends.socket, **options)
        self.addCleanup(store.close)
        return store


class Calls(ConnectCase):
    def test_the_calls_of_a_store(self):
        store, data, keys = self.connect(), pattern(LAYOUT.bytes), [self.key(n) for n in range(3)]
        self.assertTrue(store.connected)
        self.assertIsNone(store.get(keys[0]))
        self.assertEqual(store.put(keys[0], data, LAYOUT).value, "stored")
        self.assertEqual(store.put(keys[0], data, LAYOUT).value, "exists")
        self.assertTrue(store.put(keys[1], data, LAYOUT, parent=keys[0], first_position=48))
        self.assertEqual(store.get(keys[0]), data)
        out, info = bytearray(LAYOUT.bytes), {}
        self.assertTrue(store.get_into(keys[1], out, info=info))
        self.assertEqual((out, info["tier"]), (data, "dram"))
        self.assertEqual(store.get_many(keys, [bytearray(LAYOUT.bytes) for _ in keys]),
                         [True, True, False])
        views = [kvterrace.View.packed(LAYOUT, bytearray(LAYOUT.bytes)) for _ in keys]
        self.assertEqual(store.get_prefix(keys, views), 2)
        self.assertEqual((store.match(keys), store.match(keys, hosts=True)), (2, 2))
        self.assertEqual(store.match_worth(keys).stored, 2)
        self.assertEqual([one is None for one in store.predict_loads(keys)], [False, False, True])
        said = store.describe(keys[1])
        self.assertEqual((said["parent"], said["layouts"]), (keys[0], [LAYOUT]))
        self.assertEqual((store.touch(keys), store.hint(keys, "retain", 60)), (2, 2))
        self.assertTrue(store.prefetch(keys[0]))
        with store.lease(keys, 30) as lease:
            self.assertEqual(lease.held, [True, True, False])
            self.assertRaises(kvterrace.BusyError, store.delete, keys[0])
            self.assertTrue(lease.extend(30))
        self.assertEqual(store.stats()["tiers"]["dram"]["entries"], 2)
        self.assertEqual(store.space_stats(self.space)["entries"], 2)
        self.assertIn("kvterrace_", store.metrics())
        self.assertEqual((store.health(), store.devices()[0]["tier"]), ([], "dram"))
        self.assertIsNotNone(store.explain(keys[0]))
        store.flush()
        self.assertTrue(store.delete(keys[1]))
        self.assertEqual(store.clear(space=self.space), 1)
        self.assertIn(f"connected to {self.lends.socket}", repr(store))
        store.put(keys[2], data, LAYOUT)
        self.refused(kvterrace.ArgumentError, "another size", store.get_into, keys[2],
                     bytearray(5))

    def test_processes_share(self):
        store, data = self.connect(connect_name="first"), pattern(5000)
        store.put(self.key("a"), data)
        self.script(
            "import kvterrace\n"
            f"with kvterrace.Store(connect={self.lends.socket!r}) as store:\n"
            f"    assert len(store.get(bytes.fromhex({self.key('a').hex()!r}))) == 5000\n"
            f"    assert store.put(bytes.fromhex({self.key('b').hex()!r}), b'of another')\n"
            "    region = store.region(100)\n")
        self.assertEqual(store.get(self.key("b")), b"of another")

    def test_settings_are_the_servers(self):
        for given in ({"config": "kvt.ini"}, {"settings": {}}, {"policy": "lru"},
                      {"tier_dram_capacity": "1GiB"}):
            error = self.refused(kvterrace.ConfigError, "the settings of a connected store are its "
                                 "server's", kvterrace.Store, connect=self.lends.socket, **given)
            self.assertIn(next(iter(given)), str(error))
        for given in ({"connect_name": "a"}, {"connect_staging": "1MiB"},
                      {"connect_patience": 1}):
            self.refused(kvterrace.ConfigError, "go with connect", kvterrace.Store, **given)
        for staging in ("5 apples", -1, "-1", [1]):
            self.refused(kvterrace.ConfigError if staging != [1] else kvterrace.ArgumentError,
                         "connect_staging", kvterrace.Store, connect=self.lends.socket,
                         connect_staging=staging)
        for address, error in (("/does/not/exist", kvterrace.DeviceError),
                               ("x" * 200, kvterrace.ArgumentError),
                               ("a\0b", kvterrace.ArgumentError)):
            self.refused(error, "", kvterrace.Store, connect=address)

    def test_staging_bounds_buffers(self):
        store = self.connect(connect_staging="64KiB")
        self.assertTrue(store.put(self.key("fits"), bytes(1 << 15)))
        self.refused(kvterrace.SpaceError, "", store.put, self.key("large"), bytes(1 << 20))
        region = store.region(1 << 20)
        self.assertTrue(store.put(self.key("large"), region))  # which needs none
        self.assertEqual(self.connect(connect_staging=1 << 22).get(self.key("large")),
                         bytes(1 << 20))

    def test_what_a_connected_store_has_not(self):
        store, key = self.connect(), self.key("a")
        store.put(key, b"data")
        for call in (store.remote_stats, store.remote_flush,
                     lambda: store.observe_quality(key, "planes:k8v8,g64", 0.1)):
            self.refused(kvterrace.UnsupportedError, "a connected store", call)
        for size in (1, 100, 100_000):  # it takes bases, of which this is none
            self.refused(kvterrace.CorruptError, "no basis was taken", store.add_basis,
                         bytes(size))

    def test_events_of_a_connected_store(self):
        store, key = self.connect(), self.key("a")
        with store.events() as events:
            store.put(key, b"data")
            store.delete(key)
            kinds = [event["kind"] for event in events.drain()]
            self.assertEqual((kinds[0], kinds[-1]), ("stored", "removed"))
            self.assertGreaterEqual(events.fileno(), 0)
        self.refused(kvterrace.StateError, "closed", events.drain)

    def test_others_entries_are_for_operators(self):
        lends = self.server(**{"serve.operators": "65534"})
        with kvterrace.Store(connect=lends.socket) as store:
            store.put(self.key("a"), b"data")
            for call in (lambda: store.clear(everything=True), store.maintain,
                         lambda: store.set_tenant(1), lambda: store.give_space(self.space, 1)):
                self.refused(kvterrace.DeviceError, "serve.operators", call)
            self.assertIn(self.key("a"), store)

    def test_a_store_of_two_processes_names_the_way(self):
        folder = self.folder()
        settings = {"store.catalog": f"{folder}/catalog.db", "device.d.path": f"{folder}/disk",
                    "device.d.tier": "ssd", "device.d.backend": "file",
                    "device.d.capacity": "16MiB", "store.policy": "lru"}
        with kvterrace.Store(settings=settings):
            error = self.refused(kvterrace.LockedError, "`kvterrace serve`", kvterrace.Store,
                                 settings=settings)
            self.assertIn("connect", str(error))


class Regions(ConnectCase):
    def stores(self):
        return self.connect(), self.store()

    def test_memory_that_both_have(self):
        for store in self.stores():
            region, data = store.region(LAYOUT.bytes + 1), pattern(LAYOUT.bytes)
            self.assertEqual((len(region), region.readonly), (LAYOUT.bytes + 1, False))
            self.assertEqual(bytes(region), bytes(LAYOUT.bytes + 1))
            region[1:] = data
            self.assertTrue(store.put(self.key("a"), region[1:], LAYOUT))
            region[:] = bytes(len(region))
            self.assertTrue(store.get_into(self.key("a"), region[:-1]))
            self.assertEqual(bytes(region[:-1]), data)
            with kvterrace.View.packed(LAYOUT, region[1:]) as view:
                self.assertTrue(store.get_into(self.key("a"), view))
            self.assertEqual(bytes(region[1:]), data)

    def is_mapped(self, address):
        with open("/proc/self/maps", encoding="utf-8") as file:
            places = [line.split()[0].split("-") for line in file]
        return any(int(first, 16) <= address < int(last, 16) for first, last in places)

    def test_the_last_user_lets_go(self):
        for store in self.stores():
            region = store.region(100)
            array = (ctypes.c_char * 100).from_buffer(region)  # as an array of numpy or torch
            region.release()
            self.assertTrue(store.put(self.key("a"), array))
            store.close()
            array[0] = b"x"
            self.assertEqual(array[0], b"x")
            address = ctypes.addressof(array)
            self.assertTrue(self.is_mapped(address))
            del array, region
            gc.collect()
            self.assertFalse(self.is_mapped(address))
            self.refused(kvterrace.StateError, "closed", store.region, 100)

    def test_regions_that_go_make_room(self):
        for store in self.stores():
            self.refused(kvterrace.ArgumentError, "1 byte", store.region, 0)
            self.refused(kvterrace.ArgumentError, "", store.region, -1)
            for _ in range(200):
                store.region(PAGE)
        store = self.connect()
        held = [store.region(PAGE) for _ in range(64)]
        self.refused(kvterrace.BusyError, "64 regions", store.region, PAGE)
        held.pop().release()
        self.assertEqual(len(store.region(PAGE)), PAGE)

    def test_a_server_that_lets_register_no_more(self):
        lends = self.server(**{"serve.registered": "1MiB"})
        with kvterrace.Store(connect=lends.socket) as store:
            region = store.region(1 << 20)
            self.refused(kvterrace.SpaceError, "register no more", store.region, PAGE)
            region.release()
            self.assertEqual(len(store.region(1 << 20)), 1 << 20)

    def file(self, seal=fcntl.F_SEAL_SHRINK, size=16 * PAGE):
        descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, descriptor)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seal)
        return descriptor

    def test_memory_of_the_callers_own(self):
        for store in self.stores():
            descriptor, data = self.file(), pattern(10000)
            memory = mmap.mmap(descriptor, 8 * PAGE, offset=4 * PAGE)
            store.add_region(descriptor, memory, offset=4 * PAGE)
            store.put(self.key("a"), data)
            self.assertTrue(store.get_into(self.key("a"), memoryview(memory)[500:10500]))
            self.assertEqual(memory[500:10500], data)
            self.assertRaises(BufferError, memory.close)
            self.refused(kvterrace.ArgumentError, "no region", store.end_region, bytearray(5))
            store.end_region(memory)
            self.refused(kvterrace.ArgumentError, "no region", store.end_region, memory)
            self.assertTrue(store.get_into(self.key("a"), memoryview(memory)[:10000]))
            gc.collect()
            memory.close()
            memory = mmap.mmap(descriptor, 8 * PAGE)
            with open(os.dup(descriptor), "rb") as file:
                store.add_region(file, memory)
            store.close()
            memory.close()  # the store has let go of it

    def test_memory_that_a_server_refuses(self):
        store = self.connect()
        for seal in (0, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_FUTURE_WRITE
                     if hasattr(fcntl, "F_SEAL_FUTURE_WRITE") else 0):
            descriptor = self.file(seal=0)
            memory = mmap.mmap(descriptor, PAGE)
            if seal:
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seal)
            self.refused(kvterrace.UnsupportedError, "a connected store", store.add_region,
                         descriptor, memory)
            memory.close()
        descriptor = self.file()
        memory = mmap.mmap(descriptor, 2 * PAGE)
        for offset in (1, 64 * PAGE, -1, 1 << 70):
            self.refused(kvterrace.ArgumentError, "", store.add_region, descriptor, memory,
                         offset=offset)
        self.refused(kvterrace.ArgumentError, "read-only", store.add_region, descriptor, b"memory")
        self.refused(kvterrace.ArgumentError, "", store.add_region, 1 << 20, memory)
        memory.close()


class Deaths(ConnectCase):
    def test_a_server_that_is_killed_and_comes_back(self):
        store, key, data = self.connect(), self.key("a"), pattern(20000)
        region, lease = store.region(20000), None
        store.put(key, data)
        lease = store.lease([key], 60)
        self.lends.kill()
        self.assertIsNone(store.get(key))
        self.assertFalse(store.get_into(key, region))
        self.assertEqual(store.put(self.key("b"), data).value, "refused")
        self.assertEqual((store.exists(key), store.match([key]), store.touch([key])),
                         (False, 0, 0))
        self.assertIsNone(store.describe(key))
        self.assertIsNone(store.lease([key], 1))
        for call in (store.stats, store.flush, store.metrics, store.health, store.devices,
                     lambda: store.delete(key), lambda: store.explain(key),
                     lambda: store.clear(everything=True), lambda: store.region(100)):
            self.refused(kvterrace.DeviceError, f"no connection to {self.lends.socket}", call)
        self.assertIn("no connection", repr(store))
        self.lends.start()
        self.until(lambda: store.put(key, data))
        self.assertEqual(store.get(key), data)
        self.assertTrue(store.get_into(key, region))
        self.assertEqual(bytes(region), data)
        self.assertFalse(lease.end())

    def test_no_call_waits_for_a_server_that_opens_its_store(self):
        store, key = self.connect(), self.key("a")
        store.put(key, b"data")
        self.lends.kill()
        os.unlink(self.lends.socket)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as opens:
            opens.bind(self.lends.socket)
            opens.listen()
            began, calls = time.monotonic(), 0
            while time.monotonic() < began + 0.5:
                self.assertEqual((store.exists(key), store.touch([key])), (False, 0))
                self.assertEqual(store.put(key, b"data").value, "refused")
                calls += 1
            self.assertLess(time.monotonic() - began, 3)
            self.assertGreater(calls, 10)
            self.refused(kvterrace.DeviceError, "no connection", store.stats)
        self.lends.start()
        self.until(lambda: store.put(key, b"data"))
        self.assertEqual(store.get(key), b"data")

    def test_a_patient_client_waits_for_the_next_server(self):
        store, key = self.connect(connect_patience=60), self.key("a")
        self.lends.kill()
        starts = threading.Timer(0.2, self.lends.start)
        starts.start()
        self.assertEqual(store.put(key, b"data").value, "stored")
        self.assertEqual(store.get(key), b"data")
        starts.join()
        for patience in (-1, float("nan"), "long"):
            self.refused(kvterrace.ArgumentError, "", self.connect, connect_patience=patience)

    def test_coroutines_over_a_death(self):
        store, key, data = self.connect(), self.key("a"), pattern(20000)

        async def body():
            self.assertTrue(await store.aput(key, data))
            under_way = [store.aget_into(key, bytearray(20000)) for _ in range(200)]
            gathered = asyncio.gather(*under_way)
            await asyncio.sleep(0)
            self.lends.kill()
            self.assertLessEqual(set(await gathered), {True, False})
            self.assertIs(await store.aexists(key), False)
            self.assertIsNone(await store.aget(key))
            self.assertEqual((await store.aput(key, data)).value, "refused")
            with self.assertRaises(kvterrace.DeviceError):
                await store.adelete(key)
            self.lends.start()
            while not await store.aput(key, data):
                await asyncio.sleep(0.01)
            self.assertEqual(await store.aget(key), data)

        asyncio.run(asyncio.wait_for(body(), 60))

    def test_coroutines(self):
        store = self.connect()

        async def body():
            async with store.queue(depth=16) as queue:
                data = [pattern(3000, seed) for seed in range(100)]
                await asyncio.gather(*[queue.put(self.key(n), one) for n, one in enumerate(data)])
                self.assertEqual(await asyncio.gather(
                    *[queue.get(self.key(n)) for n in range(100)]), data)
                task = asyncio.ensure_future(queue.get_into(self.key(1), bytearray(3000)))
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.assertEqual((await queue.touch(self.key(1)), await queue.delete(self.key(1)),
                                  await queue.exists(self.key(1))), (True, True, False))
                self.assertGreater(queue.stats()["completed"], 200)

        asyncio.run(asyncio.wait_for(body(), 60))

    def task(self, tasks, kind, keys, memory, size):
        base = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
        return tasks.make(kind, b"".join(keys), len(keys), Places(
            [kvterrace.Layout.opaque(size)], addresses=[base + size * n for n in range(len(keys))]),
            like=make_like(), note=memory)

    def test_a_task_is_an_event_of_its_own(self):
        """An engine reads the descriptor, which is readable for whole tasks alone."""
        for clears in (False, True):
            store, keys = self.connect(), [self.key((clears, n)) for n in range(40)]
            tasks, data = Tasks(store, clears=clears, depth=8), pattern(40 * 2000)
            for kind, memory in ((PUT, bytearray(data)), (GET, bytearray(len(data)))):
                task = self.task(tasks, kind, keys, memory, 2000)
                tasks.submit(task)
                descriptor = tasks.fileno()
                self.assertTrue(select.select([descriptor], [], [], 30)[0])
                if not clears:
                    os.eventfd_read(descriptor)
                self.assertEqual(tasks.drain(), [task])
                self.assertEqual(task.statuses()[0], 40)
                self.assertEqual(memory, data)
                self.assertRaises(BlockingIOError, os.eventfd_read, descriptor)
            tasks.close()
            self.assertRaises(OSError, os.fstat, descriptor)

    def test_a_task_over_a_death(self):
        store, keys = self.connect(), [self.key(n) for n in range(40)]
        tasks, memory = Tasks(store), bytearray(40 * 2000)
        descriptor = tasks.fileno()
        self.lends.kill()
        for kind in (PUT, GET):
            tasks.submit(self.task(tasks, kind, keys, memory, 2000))
            self.assertTrue(select.select([descriptor], [], [], 30)[0])
            os.eventfd_read(descriptor)
            task, = tasks.drain()
            self.assertEqual(task.statuses()[0], 0)
        self.lends.start()
        self.until(lambda: store.put(self.key("again"), b"data"))
        tasks.submit(self.task(tasks, PUT, keys, memory, 2000))
        self.assertTrue(tasks.wait())
        self.assertEqual(tasks.drain()[0].statuses()[0], 40)

    def test_a_child_connects_by_itself(self):
        said = self.script(f"""
import os, kvterrace
store, key = kvterrace.Store(connect={self.lends.socket!r}), kvterrace.Space(model="m").key("a")
region = store.region(100)
store.put(key, b"data")
child = os.fork()
if child == 0:
    try:
        store.get(key)
    except kvterrace.StateError as error:
        print("child:", error, flush=True)
    store.close()
    del region
    with kvterrace.Store(connect={self.lends.socket!r}) as own:
        os._exit(0 if own.get(key) == b"data" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.get_into(key, region[:4]) and region[:4] == b"data"
""")
        self.assertIn("belongs to process", said)

    def test_an_exit_with_a_store_open(self):
        self.script(f"""
import asyncio, kvterrace
from kvterrace._tasks import Tasks
store = kvterrace.Store(connect={self.lends.socket!r})
tasks, region = Tasks(store), store.region(1 << 20)
tasks.fileno()
asyncio.run(store.aput(kvterrace.Space(model="m").key("a"), region))
""", timeout=30)

    def test_a_server_that_leaves_with_clients(self):
        store = self.connect()
        store.put(self.key("a"), b"data")
        self.assertEqual(self.lends.stop(), 0)
        self.assertIsNone(store.get(self.key("a")))


if __name__ == "__main__":
    unittest.main()
