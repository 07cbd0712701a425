#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The keys of kvterrace/key.h, made in Python: the vectors of docs/FORMAT.md come out.

space_hash and make_key are all that a program needs to make the same keys. test_base_key.c reads
the same vectors.
"""

import hashlib
import json
import os
import struct
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIELDS = ("model", "revision", "dtype", "salt", "block_tokens", "layers", "kv_heads", "head_dim",
          "sides", "order", "tensor_rank", "tensor_ranks", "pipeline_rank", "pipeline_ranks",
          "extra")


def space_hash(**fields):
    """The 32 bytes of a space; texts as str, extra as bytes, all else as numbers."""
    message = b"kvterrace space\0"
    for tag, field in enumerate(FIELDS, start=1):
        value = fields.pop(field, 0)
        if isinstance(value, str):
            value = value.encode()
        elif isinstance(value, int):
            value = struct.pack("<I", value) if value != 0 else b""
        if value:
            message += struct.pack("<II", tag, len(value)) + value
    assert not fields, f"unknown fields: {', '.join(fields)}"
    return hashlib.blake2b(message, digest_size=32).digest()


def make_key(space, name, group=0):
    """The 32 bytes of the key of a name in the space whose hash is given."""
    message = b"kvterrace name\0" + space + struct.pack("<I", group) + name
    return space[:8] + hashlib.blake2b(message, digest_size=24).digest()


def read_vectors():
    """The lines of the table in docs/FORMAT.md, word by word."""
    with open(os.path.join(SOURCE, "docs", "FORMAT.md"), encoding="utf-8") as page:
        text = page.read()
    block = text.split("```keys\n", 1)[1].split("```", 1)[0]
    return [line.split(" ", 1) for line in block.splitlines()]


class Vectors(unittest.TestCase):
    def test_the_vectors_of_the_page(self):
        space, counts = None, {"space": 0, "hash": 0, "key": 0}
        for kind, rest in read_vectors():
            counts[kind] += 1
            if kind == "space":
                fields = json.loads(rest)
                fields["extra"] = bytes.fromhex(fields.get("extra", ""))
                space = space_hash(**fields)
            elif kind == "hash":
                self.assertEqual(space.hex(), rest)
            else:
                group, name, key = rest.split()
                self.assertEqual(make_key(space, bytes.fromhex(name), int(group)).hex(), key)
        self.assertGreaterEqual(counts["space"], 4)
        self.assertEqual(counts["space"], counts["hash"])
        self.assertGreaterEqual(counts["key"], counts["space"])


def write_vectors():
    """Prints the table anew, for a person who adds a line."""
    space = None
    for kind, rest in read_vectors():
        if kind == "space":
            fields = json.loads(rest)
            fields["extra"] = bytes.fromhex(fields.get("extra", ""))
            space = space_hash(**fields)
        elif kind == "hash":
            rest = space.hex()
        else:
            group, name = rest.split()[:2]
            rest = f"{group} {name} {make_key(space, bytes.fromhex(name), int(group)).hex()}"
        print(kind, rest)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write_vectors()
    else:
        unittest.main()
