#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvterrace.codec: single records go out and come back, as the store keeps them; bad input."""

import array
import json
import math
import mmap
import os
import random
import struct
import subprocess
import sys
import unittest

from package_case import BUILD, LAYOUT, PackageCase, kvterrace, pattern

from kvterrace import codec

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests",
                                "support"))
from kvtbasis import HEAD, LAYER, LAYERS4, make_basis  # noqa: E402  (behind the path)

LOSSY = ["kivi:k4v4,g64", "planes:k6v4,g32", "entropy:k0.25v0.5"]
SMALL = kvterrace.Layout(2, 2, 64, "bf16", 128)
EXACT = ["raw", "lossless", "lossless:fast"]


def values(layout, seed=1):
    """Elements as of a cache: each channel has a scale of its own."""
    draw = random.Random(seed)
    scales = [math.exp(draw.gauss(0, 1)) for _ in range(layout.kv_heads * layout.head_dim)]
    numbers = [draw.gauss(0, 1) * scales[index % len(scales)]
               for index in range(layout.bytes // {"fp32": 4}.get(layout.dtype, 2))]
    if layout.dtype == "bf16":
        return bytearray(b"".join(struct.pack("<f", one)[2:] for one in numbers))
    return bytearray(struct.pack(f"<{len(numbers)}{'e' if layout.dtype == 'fp16' else 'f'}",
                                 *numbers))


def numbers_of(data, dtype):
    if dtype == "bf16":
        return [struct.unpack("<f", b"\0\0" + bytes(data[at:at + 2]))[0]
                for at in range(0, len(data), 2)]
    return struct.unpack(f"<{len(data) // 4}f", data) if dtype == "fp32" else \
        struct.unpack(f"<{len(data) // 2}e", data)


class Records(PackageCase):
    def setUp(self):
        super().setUp()
        self.data = values(LAYOUT)

    def test_exact_records_come_back(self):
        layouts = [LAYOUT, kvterrace.Layout(2, 1, 64, "fp32", 33),
                   kvterrace.Layout(2, 4, 16, "fp8", 64), kvterrace.Layout.opaque(10007),
                   kvterrace.Layout(3, 2, 32, "fp16", 48, order="side_layer"),
                   kvterrace.Layout(5, 1, 96, "bf16", 17, sides=1)]
        for variant in EXACT:
            for layout in layouts:
                if variant == "lossless:fast" and layout.dtype in ("fp8", "opaque"):
                    continue
                data = pattern(layout.bytes)
                record = codec.encode(data, layout, variant, key=self.key("a"), generation=7)
                info = codec.inspect(record, verify=True)
                self.assertEqual((info.layout, info.key, info.generation, info.decoded_bytes),
                                 (layout, self.key("a"), 7, layout.bytes))
                self.assertEqual(len(record), info.record_bytes)
                self.assertEqual(len(record) % 4096, 0)
                self.assertEqual(codec.decode(record), data)
                self.assertEqual(codec.decode(bytes(record)), data)  # of any alignment
                self.assertLessEqual(len(record), codec.bound(layout, variant))

    def test_lossy_records_come_back(self):
        for variant in LOSSY:
            for layout in (SMALL, kvterrace.Layout(2, 2, 64, "fp16", 128)):
                data = values(layout)
                record = codec.encode(data, layout, variant)
                info = codec.inspect(record, verify=True)
                self.assertEqual(info.variant.split(":")[0], variant.split(":")[0])
                self.assertLess(info.payload_bytes, layout.bytes * 0.6)
                back = codec.decode(record)
                pairs = list(zip(numbers_of(data, layout.dtype), numbers_of(back, layout.dtype)))
                wrong = sum((one - two) ** 2 for one, two in pairs)
                self.assertGreater(wrong, 0)  # it is lossy,
                self.assertLess(wrong, 0.1 * sum(one ** 2 for one, _ in pairs))  # a little
                row = 2 * layout.kv_heads * layout.head_dim
                self.assertEqual(back[:4 * row], data[:4 * row])  # sinks are kept raw

    def test_lossy_entries_of_a_store_are_those_records(self):
        profile = self.profile()
        data, key = values(SMALL), self.key("a")
        for variant in LOSSY:
            store = self.store(variant=variant, ladder="calibrated", ladder_layout="2x2x64:bf16",
                               settings={"store.profile": profile})
            self.assertTrue(store.put(key, data, SMALL))
            store.flush()
            wanted = codec.decode(codec.encode(data, SMALL, variant))
            said, served = {}, bytearray(SMALL.bytes)
            self.assertTrue(store.get_into(key, served, info=said))
            self.assertEqual(said["variant"], codec.inspect(
                codec.encode(data, SMALL, variant)).variant)
            self.assertEqual(served, wanted)
            tensor = array.array("H", bytes(SMALL.bytes))
            with kvterrace.View.packed(SMALL, tensor) as view:
                self.assertTrue(store.get_into(key, view))
            self.assertEqual(tensor.tobytes(), bytes(wanted))
            self.assertEqual(store.get(key), wanted)
            store.close()

    def profile(self):
        """A profile whose ladder has the lossy variants, made up."""
        command = os.path.join(BUILD, "kvterrace")
        if not os.path.exists(command):
            self.skipTest("the command is not built")
        path = os.path.join(self.folder(), "profile")
        rungs = [{"model": "tiny", "digest": "00000001", "class": "t", "position": position,
                  "variant": variant, "bits_per_element": 6 - position,
                  "loss": 0.001 * (position + 1), "loss_upper": 0.002 * (position + 1),
                  "source": "made up"} for position, variant in enumerate(LOSSY)]
        model = {"model": "tiny", "digest": "00000001", "parameters": 1000, "layers": 2,
                 "heads": 4, "kv_heads": 2, "head_dim": 64}
        with open(path + ".json", "w", encoding="ascii") as file:
            json.dump({"schema": "kvterrace-profile-export-1",
                       "tables": {"model": [model], "calibration": rungs}}, file)
        subprocess.run([command, "profile", "import", path + ".json", "--quiet", "--database",
                        path + ".db"], check=True)
        return path + ".db"

    def test_no_copy_in_and_out(self):
        record = mmap.mmap(-1, codec.bound(LAYOUT, "planes:k4v4,g32"))
        size = codec.encode_into(record, self.data, LAYOUT, "planes:k4v4,g32")
        self.assertEqual(bytes(record[:size]),
                         bytes(codec.encode(self.data, LAYOUT, "planes:k4v4,g32")))
        target = array.array("H", bytes(LAYOUT.bytes))
        info = codec.decode_into(memoryview(record)[:size], target)
        self.assertEqual(info.stored_tokens, LAYOUT.tokens)
        self.assertEqual(target.tobytes(), bytes(codec.decode(record)))
        self.data.append(0)  # nothing stays exported
        target.append(0)
        record.close()

    def test_settings(self):
        few = codec.encode(self.data, LAYOUT, "planes:k2v2,g32", sink_tokens=0)
        more = codec.encode(self.data, LAYOUT, "planes:k2v2,g32", recent_tokens=8)
        row = 2 * LAYOUT.kv_heads * LAYOUT.head_dim
        self.assertNotEqual(codec.decode(few)[:row], self.data[:row])
        matrix = LAYOUT.tokens * row
        self.assertEqual(codec.decode(more)[matrix - 8 * row:matrix],
                         self.data[matrix - 8 * row:matrix])
        lower = codec.encode(self.data, LAYOUT, "planes:k4v4,g32", levels=[[0, -1]] * 3)
        self.assertLess(codec.inspect(lower).payload_bytes, codec.inspect(codec.encode(
            self.data, LAYOUT, "planes:k4v4,g32")).payload_bytes)
        loose = kvterrace.Layout(3, 2, 32, "bf16", 48, tokens_may_drop=True)
        scores = [[float(token % 2) for token in range(48)]]
        record = codec.encode(self.data, loose, "drop:scores,50", scores=scores)
        kept = codec.kept_tokens(record, 1)
        self.assertEqual(len(kept), codec.inspect(record).stored_tokens)
        self.assertEqual(len(codec.decode(record)), codec.inspect(record).decoded_bytes)
        self.assertEqual(kept, [0, 1, 2, 3] + list(range(5, 44, 2)))  # sinks, then the highest

    def test_coarser_records(self):
        for fine, coarse in (("planes:k6v6,g32", "planes:k4v4,g32"),
                             ("entropy:k0.25v0.25", "entropy:k0.75v0.75")):
            record = codec.encode(self.data, LAYOUT, fine)
            made = codec.derive(record, coarse)
            self.assertEqual(codec.decode(made),
                             codec.decode(codec.encode(self.data, LAYOUT, coarse)))
            self.assertLess(codec.inspect(made).payload_bytes, codec.inspect(record).payload_bytes)
            self.refused(kvterrace.Error, "no ", codec.derive, record, "kivi:k4v4,g64")
        self.refused(kvterrace.Error, "raw", codec.derive, codec.encode(self.data, LAYOUT, "raw"),
                     "planes:k4v4,g32")


class Bases(PackageCase):
    layout = kvterrace.Layout(2, 2, 32, "fp16", 64)

    def setUp(self):
        super().setUp()
        draw = random.Random(5)
        count = self.layout.bytes // 2
        self.numbers = [draw.uniform(-1, 1) for _ in range(count)]
        self.data = struct.pack(f"<{count}e", *self.numbers)

    def test_records_come_back(self):
        """The basis is the identity: sixteen tokens come back with what half a step of each of
        their frequencies is at most, with every span."""
        other = codec.Basis(make_basis(model=b"another")[0])
        for span, name in ((HEAD, "head"), (LAYER, "layer"), (LAYERS4, "layers4")):
            content, digest = make_basis(span=span)
            basis = codec.Basis(content)
            self.assertEqual((basis.hash, basis.span, basis.model, basis.tokens, basis.bytes),
                             (digest.hex(), name, "test-model", 1234, len(content)))
            self.assertEqual((basis.layers, basis.kv_heads, basis.head_dim, basis.rotary_dim,
                              basis.sides), (2, 2, 32, 0, 2))
            variant = basis.variant(0.125)
            record = codec.encode(self.data, self.layout, variant, bases=[other, basis])
            info = codec.inspect(record, verify=True)
            self.assertEqual((info.variant, info.basis), (variant, digest.hex()))
            self.assertLessEqual(len(record), codec.bound(self.layout, variant, bases=[basis]))
            back = codec.decode(record, bases=(basis for _ in "a"))
            numbers = struct.unpack(f"<{len(back) // 2}e", back)
            worst = max(abs(one - two) for one, two in zip(self.numbers, numbers))
            self.assertTrue(0 < worst < 4 * 0.0625)
            square = sum((one - two) ** 2 for one, two in zip(self.numbers, numbers))
            self.assertLess((square / len(numbers)) ** 0.5, 0.125 / 12 ** 0.5 * 1.05)
            target = bytearray(self.layout.bytes)
            codec.decode_into(bytes(record), target, bases=[basis, other])
            self.assertEqual(target, back)
            coarse = basis.variant(0.375)
            self.assertEqual(codec.derive(record, coarse, bases=[basis]),
                             codec.encode(self.data, self.layout, coarse, bases=[basis]))

    def test_a_basis_of_a_file(self):
        content, digest = make_basis()
        path = os.path.join(self.folder(), "a.kvtbasis")
        with open(path, "wb") as file:
            file.write(content)
        basis = codec.Basis.open(path)
        self.assertEqual(basis.hash, digest.hex())
        record = codec.encode(self.data, self.layout, basis.variant(), bases=[basis])
        again = codec.Basis(memoryview(b"x" + content)[1:])  # of any alignment
        self.assertEqual(codec.decode(record, bases=[basis]), codec.decode(record, bases=[again]))
        with open(path, "wb"):
            pass
        self.refused(kvterrace.ArgumentError, "empty", codec.Basis.open, path)
        self.assertRaises(FileNotFoundError, codec.Basis.open, path + "x")

    def test_a_basis_that_is_absent(self):
        mismatch = kvterrace.MismatchError
        basis = codec.Basis(make_basis()[0])
        other = codec.Basis(make_basis(model=b"another")[0])
        variant = basis.variant(0.125)
        record = codec.encode(self.data, self.layout, variant, bases=[basis], key=self.key("a"))
        for bases in ([], [other]):
            self.refused(mismatch, variant, codec.encode, self.data, self.layout, variant,
                         bases=bases)
            self.refused(mismatch, basis.hash, codec.decode, record, bases=bases)
            self.refused(mismatch, basis.hash, codec.derive, record, basis.variant(0.375),
                         bases=bases)
        self.assertEqual(codec.inspect(record).basis, basis.hash)
        with self.assertRaises(mismatch) as caught:  # of another key, not of another basis
            codec.decode(record, bases=[basis], key=self.key("b"))
        self.assertNotIn("basis", caught.exception.message)

    def test_what_is_no_basis(self):
        content, _ = make_basis()
        wrong, corrupt = kvterrace.ArgumentError, kvterrace.CorruptError
        self.refused(wrong, "empty", codec.Basis, b"")
        self.refused(wrong, "neither", codec.Basis, 7)
        for damaged in (content[:-1], content + b"x", b"hello" * 2000, content[:100],
                        make_basis(version=3)[0]):
            self.refused(corrupt, "sound", codec.Basis, damaged)
        for place in range(0, len(content), 1009):
            damaged = bytearray(content)
            damaged[place] ^= 1
            self.refused(corrupt, "sound", codec.Basis, damaged)
        basis = codec.Basis(content)
        variant = basis.variant()
        for bases in (basis, [basis, None], [content], "basis", 7):
            self.refused(wrong, "list of Basis", codec.encode, self.data, self.layout, variant,
                         bases=bases)
        small = codec.Basis(make_basis(layers=1)[0])
        self.refused(kvterrace.UnsupportedError, "take", codec.encode, self.data, self.layout,
                     small.variant(), bases=[small])
        self.refused(wrong, "no variant", basis.variant, 16)
        self.refused(wrong, "no variant", basis.variant, -1)
        record = codec.encode(self.data, self.layout, "entropy:k0.5v0.5", bases=[basis])
        self.assertIsNone(codec.inspect(record).basis)  # others need none


class BadInput(PackageCase):
    def setUp(self):
        super().setUp()
        self.data = values(LAYOUT)
        self.record = codec.encode(self.data, LAYOUT, key=self.key("a"))

    def test_entries_and_codings(self):
        wrong, encode = kvterrace.ArgumentError, codec.encode
        self.refused(wrong, "bytes", encode, self.data[:-2], LAYOUT)
        self.refused(wrong, "empty", encode, b"")
        self.refused(wrong, "no variant", encode, self.data, LAYOUT, "zip")
        self.refused(wrong, "no variant", encode, self.data, LAYOUT, "kivi:k5v5")
        self.refused(wrong, "name", encode, self.data, LAYOUT, 4)
        self.refused(wrong, "Layout", encode, self.data, "bf16")
        self.refused(wrong, "fp32", encode, array.array("f", bytes(LAYOUT.bytes)), LAYOUT)
        self.refused(wrong, "contiguous", encode, memoryview(bytes(2 * LAYOUT.bytes))[::2], LAYOUT)
        self.refused(wrong, "neither", encode, None, LAYOUT)
        self.refused(wrong, "32", encode, self.data, LAYOUT, key=b"short")
        self.refused(wrong, "range", encode, self.data, LAYOUT, first_position=-1)
        self.refused(wrong, "range", encode, self.data, LAYOUT, "kivi:k4v4,g32", chain_tokens=3)
        self.refused(wrong, "row", encode, self.data, LAYOUT, "drop:scores,50", scores=[[1.0]])
        self.refused(wrong, "rows", encode, self.data, LAYOUT, "drop:scores,50", scores=[1.0])
        self.refused(wrong, "levels", encode, self.data, LAYOUT, "planes:k4v4,g32", levels=[[9, 9]])
        self.refused(kvterrace.UnsupportedError, "beside", encode, self.data, LAYOUT, "raw",
                     recent_tokens=4)
        self.refused(kvterrace.UnsupportedError, "take", encode, self.data, None, "kivi:k4v4,g64")
        with self.assertRaises(TypeError):
            encode(self.data, LAYOUT, colour="blue")

    def test_targets(self):
        wrong, size = kvterrace.ArgumentError, LAYOUT.bytes
        self.refused(wrong, "read-only", codec.decode_into, self.record, bytes(size))
        self.refused(wrong, "bytes", codec.decode_into, self.record, bytearray(size - 2))
        self.refused(wrong, "fp32", codec.decode_into, self.record, array.array("f", bytes(size)))
        self.refused(wrong, "contiguous", codec.decode_into, self.record,
                     memoryview(bytearray(2 * size))[::2])
        room = mmap.mmap(-1, 1 << 20)
        self.refused(wrong, "multiple", codec.encode_into, memoryview(room)[8:], self.data, LAYOUT)
        self.refused(kvterrace.SpaceError, "enough", codec.encode_into, memoryview(room)[:8192],
                     self.data, LAYOUT)
        self.refused(wrong, "read-only", codec.encode_into, bytes(1 << 16), self.data, LAYOUT)

    def test_records(self):
        wrong, corrupt = kvterrace.ArgumentError, kvterrace.CorruptError
        self.refused(kvterrace.MismatchError, "", codec.decode, self.record, key=self.key("b"))
        self.refused(kvterrace.MismatchError, "", codec.decode, self.record, key=self.key("a"),
                     generation=2)
        self.refused(wrong, "32", codec.decode, self.record, key=b"a")
        self.refused(wrong, "empty", codec.decode, b"")
        self.refused(wrong, "neither", codec.decode, 7)
        self.refused(corrupt, "sound", codec.inspect, b"x")
        self.refused(corrupt, "sound", codec.inspect, self.record[:-4096])
        self.refused(wrong, "layer", codec.kept_tokens, self.record, 3)
        self.refused(wrong, "range", codec.kept_tokens, self.record, -1)
        for seed in range(200):  # any damage is found, and nothing breaks
            draw, damaged = random.Random(seed), bytearray(self.record)
            for _ in range(draw.randrange(1, 4)):
                damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            try:
                self.assertEqual(codec.decode(damaged), self.data)
            except corrupt:
                pass
        self.refused(corrupt, "sound", codec.inspect, os.urandom(8192))

    def test_nothing_is_left(self):
        def resident():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * 4096

        def work():
            for _ in range(300):
                codec.decode_into(codec.encode(self.data, LAYOUT, "planes:k4v4,g32"),
                                  bytearray(LAYOUT.bytes))

        work()
        before, descriptors = resident(), len(os.listdir("/proc/self/fd"))
        work()
        self.assertLess(resident() - before, 4 << 20)
        self.assertEqual(len(os.listdir("/proc/self/fd")), descriptors)


if __name__ == "__main__":
    unittest.main()
