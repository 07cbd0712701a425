#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad input to the package: a named exception or a miss; no crash, no hang, nothing lost."""

import array
import ctypes
import dataclasses
import os
import pickle
import shutil
import threading
import unittest

from package_case import LAYOUT, PACKAGE, PackageCase, kvterrace, pattern

ArgumentError = kvterrace.ArgumentError


class FakeTensor:
    """A tensor that says it lies on a device, or whose capsule is none."""

    def __init__(self, device, capsule=None):
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **_):
        return self.capsule


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("dimensions", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", DELETER), ("flags", ctypes.c_uint64),
                ("tensor", DLTensor)]


class HostTensor:
    """A DLPack tensor over a bytearray: bfloat16 unless said otherwise."""

    def __init__(self, size, code=4, bits=16, strides=None, flags=None, major=1):
        self.data = bytearray(size)
        self.memory = (ctypes.c_char * size).from_buffer(self.data)
        self.ended, count = 0, size // (bits // 8)
        self.shape = (ctypes.c_int64 * 1)(count)
        self.strides = (ctypes.c_int64 * 1)(strides) if strides else None
        tensor = DLTensor(ctypes.addressof(self.memory), 1, 0, 1, code, bits, 1, self.shape,
                          self.strides, 0)
        self.deleter = DELETER(self.count_end)
        self.name = b"dltensor" if flags is None else b"dltensor_versioned"
        self.managed = (Managed(tensor, None, self.deleter) if flags is None else
                        Versioned(major, 0, None, self.deleter, flags, tensor))

    def count_end(self, _):
        self.ended += 1

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **_):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p,
                                                         ctypes.c_void_p]
        return make(ctypes.addressof(self.managed), self.name, None)


class Buffers(PackageCase):
    def setUp(self):
        super().setUp()
        self.opened, self.data = self.store(), pattern(LAYOUT.bytes)
        self.opened.put(self.key("a"), self.data, LAYOUT)

    def tearDown(self):
        self.assertEqual(self.opened.get(self.key("a")), self.data)

    def get(self, target, **options):
        return self.opened.get_into(self.key("a"), target, **options)

    def test_targets_that_do_not_fit(self):
        size = LAYOUT.bytes
        self.refused(ArgumentError, "read-only", self.get, bytes(size))
        self.refused(ArgumentError, "read-only", self.get, memoryview(bytes(size)))
        self.refused(ArgumentError, "size", self.get, bytearray(size - 1))
        self.refused(ArgumentError, "size", self.get, bytearray(size + 1))
        self.refused(ArgumentError, "contiguous", self.get, memoryview(bytearray(2 * size))[::2])
        self.refused(ArgumentError, "fp32", self.get, array.array("f", bytes(size)))
        self.refused(ArgumentError, "neither", self.get, "text")
        self.refused(ArgumentError, "neither", self.get, None)
        released = memoryview(bytearray(size))
        released.release()
        self.refused(ArgumentError, "released", self.get, released)

    def test_elements_that_are_no_numbers(self):
        """Bytes of an entry among pointers crash the interpreter; other byte orders lose values."""
        opened, key, size = self.opened, self.key("o"), LAYOUT.bytes
        opened.put(key, bytes(size))
        objects = (ctypes.py_object * (size // 8))(*[self] * (size // 8))
        records = (DLTensor * 1)()
        swapped = (ctypes.c_uint16.__ctype_be__ * (size // 2))()
        for wrong in (objects, records, swapped):
            error = self.refused(ArgumentError, "no numbers", opened.get_into, key, wrong)
            self.assertEqual(str(error).count("KVT_E_ARGUMENT"), 1)
            self.refused(ArgumentError, "no numbers", opened.put, self.key("p"), wrong)
            self.refused(ArgumentError, "no numbers", opened.get_many, [key], [wrong])
        self.assertIs(objects[0], self)
        self.refused(ArgumentError, "no numbers", opened.put, self.key("p"), swapped, LAYOUT)
        for code in (8, 10, 12):  # of an eight-bit float
            self.refused(ArgumentError, "fp8", self.get, HostTensor(size, code=code, bits=8))
        self.assertTrue(self.get(HostTensor(size, code=1, bits=8)))
        self.assertTrue(self.get((ctypes.c_uint16 * (size // 2))()))
        self.assertNotIn(self.key("p"), opened)

    def test_many_puts_that_do_not_fit(self):
        opened, size = self.opened, LAYOUT.bytes
        keys, data = [self.key("m"), self.key("n")], [bytes(size), bytes(size)]
        for text, arguments, options in (
                ("2 keys and 1 buffers", (keys, data[:1]), {}),
                ("2 keys and 3 parents", (keys, data), {"parents": [None] * 3}),
                ("2 keys and 1 first", (keys, data), {"first_positions": [0]}),
                ("one Layout", (keys, data, [LAYOUT]), {}),
                ("the layout", (keys, [bytes(size), bytes(1)], LAYOUT), {}),
                ("its own parent", (keys, data, LAYOUT), {"parents": [None, keys[1]]}),
                ("first_positions", (keys, data, LAYOUT), {"first_positions": [0, -1]}),
                ("class_id", (keys, data, LAYOUT), {"class_id": 70000}),
                ("empty", (keys, [b"", b""]), {})):
            self.refused(ArgumentError, text, opened.put_many, *arguments, **options)
        self.assertNotIn(keys[0], opened)

    def test_elements_that_buffers_do_not_know(self):
        """Arrays as numpy has them with ml_dtypes: no buffer, and their bytes by a view."""
        class Kind:
            def __init__(self, name, itemsize):
                self.name, self.itemsize = name, itemsize

        class Array:
            def __init__(self, name, itemsize, size):
                self.dtype, self.room = Kind(name, itemsize), bytearray(size)
                self.__array_interface__ = {"version": 3}

            def view(self, kind):
                assert kind == f"u{self.dtype.itemsize}"
                return memoryview(self.room).cast({1: "B", 2: "H", 4: "I"}[self.dtype.itemsize])

        size = LAYOUT.bytes
        target = Array("bfloat16", 2, size)
        self.assertTrue(self.get(target))
        self.assertEqual(target.room, self.data)
        self.assertTrue(self.opened.put(self.key("bf"), target, LAYOUT))
        self.refused(ArgumentError, "fp8", self.get, Array("float8_e4m3fn", 1, size))
        self.refused(ArgumentError, "float8_e5m2", self.get, Array("float8_e5m2", 1, size))
        self.refused(ArgumentError, "neither", self.get, Array("object", 16, size))

    def test_buffers_that_overlap(self):
        opened, size = self.opened, LAYOUT.bytes
        keys = [self.key("a"), self.key("d"), self.key("e")]
        for key in keys[1:]:
            opened.put(key, pattern(size, 1), LAYOUT)
        room, apart = memoryview(bytearray(4 * size)), bytearray(size)
        one, shifted = room[:size], room[size - 1:2 * size - 1]
        for first, second in ((one, one), (one, shifted), (shifted, one)):
            for targets in ([first, second, apart], [first, apart, second],
                            [apart, first, second]):
                self.refused(ArgumentError, "share", opened.get_many, keys, targets)
        self.assertEqual(apart, bytes(size))
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
            targets = [room[at * size:(at + 1) * size] for at in order]
            self.assertEqual(opened.get_many(keys, targets), [True] * 3)
            self.assertEqual(targets[0], self.data)

    def test_sources_that_do_not_fit(self):
        put, size, key = self.opened.put, LAYOUT.bytes, self.key("b")
        self.refused(ArgumentError, "bytes", put, key, bytearray(size - 2), LAYOUT)
        self.refused(ArgumentError, "empty", put, key, b"")
        self.refused(ArgumentError, "fp32", put, key, array.array("f", bytes(size)), LAYOUT)
        self.refused(ArgumentError, "contiguous", put, key, memoryview(bytearray(2 * size))[::2],
                     LAYOUT)
        self.refused(ArgumentError, "Layout", put, key, bytes(size), "bf16")
        self.refused(ArgumentError, "tenant", put, key, bytes(size), LAYOUT, tenant=-1)
        self.refused(ArgumentError, "KVT_E_ARGUMENT", put, key, bytes(size), LAYOUT, tenant=256)
        self.refused(ArgumentError, "KVT_E_ARGUMENT", put, key, bytes(size), LAYOUT, lifetime=-1)
        self.assertNotIn(key, self.opened)

    def test_tensors(self):
        size, count = LAYOUT.bytes, 0
        good = HostTensor(size)
        good.data[:] = self.data
        self.assertTrue(self.opened.put(self.key("t"), good, LAYOUT))
        for flags in (None, 0):
            target = HostTensor(size, flags=flags)
            self.assertTrue(self.opened.get_into(self.key("t"), target))
            self.assertEqual(target.data, self.data)
            self.assertEqual(target.ended, 1)  # freed once, by its deleter
            count += 1
        self.assertEqual((good.ended, count), (1, 2))
        self.refused(ArgumentError, "fp16", self.get, HostTensor(size, code=2))
        self.refused(ArgumentError, "contiguous", self.get, HostTensor(size, strides=2))
        self.refused(ArgumentError, "read-only", self.get, HostTensor(size, flags=1))
        self.refused(ArgumentError, "DLPack 2", self.get, HostTensor(size, flags=0, major=2))
        self.refused(ArgumentError, "size", self.get, HostTensor(size - 2))
        self.refused(kvterrace.UnsupportedError, "CUDA", self.get, FakeTensor(2))
        self.refused(kvterrace.UnsupportedError, "nowhere", self.get, FakeTensor("meta"))
        self.refused(ArgumentError, "capsule", self.get, FakeTensor(1, object()))

    def test_views_of_another_element_type(self):
        """As after a restart with another data type: the entry's bits are no such elements."""
        other, pool = dataclasses.replace(LAYOUT, dtype="fp16"), bytearray(LAYOUT.bytes)
        for view in (kvterrace.View.packed(other, pool),
                     kvterrace.View.axes(other, "lsbth", pool, tokens_per_block=16)):
            self.refused(ArgumentError, "", self.get, view)
            self.refused(ArgumentError, "", self.opened.get_prefix, [self.key("a")], [view])
        self.assertEqual(pool, bytes(LAYOUT.bytes))

    def test_views_of_constant_memory(self):
        view = kvterrace.View.packed(LAYOUT, bytes(LAYOUT.bytes))
        with self.assertRaises(AttributeError):
            view.writable = True
        self.refused(ArgumentError, "read-only", self.get, view)

    def test_numbers_out_of_range(self):
        opened = self.opened
        for space in (-1, 1 << 64):
            self.refused(ArgumentError, "range", opened.clear, space=space)
            self.refused(ArgumentError, "range", opened.space_stats, space)

    def test_views(self):
        axes, size = kvterrace.View.axes, LAYOUT.bytes
        self.refused(ArgumentError, "axes", axes, LAYOUT, "xyz", bytearray(size))
        self.refused(ArgumentError, "buffers", axes, LAYOUT, "bth", bytearray(size),
                     tokens_per_block=16)
        self.refused(ArgumentError, "", axes, LAYOUT, "lsbth", bytearray(size), tokens_per_block=16,
                     blocks=[0, 0, 1])
        self.refused(ArgumentError, "", axes, LAYOUT, "lsbth", bytearray(size), tokens_per_block=16,
                     blocks=[0, 1, 99])
        self.refused(ArgumentError, "range", axes, LAYOUT, "lsbth", bytearray(size),
                     tokens_per_block=16, blocks=[-1, 1, 2])
        self.refused(ArgumentError, "bytes", axes, LAYOUT, "lsth", bytearray(size - 2),
                     pool_blocks=48)
        constant = kvterrace.View.packed(LAYOUT, bytes(size))
        self.refused(ArgumentError, "read-only", self.get, constant)
        self.assertTrue(self.opened.put(self.key("c"), constant))
        constant.release()
        constant.release()
        self.refused(ArgumentError, "released", self.get, constant)
        self.refused(ArgumentError, "View", self.opened.get_prefix, [self.key("c")],
                     [bytearray(size)])
        other = kvterrace.Layout(3, 2, 32, "bf16", 47)
        view = kvterrace.View.packed(other, bytearray(other.bytes))
        self.refused(ArgumentError, "fit", self.get, view)
        self.refused(ArgumentError, "layout", self.opened.put, self.key("d"), view, LAYOUT)

    def test_an_exported_buffer_stays(self):
        buffer = bytearray(LAYOUT.bytes)
        with kvterrace.View.packed(LAYOUT, buffer) as view:
            with self.assertRaises(BufferError):
                buffer.append(0)
            self.assertTrue(self.get(view))
        buffer.append(0)


class Words(PackageCase):
    def test_keys(self):
        store = self.store()
        for wrong in (b"", b"x" * 31, b"x" * 33, "x" * 32, 32, None, bytearray(32)):
            self.refused(ArgumentError, "key", store.get, wrong)
            self.refused(ArgumentError, "key", store.put, wrong, b"x")
            self.refused(ArgumentError, "key", store.match, [bytes(32), wrong])
        for wrong in (b"x", 32, None, b"x" * 33):
            self.refused(ArgumentError, "key", kvterrace.Key, wrong)
        self.refused(ArgumentError, "name", self.space.key, b"")
        self.refused(ArgumentError, "name", self.space.key, b"x" * 5000)
        self.refused(ArgumentError, "group", self.space.key, b"x", group=-1)

    def test_keywords_and_settings(self):
        for settings in ({"no_such_setting": 1}, {"tier_dram_capacity": "many"},
                         {"policy": "best"}, {"settings": {"nothing.here": 1}},
                         {"tier_dram_capacity": "4MiB", "variant": "kivi:k9"},
                         {"tier_dram_capacity": "4MiB", "tier_dram_read_bandwidth": "1GB/s"}):
            with self.assertRaises(kvterrace.Error, msg=settings):
                kvterrace.Store(**settings).close()
        self.refused(kvterrace.ConfigError, "no_such_setting", kvterrace.Store, no_such_setting=1)
        self.refused(kvterrace.ConfigError, "/none", kvterrace.Store, "/none/kvt.ini")
        self.refused(kvterrace.ConfigError, "tier_dram_capacity", kvterrace.Store, dram="1GiB")
        self.refused(ArgumentError, "dict", kvterrace.Store, settings=["store.policy=lru"])
        error = self.refused(kvterrace.UnsupportedError, "no SSD", self.store().persist)
        self.assertEqual(error.status, "KVT_E_UNSUPPORTED")
        with self.assertRaises(kvterrace.Error):
            kvterrace.Store(tier_dram_capacity="4MiB", catalog="/none/\udcff/catalog.db").close()
        with self.assertRaises(TypeError):
            kvterrace.Space(modle="m")
        with self.assertRaises(TypeError):
            self.store().put(self.key("a"), b"x", lifespan=3)
        self.refused(ArgumentError, "hint", self.store().hint, [], "perhaps")
        self.refused(ArgumentError, "deadline", self.store().get_into, self.key("a"), bytearray(1),
                     deadline="soon")

    def test_what_a_store_alone_cannot_do(self):
        store = self.store()
        self.assertIsNone(store.flush())
        self.refused(kvterrace.UnsupportedError, "nothing outlives it", store.persist)
        self.refused(kvterrace.ConfigError, "nope.ini: No such file", kvterrace.Store, "nope.ini")
        self.assertEqual(store.health(), [])
        store.put(self.key("a"), pattern(LAYOUT.bytes), LAYOUT)
        self.assertEqual(store.get(self.key("a"), deadline=-1), pattern(LAYOUT.bytes))
        self.refused(ArgumentError, "deadline", store.get, self.key("a"), deadline=float("nan"))

    def test_which_number_is_wrong(self):
        put, data, key = self.store().put, pattern(LAYOUT.bytes), self.key("a")
        for name, value in (("recompute_seconds", -1), ("lifetime", float("inf")),
                            ("recompute_seconds", float("nan")), ("class_id", 65536)):
            self.refused(ArgumentError, f"{name}", put, key, data, LAYOUT, **{name: value})
            self.refused(ArgumentError, f"not {value!r}", put, key, data, LAYOUT, **{name: value})
        for name, value in (("tokens", None), ("layers", 2.0), ("kv_heads", "2"),
                            ("head_dim", -1)):
            self.refused(ArgumentError, f"{name} is {value!r}", kvterrace.Layout,
                         **dict({"layers": 1, "kv_heads": 1, "head_dim": 8, "dtype": "bf16",
                                 "tokens": 4}, **{name: value}))
        self.refused(ArgumentError, "0 events", self.store().events, 0)
        self.refused(ArgumentError, "device.NAME.KEY", kvterrace.Store,
                     settings={"device": {"a": {"tier": "ssd"}}})
        self.refused(ArgumentError, "revision is a text, not int", kvterrace.Space, model="m",
                     revision=3)

    def test_spaces(self):
        """A space without a model shares with the wrong ones; spellings of a dtype are one."""
        Space = kvterrace.Space
        for fields in ({}, {"model": ""}, {"dtype": "bf16"}):
            self.refused(ArgumentError, "names its model", Space, **fields)
        for dtype, short in (("bfloat16", "bf16"), ("torch.bfloat16", "bf16"), ("half", "fp16"),
                             ("torch.float32", "fp32")):
            self.assertEqual(Space(model="m", dtype=dtype).hash,
                             Space(model="m", dtype=short).hash)
            self.assertEqual(kvterrace.Layout(1, 1, 8, dtype, 4),
                             kvterrace.Layout(1, 1, 8, short, 4))
        self.refused(ArgumentError, "not 'bf61'", kvterrace.Layout, 1, 1, 8, "bf61", 4)
        self.refused(ArgumentError, "not 16", kvterrace.Layout, 1, 1, 8, 16, 4)
        self.refused(ArgumentError, "dtype", Space, model="m", dtype=16)
        self.refused(ArgumentError, "block_tokens", Space, model="m", block_tokens=0)
        self.assertEqual(Space(model="m", dtype="fp8_e4m3").fields["dtype"], "fp8_e4m3")

    def test_lone_surrogates(self):
        half, store = "\ud800", self.store()
        for call, arguments, more in (
                (kvterrace.Space, (), {"model": half}), (self.space.key, (half,), {}),
                (kvterrace.Store, (), {"policy": half}),
                (kvterrace.Store, (), {"settings": {half: 1}}),
                (kvterrace.Store, (), {"tier_dram_capacity": "4MiB", "policy": "lru",
                                       "variant": half}),
                (kvterrace.View.axes, (LAYOUT, half, [bytearray(8)]), {}),
                (store.observe_quality, (self.key("a"), half, 0.1), {})):
            self.refused(ArgumentError, "surrogate", call, *arguments, **more)
        self.refused(ArgumentError, "text", kvterrace.View.axes, LAYOUT, 7, [bytearray(8)])

    def test_parents_and_deadlines(self):
        store, key = self.store(), self.key("a")
        self.refused(ArgumentError, "its own parent", store.put, key, b"x", parent=key,
                     recompute_seconds=1.0)
        self.assertNotIn(key, store)
        store.put(key, b"x", recompute_seconds=1.0)
        for passed in (0, -1, -1e9):  # memory takes no wait
            self.assertEqual(store.get(key, deadline=passed), b"x")
        for wrong in (float("nan"), float("inf"), "1"):
            self.refused(ArgumentError, "deadline", store.get, key, deadline=wrong)

    def test_layouts(self):
        for wrong in ({"dtype": "int4"}, {"layers": 70000, "dtype": "bf16"}, {"layers": -1},
                      {"dtype": "bf16"}, {"order": "any"}, {}, {"opaque_bytes": 1 << 50}):
            with self.assertRaises(ArgumentError, msg=wrong):
                kvterrace.Layout(**wrong)

    def test_errors_say_what_and_travel(self):
        error = self.refused(kvterrace.ConfigError, "unknown setting", kvterrace.Store, nothing=1)
        self.assertEqual((error.status, error.code), ("KVT_E_CONFIG", -11))
        self.assertIsInstance(error, ValueError)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(again), type(again)), (str(error), type(error)))
        self.assertEqual(pickle.loads(pickle.dumps(LAYOUT)), LAYOUT)
        space = kvterrace.Space(model="m", dtype="bfloat16", sides=2, extra=b"x")
        self.assertEqual(pickle.loads(pickle.dumps(space)).key("a"), space.key("a"))


class Life(PackageCase):
    def test_after_the_close(self):
        store = self.store()
        store.put(self.key("a"), b"x" * 64)
        lease = store.lease([self.key("a")], 9)
        store.close()
        store.close()
        self.assertTrue(store.closed)
        calls = [lambda: store.get(self.key("a")), lambda: store.get_into(self.key("a"),
                                                                         bytearray(64)),
                 lambda: store.put(self.key("a"), b"x"), lambda: store.match([self.key("a")]),
                 lambda: store.get_many([self.key("a")], [bytearray(64)]), store.stats,
                 store.metrics, store.flush, store.events, store.devices, store.health,
                 lambda: store.explain(self.key("a")), lambda: store.lease([self.key("a")], 1)]
        if lease is not None:
            calls.append(lease.end)
        for call in calls:
            self.refused(kvterrace.StateError, "closed", call)

    def test_a_close_beside_threads(self):
        for _ in range(2):
            store, wrong = self.store(), []
            for index in range(16):
                store.put(self.key(index), pattern(LAYOUT.bytes, index), LAYOUT)

            def work(number, store=store, wrong=wrong):
                out, index = bytearray(LAYOUT.bytes), number
                try:
                    while True:
                        index = (index * 5 + 3) % 16
                        if store.get_into(self.key(index), out) and \
                                out != pattern(LAYOUT.bytes, index):
                            wrong.append(index)
                except kvterrace.StateError:
                    pass

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            store.close()
            for thread in threads:
                thread.join()
            self.assertEqual(wrong, [])

    def test_a_child_of_fork(self):
        store = self.store()
        store.put(self.key("a"), b"x" * 64)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    store.get(self.key("a"))
                except kvterrace.StateError as error:
                    code = 0 if "belongs to process" in str(error) else 2
                store.close()
                with kvterrace.Store(tier_dram_capacity="4MiB", policy="lru") as other:
                    other.put(self.key("b"), b"y" * 64)
                    code = code or (0 if other.get(self.key("b")) == b"y" * 64 else 3)
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(store.get(self.key("a")), b"x" * 64)

    def test_a_library_of_another_version(self):
        copy = os.path.join(self.folder(), "kvterrace")
        shutil.copytree(os.path.join(PACKAGE, "kvterrace"), copy)
        with open(os.path.join(copy, "_version.py"), "w", encoding="ascii") as file:
            file.write('VERSION = "9.8.7"\n')
        said = self.script(f"import sys; sys.path.insert(0, {os.path.dirname(copy)!r})\n"
                           "try: import kvterrace\nexcept ImportError as error: print(error)")
        self.assertIn("kvterrace 9.8.7 found the library", said)

    def test_an_exit_with_an_open_store(self):
        self.script("import kvterrace\n"
                    "store = kvterrace.Store(tier_dram_capacity='8MiB', policy='lru')\n"
                    "store.put(bytes(32), bytes(100000))\n")

    def test_an_exit_with_jobs_in_flight(self):
        folder = self.folder()
        self.script(f"""
import asyncio, kvterrace, sys, threading
store = kvterrace.Store(tier_dram_capacity="8MiB", policy="lru", tick=0, settings={{
    "device.d.path": {os.path.join(folder, "disk")!r}, "device.d.tier": "ssd",
    "device.d.backend": "file", "device.d.capacity": "64MiB", "device.d.latency": "200ms"}})
for index in range(24):
    store.put(bytes([index]) * 32, bytes(1 << 20))
targets = [bytearray(1 << 20) for _ in range(24)]

def keep_getting():
    while True:
        for index in range(24):
            store.get_into(bytes([index]) * 32, targets[index])

threading.Thread(target=keep_getting, daemon=True).start()

async def main():
    for index in range(24):
        asyncio.ensure_future(store.aget_into(bytes([index]) * 32, bytearray(1 << 20)))
    await asyncio.sleep(0.05)
    sys.exit(0)

asyncio.run(main())
""")


if __name__ == "__main__":
    unittest.main()
