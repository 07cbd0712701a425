#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""encode, decode and inspect with bases of the transform codec: round trips, and a reason for each
file that is none.

    test_tools_basis.py COMMAND
"""

import hashlib
import json
import os
import struct
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase  # noqa: E402
from kvtbasis import ALIGN, HEAD, LAYER, LAYERS4, make_basis  # noqa: E402

class BasisTest(CommandCase):
    def put_dump(self, name, layers=2, heads=2, dim=32, tokens=64, dtype="F16"):
        header, data = {}, b""
        for layer in range(layers):
            for side in "kv":
                count = tokens * heads * dim
                values = [((i * 7919 + layer + ord(side)) % 1009) / 504.5 - 1 for i in range(count)]
                body = struct.pack(f"<{count}{'e' if dtype == 'F16' else 'f'}", *values)
                header[f"{side}.{layer}"] = {"dtype": dtype, "shape": [tokens, heads, dim],
                                             "data_offsets": [len(data), len(data) + len(body)]}
                data += body
        text = json.dumps(header).encode()
        self.put(name, struct.pack("<Q", len(text)) + text + data)

    def put_basis(self, name, **shape):
        data, digest = make_basis(**shape)
        self.put(name, data)
        return digest.hex(), data

    def test_round_trips(self):
        """A step of 1/8 is exact to half of it; the sinks are raw."""
        for span, name in ((HEAD, "head"), (LAYER, "layer"), (LAYERS4, "layers4")):
            for dtype in ("F16", "F32"):
                self.put_dump("kv.safetensors", dtype=dtype)
                digest, _ = self.put_basis("b.kvtbasis", span=span)
                variant = f"transform:{digest[:5].upper()},s0.125"
                encoded = self.run_json("encode", "kv.safetensors", "--basis", "b.kvtbasis",
                                        "--variant", variant, "-o", "kv.kvt")
                self.assertEqual(encoded["variant"], variant)
                self.assertLess(encoded["nmse_k"], 4.8e-3)
                self.assertGreater(encoded["nmse_k"], 1e-5)
                self.run_json("decode", "kv.kvt", "--basis", "b.kvtbasis", "-o", "back.safetensors")
                shown = self.run_json("inspect", "kv.kvt")
                self.assertEqual((shown["basis"], shown["basis_span"]), (digest, name))
                self.assertNotIn("decodes", shown)
                shown = self.run_json("inspect", "kv.kvt", "--basis", "b.kvtbasis")
                self.assertIs(shown["decodes"], True)

    def test_a_variant_takes_the_basis_that_is_given(self):
        self.put_dump("kv.safetensors")
        digest, _ = self.put_basis("b.kvtbasis")
        self.put_basis("c.kvtbasis", model=b"another")
        for name, step in (("transform", "0.5"), ("transform:s0.25", "0.25")):
            encoded = self.run_json("encode", "kv.safetensors", "--basis", "b.kvtbasis",
                                    "--variant", name)
            self.assertEqual(encoded["variant"], f"transform:{digest[:5].upper()},s{step}")
        self.fails("one --basis", "encode", "kv.safetensors", "--variant", "transform")
        self.fails("one --basis", "encode", "kv.safetensors", "--variant", "transform:s1",
                   "--basis", "b.kvtbasis", "--basis", "c.kvtbasis")

    def test_several_bases(self):
        """The one that is needed is found among others, given twice or beside those of no use."""
        self.put_dump("kv.safetensors")
        first, _ = self.put_basis("a.kvtbasis")
        self.put_basis("b.kvtbasis", model=b"another")
        many = ["--basis", "b.kvtbasis", "--basis", "a.kvtbasis", "--basis", "a.kvtbasis"]
        self.run_command("encode", "kv.safetensors", *many, "--variant",
                         f"transform:{first[:5].upper()}", "-o", "kv.kvt")
        self.run_command("decode", "kv.kvt", *many, "-o", "back.safetensors")

    def test_a_basis_is_shown(self):
        digest, data = self.put_basis("b.kvtbasis", span=LAYER)
        shown = self.run_json("inspect", "b.kvtbasis")
        self.assertEqual(shown, {"schema": "kvterrace-inspect-1", "kind": "basis", "hash": digest,
                                 "model": "test-model", "span": "layer", "layers": 2, "sides": 2,
                                 "kv_heads": 2, "head_dim": 32, "rotary_dim": 0, "metric": "plain",
                                 "tokens": 1234, "digest": bytes(range(32)).hex(),
                                 "bytes": len(data)})

    def test_without_the_basis(self):
        """Each command names the basis that it lacks, and writes nothing."""
        self.put_dump("kv.safetensors")
        digest, _ = self.put_basis("a.kvtbasis")
        other, _ = self.put_basis("b.kvtbasis", model=b"another")
        variant = f"transform:{digest[:5].upper()}"
        encode = ["encode", "kv.safetensors", "--variant", variant, "-o", "kv.kvt"]
        self.fails(f"needs the basis {digest[:5].upper()}", *encode)
        self.fails(other[:5].upper(), *encode, "--basis", "b.kvtbasis")
        self.assertFalse(os.path.exists(self.path("kv.kvt")))
        self.run_command(*encode, "--basis", "a.kvtbasis")
        decode = ["decode", "kv.kvt", "-o", "back.safetensors"]
        self.fails(f"needs the basis {digest}", *decode)
        self.fails(f"needs the basis {digest}", *decode, "--basis", "b.kvtbasis")
        self.assertFalse(os.path.exists(self.path("back.safetensors")))
        self.fails(f"needs the basis {digest}", "inspect", "kv.kvt", "--basis", "b.kvtbasis")
        self.run_command("inspect", "kv.kvt")

    def test_bases_of_another_shape(self):
        self.put_dump("kv.safetensors")
        for shape in ({"layers": 1}, {"heads": 1}, {"dim": 16}, {"sides": 1}):
            digest, _ = self.put_basis("b.kvtbasis", **shape)
            self.fails("the basis is of", "encode", "kv.safetensors", "--basis", "b.kvtbasis",
                       "--variant", f"transform:{digest[:5].upper()}")

    def test_files_that_are_no_basis(self):
        self.put_dump("kv.safetensors")
        digest, data = self.put_basis("b.kvtbasis")
        variant = f"transform:{digest[:5].upper()}"
        later, _ = make_basis(version=2)
        flipped = bytearray(data)
        flipped[9000] ^= 1
        # Sound by its hash, but G does not undo F.
        undone = bytearray(data)
        at = ALIGN + 4096 * ((2 * 2 * 2 * 32 * 4 + 4095) // 4096)
        undone[at:at + 2] = struct.pack("<H", 0x4080)
        undone[16:48] = bytes(32)
        undone[16:48] = hashlib.blake2b(bytes(undone), digest_size=32).digest()
        for name, content, part in (("short", data[:-1], "cut short"),
                                    ("head", data[:100], "cut short"),
                                    ("empty", b"", "not a basis"),
                                    ("long", data + bytes(1), "grown"),
                                    ("text", b"hello" * 2000, "not a basis"),
                                    ("later", later, "later version"),
                                    ("flipped", bytes(flipped), "damaged"),
                                    ("undone", bytes(undone), "undo each other")):
            self.put(name, content)
            self.fails(part, "encode", "kv.safetensors", "--basis", name, "--variant", variant)
            if content[:8] == b"KVTBASIS":
                self.fails(part, "inspect", name)
        self.fails("No such file", "encode", "kv.safetensors", "--basis", "nowhere", "--variant",
                   variant)
        self.fails("not a regular file", "encode", "kv.safetensors", "--basis", ".", "--variant",
                   variant)

    def test_where_a_basis_has_no_use(self):
        self.put_dump("kv.safetensors")
        self.put_basis("b.kvtbasis")
        self.fails("--basis", "encode", "kv.safetensors", "--basis", "b.kvtbasis")
        self.fails("--basis", "inspect", "kv.safetensors", "--basis", "b.kvtbasis")
        self.fails("--basis", "inspect", "b.kvtbasis", "--basis", "b.kvtbasis")


if __name__ == "__main__":
    unittest.main()
