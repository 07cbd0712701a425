#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The adapter of llama.cpp over files of its states that are made here: no library is needed. The
real one is in engines/test_llamacpp.py, which `make test-engines` runs."""

import os
import random
import struct
import unittest

from package_case import PackageCase, kvterrace

from kvterrace import llamacpp

MAGIC = 0x67677371
F32, F16, Q8_0, BF16 = 0, 1, 8, 30
CHUNK = 4


def numbers(seed, size):
    return random.Random(seed).randbytes(size)


class Kv:
    """KV of a sequence: the rows of each layer and side by token, and what a state is made of."""

    def __init__(self, tokens, layers=3, k=(F16, 8, 2), v=(F16, 8, 2), turned=False, version=4,
                 words=(0, 0), streams=1, stream=0):
        """k, v: type, elements of a row, bytes of an element; v None: none. A row follows from all
        tokens up to its own."""
        self.tokens, self.layers, self.k, self.v, self.turned = tokens, layers, k, v, turned
        self.version, self.words, self.streams = version, words, streams
        self.stream, self.sequence = stream, 5

    def row(self, layer, side, token):
        _, width, size = (self.k, self.v)[side]
        return numbers(f"{layer} {side} {self.tokens[:token + 1]}", width * size)

    def state(self, order=None):
        """order: of the cells."""
        order, out = order or range(len(self.tokens)), struct.pack("<I", self.streams)
        for stream in range(self.streams):
            if stream != self.stream or not self.tokens:
                out += bytes(4)
                continue
            out += struct.pack("<I", len(self.tokens))
            out += b"".join(struct.pack("<iIi", token, 1, self.sequence) for token in order)
            out += struct.pack("<II", self.turned, self.layers)
            out += struct.pack(f"<{len(self.words)}I", *self.words)
            for side, (kind, width, size) in enumerate(one for one in (self.k, self.v) if one):
                for layer in range(self.layers):
                    rows = [self.row(layer, side, token) for token in order]
                    if side == 1 and self.turned:
                        out += struct.pack("<iII", kind, size, width)
                        rows = [row[at:at + size] for at in range(0, width * size, size)
                                for row in rows]
                    else:
                        out += struct.pack("<iQ", kind, width * size)
                    out += b"".join(rows)
        return out

    def file(self, order=None, packed=False):
        tokens = [-1, 1, len(self.tokens), *self.tokens, 0] if packed else self.tokens
        return struct.pack(f"<III{len(tokens)}i", MAGIC, self.version, len(tokens), *tokens) + \
            self.state(order)

    def begin(self, count):
        made = Kv(self.tokens[:count])
        made.__dict__.update(self.__dict__, tokens=self.tokens[:count], stream=0, sequence=0)
        return made


TOKENS = [7, 1, 0, 2**31 - 1, 5, 5, 9, 9, 9, 3, 2]
KINDS = {
    "fp16": {}, "turned": {"turned": True}, "fp32": {"k": (F32, 8, 4), "v": (F32, 8, 4)},
    "turned fp32": {"k": (F32, 8, 4), "v": (F32, 8, 4), "turned": True},
    "bf16": {"k": (BF16, 8, 2), "v": (BF16, 8, 2)}, "of K alone": {"v": None},
    "quantised": {"k": (Q8_0, 1, 34), "v": (Q8_0, 1, 34), "words": (64, 64)},
    "K quantised": {"k": (Q8_0, 2, 34)}, "turned, K quantised": {"k": (Q8_0, 2, 34),
                                                                "turned": True},
    "two widths": {"v": (F16, 4, 2)}, "version 3": {"version": 3, "words": ()},
    "streams": {"streams": 4, "stream": 2}, "one layer": {"layers": 1}}


class Files(PackageCase):
    def setUp(self):
        super().setUp()
        self.place, self.kvt = self.folder(), self.store()

    def path(self, name, data=None):
        path = os.path.join(self.place, name)
        if data is not None:
            with open(path, "wb") as file:
                file.write(data)
        return path

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def slots(self, kv, **options):
        options = {"chunk": CHUNK, "revision": "r", **options}
        store = options.pop("store", self.kvt)
        return llamacpp.SlotFiles(store, self.path("like", kv.file()), **options)

    def refuses(self, text, call, *arguments):
        return self.refused(kvterrace.UnsupportedError, text, call, *arguments)

    def test_what_comes_back_is_what_was_saved(self):
        for name, options in KINDS.items():
            with self.subTest(name):
                kv = Kv(TOKENS, **options)
                slots, begin = self.slots(kv, salt=name), kv.begin(8)
                for packed, order in ((False, None), (True, [2, 0, 1, *range(10, 2, -1)])):
                    self.assertEqual(slots.save(self.path("a", kv.file(order, packed))), 8)
                    self.assertEqual(slots.restore(TOKENS, self.path("b")), 8)
                    self.assertEqual(self.read("b"), begin.file())
                    for key in slots.keys(TOKENS):
                        self.assertTrue(self.kvt.delete(key))
                self.assertEqual(slots.save(self.path("a", kv.file())), 8)
                self.kvt.clear(space=slots.space)

    def test_elements_are_told_where_rows_are_alike(self):
        for name, options in KINDS.items():
            slots = self.slots(Kv(TOKENS, **options), salt=name)
            slots.save(self.path("like"))
            layout, = self.kvt.describe(slots.keys(TOKENS)[0])["layouts"]
            opaque = "quantised" in name or name == "two widths"
            self.assertEqual(layout.dtype == "opaque", opaque, name)

    def test_a_prefix_is_stored_once(self):
        kv = Kv(TOKENS)
        slots = self.slots(kv)
        slots.save(self.path("a", kv.file()))
        other = Kv([*TOKENS[:5], 8, 8, 8, 8])
        self.assertEqual(slots.save(self.path("c", other.file())), 8)
        self.assertEqual(self.kvt.stats()["puts"], 3)
        self.assertEqual(slots.restore(other.tokens, self.path("b")), 8)
        self.assertEqual(self.read("b"), other.begin(8).file())
        self.assertEqual(slots.restore([*TOKENS[:4], 1, 1, 1, 1, 1], self.path("b")), 4)
        self.assertEqual(self.read("b"), kv.begin(4).file())

    def test_how_far(self):
        kv = Kv(TOKENS[:8])
        slots = self.slots(kv)
        os.unlink(self.path("like"))
        self.assertEqual(slots.restore(kv.tokens, self.path("b")), 0)
        self.assertEqual(os.listdir(self.place), [])
        slots.save(self.path("a", kv.file()))
        for count, found in ((8, 4), (9, 8), (5, 4), (4, 0), (1, 0), (0, 0)):
            self.assertEqual(slots.restore([*kv.tokens, 1][:count], self.path("b")), found)
        self.kvt.delete(slots.keys(kv.tokens)[0])
        self.assertEqual(slots.restore([*kv.tokens, 1], self.path("b")), 0)
        self.assertEqual(slots.save(self.path("a")), 8)
        self.assertEqual(slots.save(self.path("e", Kv([]).file())), 0)

    def test_what_is_another_thing_misses(self):
        kv, plain = Kv(TOKENS), Kv(TOKENS, words=(64, 0))
        self.slots(kv).save(self.path("a", kv.file()))
        halves = Kv(TOKENS, k=(BF16, 8, 2), v=(BF16, 8, 2))
        for other in (self.slots(kv, revision="s"), self.slots(kv, salt="t"),
                      self.slots(kv, chunk=2), self.slots(plain), self.slots(halves)):
            self.assertEqual(other.restore(TOKENS, self.path("b")), 0)
        self.refuses("other settings", self.slots(plain).save, self.path("a"))
        self.assertEqual(self.slots(Kv(TOKENS, streams=2)).restore(TOKENS, self.path("b")), 8)

    def test_an_entry_of_another_layout_is_a_miss(self):
        kv = Kv(TOKENS)
        slots = self.slots(kv)
        slots.save(self.path("like"))
        first, second = slots.keys(TOKENS)
        for key, found in ((second, 4), (first, 0)):
            self.kvt.delete(key)
            self.kvt.put(key, bytes(100))
            self.assertEqual(slots.restore(TOKENS, self.path("b")), found)

    def test_bytes_that_are_no_state(self):
        """Each length of a file, and each of its words wrong: refused, or another file that is
        right; and never another error."""
        for options in ({}, {"turned": True}, {"streams": 2}, {"k": (Q8_0, 1, 3)}):
            kv = Kv(TOKENS[:5], layers=2, **{"k": (F16, 1, 2), "v": (F16, 1, 2), **options})
            slots, whole = self.slots(kv), kv.file()
            for size in range(len(whole)):
                self.refuses("", slots.save, self.path("a", whole[:size]))
            self.refuses("more than rows", slots.save, self.path("a", whole + bytes(4)))
            for at in [*range(0, 12, 4), *range(32, len(whole) - 3, 4)]:
                for word in (0, 1, 2, 5, 0xffff, 0x7fffffff, 0xffffffff):
                    made = bytearray(whole)
                    made[at:at + 4] = struct.pack("<I", word)
                    try:
                        slots.save(self.path("a", made))
                    except kvterrace.UnsupportedError:
                        continue
                    self.assertEqual(made[:12], whole[:12])
            self.kvt.clear(everything=True)

    def test_versions_and_what_is_more_than_text(self):
        kv = Kv(TOKENS)
        slots = self.slots(kv)
        for version in (0, 1, 2, 5):
            made = bytearray(kv.file())
            made[4:8] = struct.pack("<I", version)
            self.refuses(f"version {version}; this adapter knows 3, 4", slots.save,
                         self.path("a", made))
        self.refuses("no state of a sequence", slots.save, self.path("a", b"GGUF" + bytes(99)))
        images = Kv(TOKENS).file(packed=True)
        for at, word in ((16, 2), (20, len(TOKENS) - 1), (24 + 4 * len(TOKENS), 1)):
            made = bytearray(images)
            made[at:at + 4] = struct.pack("<I", word)
            self.refuses("images", slots.save, self.path("a", made))
        for text, order in (("positions", [1, *range(2, 12)]), ("positions", [0, *range(10)])):
            self.refuses(text, slots.save, self.path("a", Kv([*TOKENS, 1]).file(order)))
        self.refuses("no token", self.slots, Kv([]))

    def test_a_lossy_chunk_is_not_put_again(self):
        kv = Kv(TOKENS)
        slots = self.slots(kv)
        slots.save(self.path("like"))
        describe = self.kvt.describe
        self.kvt.describe = lambda key: dict(describe(key), variant="planes:k8v8,g64")
        self.assertEqual(slots.restore(TOKENS, self.path("b")), 8)
        del self.kvt.describe
        self.kvt.delete(slots.keys(TOKENS)[1])
        self.assertEqual(slots.save(self.path("like")), 4)

    def test_after_a_restart(self):
        kv, folder = Kv(TOKENS), self.folder()
        settings = {"store.catalog": os.path.join(folder, "c.db"), "tier.dram.capacity": "8MiB",
                    "store.policy": "lru", "device.d.tier": "ssd", "device.d.backend": "file",
                    "device.d.path": os.path.join(folder, "d"), "device.d.capacity": "64MiB"}
        for found in (0, 8):
            with kvterrace.Store(settings=settings) as store:
                slots = self.slots(kv, store=store)
                self.assertEqual(slots.restore(TOKENS, self.path("b")), found)
                slots.save(self.path("like"))
                store.persist()
        self.assertEqual(self.read("b"), kv.begin(8).file())

    def test_a_model_is_its_bytes(self):
        kv = Kv(TOKENS)
        spaces = []
        for data in (b"GGUF1", b"GGUF2", b"GGUF1"):
            model = self.path("m.gguf", data)
            spaces.append(self.slots(kv, model=model, revision=None).space.hash)
        self.assertEqual(spaces[0], spaces[2])
        self.assertNotEqual(spaces[0], spaces[1])
        first = self.path("m-00001-of-00002.gguf", b"1")
        with self.assertRaises(FileNotFoundError):
            self.slots(kv, model=first, revision=None)
        for data in (b"2", b"3"):
            self.path("m-00002-of-00002.gguf", data)
            spaces.append(self.slots(kv, model=first, revision=None).space.hash)
        self.assertEqual(len(set(spaces)), 4)

    def test_wrong_arguments(self):
        kv = Kv(TOKENS)
        for options in ({"chunk": 0}, {"chunk": 2.5}, {"model": "m"}, {"revision": None}):
            self.refused(kvterrace.ArgumentError, "", self.slots, kv, **options)
        slots = self.slots(kv)
        for tokens in ([-1] * 9, [2**31] * 9):
            self.refused(kvterrace.ArgumentError, "token id", slots.restore, tokens, "b")
        slots.save(self.path("like"))
        with self.assertRaises(FileNotFoundError):
            slots.restore(TOKENS, self.path("none/b"))
        with self.assertRaises(IsADirectoryError):
            slots.restore(TOKENS, self.place)
        self.assertEqual(os.listdir(self.place), ["like"])


class Contexts(PackageCase):
    def test_what_is_no_context(self):
        closed = type("Llama", (), {"_ctx": None, "model_path": "m"})()
        for context, library in ((closed, None), (1, "/none.so"), (1, 5), (0, None)):
            with self.assertRaises((kvterrace.ArgumentError, OSError)):
                llamacpp.Prefixes(self.store(), context, revision="r", library=library)

    def test_another_library(self):
        self.refused(kvterrace.UnsupportedError, "no llama.cpp that this adapter knows",
                     llamacpp.Prefixes, self.store(), 1, revision="r", library="libc.so.6")


if __name__ == "__main__":
    unittest.main()
