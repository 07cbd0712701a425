# SPDX-License-Identifier: Apache-2.0
"""Bases of the transform codec, written from the documented format (docs/codecs/transform.md)."""

import hashlib
import struct

ALIGN = 4096
HEAD, LAYER, LAYERS4 = 1, 2, 3


def section(data):
    return data + bytes(-len(data) % ALIGN)


def table():
    """The escape and the codes -7 to 7 with a sixteenth each: frequencies of 16, five bits wide."""
    fields = "".join(format(5, "04b")[::-1] + "0000" for _ in range(16))
    coded = bytes(int(fields[i:i + 8][::-1], 2) for i in range(0, len(fields), 8))
    body = bytes([121, 135]) + coded
    return bytes([0, len(body)]) + body + bytes(254 - len(body))


def make_basis(span=HEAD, layers=2, heads=2, dim=32, sides=2, version=2, model=b"test-model"):
    """A basis whose matrices are the identity: no key turns, every code is a rounded element."""
    width = {HEAD: dim, LAYER: sides * heads * dim, LAYERS4: 4 * sides * heads * dim}[span]
    elements = layers * sides * heads * dim
    matrices = b""
    for first in range(0, elements, width):
        own = min(width, elements - first)
        matrices += b"".join(struct.pack(f"<{own}H", *(0x3F80 * (row == i) for i in range(own)))
                             for row in range(own))
    body = section(struct.pack(f"<{elements}f", *[0.0] * elements))
    body += section(matrices) * 2
    body += section(struct.pack(f"<{5 * elements}h", *[-8] * 5 * elements))
    body += section(bytes(256) + 31 * table())
    size = ALIGN + len(body)
    head = b"KVTBASIS" + struct.pack("<II", version, ALIGN) + bytes(32)
    head += struct.pack("<Q4BI4I", size, span, sides, 0, 0, 0, layers, heads, dim, 0)
    head += struct.pack("<Q", 1234) + bytes(range(32)) + model.ljust(96, b"\0")
    whole = head + bytes(ALIGN - len(head)) + body
    digest = hashlib.blake2b(whole, digest_size=32).digest()
    return whole[:16] + digest + whole[48:], digest
