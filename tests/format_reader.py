#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a kvterrace record after docs/FORMAT.md alone, as a second opinion on the C code.

    format_reader.py RECORD [--raw OUTPUT] [--json]

Prints header and segment table, verifies every checksum and padding, decodes all segments and
writes the entry's bytes to OUTPUT (after a drop, the rows of the kept tokens). Exit status: 0
sound, 1 not sound, 2 usage, 77 not decoded here: the zstd command is needed and absent, or values
are of lossless fast or entropy. Python's standard library only; XXH3-64 is written out
here, zstd frames go through the zstd command.
"""

import argparse
import json
import shutil
import struct
import subprocess
import sys

import format_reader_parts as parts

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1
PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
PRIME64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
PRIME_MX1 = 0x165667919E3779F9
PRIME_MX2 = 0x9FB21C651E98DF25
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")


def u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


def avalanche(h):
    h ^= h >> 37
    h = h * PRIME_MX1 & MASK64
    return h ^ (h >> 32)


def avalanche_xxh64(h):
    h ^= h >> 33
    h = h * PRIME64[1] & MASK64
    h ^= h >> 29
    h = h * PRIME64[2] & MASK64
    return h ^ (h >> 32)


def fold(a, b):
    product = a * b
    return (product & MASK64) ^ (product >> 64)


def mix16(data, at, secret_at):
    return fold(
        u64(data, at) ^ u64(SECRET, secret_at), u64(data, at + 8) ^ u64(SECRET, secret_at + 8)
    )


def xxh3_up_to_16(data):
    n = len(data)
    if n > 8:
        low = u64(data, 0) ^ (u64(SECRET, 24) ^ u64(SECRET, 32))
        high = u64(data, n - 8) ^ (u64(SECRET, 40) ^ u64(SECRET, 48))
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return avalanche((n + swapped + high + fold(low, high)) & MASK64)
    if n >= 4:
        both = u32(data, n - 4) + (u32(data, 0) << 32)
        h = both ^ (u64(SECRET, 8) ^ u64(SECRET, 16))
        rotated = ((h << 49) | (h >> 15)) & MASK64, ((h << 24) | (h >> 40)) & MASK64
        h ^= rotated[0] ^ rotated[1]
        h = h * PRIME_MX2 & MASK64
        h ^= (h >> 35) + n
        h = h * PRIME_MX2 & MASK64
        return h ^ (h >> 28)
    if n > 0:
        joined = (data[0] << 16) | (data[n >> 1] << 24) | data[n - 1] | (n << 8)
        return avalanche_xxh64(joined ^ (u32(SECRET, 0) ^ u32(SECRET, 4)))
    return avalanche_xxh64(u64(SECRET, 56) ^ u64(SECRET, 64))


def xxh3_up_to_240(data):
    n = len(data)
    acc = n * PRIME64[0] & MASK64
    if n <= 128:
        for i in range((n - 1) // 32 + 1):
            acc += mix16(data, 16 * i, 32 * i) + mix16(data, n - 16 * (i + 1), 32 * i + 16)
        return avalanche(acc & MASK64)
    for i in range(8):
        acc += mix16(data, 16 * i, 16 * i)
    acc = avalanche(acc & MASK64)
    for i in range(8, n // 16):
        acc += mix16(data, 16 * i, 16 * (i - 8) + 3)
    acc += mix16(data, n - 16, 136 - 17)
    return avalanche(acc & MASK64)


def accumulate(acc, stripe, keys):
    for i in range(8):
        value = stripe[i]
        keyed = value ^ keys[i]
        acc[i ^ 1] = (acc[i ^ 1] + value) & MASK64
        acc[i] = (acc[i] + (keyed & MASK32) * (keyed >> 32)) & MASK64


def xxh3_long(data):
    n = len(data)
    acc = [PRIME32[2], *PRIME64[:4], PRIME32[1], PRIME64[4], PRIME32[0]]
    stripes = (len(SECRET) - 64) // 8
    keys = [struct.unpack_from("<8Q", SECRET, 8 * i) for i in range(stripes)]
    scramble = struct.unpack_from("<8Q", SECRET, len(SECRET) - 64)
    block = 64 * stripes
    blocks = (n - 1) // block
    for b in range(blocks):
        for s in range(stripes):
            accumulate(acc, struct.unpack_from("<8Q", data, b * block + 64 * s), keys[s])
        for i in range(8):
            acc[i] = (acc[i] ^ (acc[i] >> 47) ^ scramble[i]) * PRIME32[0] & MASK64
    for s in range((n - 1 - blocks * block) // 64):
        accumulate(acc, struct.unpack_from("<8Q", data, blocks * block + 64 * s), keys[s])
    last = struct.unpack_from("<8Q", SECRET, len(SECRET) - 64 - 7)
    accumulate(acc, struct.unpack_from("<8Q", data, n - 64), last)
    total = n * PRIME64[0] & MASK64
    for i in range(4):
        total += fold(
            acc[2 * i] ^ u64(SECRET, 11 + 16 * i), acc[2 * i + 1] ^ u64(SECRET, 19 + 16 * i)
        )
    return avalanche(total & MASK64)


def xxh3_64(data):
    """XXH3, 64 bits, seed 0, default secret."""
    if len(data) <= 16:
        return xxh3_up_to_16(data)
    if len(data) <= 240:
        return xxh3_up_to_240(data)
    return xxh3_long(data)


class Unsound(Exception):
    """The bytes do not follow docs/FORMAT.md."""


class NoTool(Exception):
    """The zstd command is absent."""


def need(condition, message):
    if not condition:
        raise Unsound(message)


SLOT = 4096
HEADER = struct.Struct("<8sHHIQII32sQHHHBBIB3sQHHIIIIIQQQQQQQ")
FIELDS = (
    "magic major minor header_bytes sequence critical_flags optional_flags key generation layers "
    "kv_heads head_dim dtype order logical_tokens tokens_may_drop reserved opaque_bytes codec mode "
    "rate first_position stored_tokens segment_count plane_count table_offset table_bytes "
    "table_checksum payload_offset payload_bytes record_bytes source_bytes"
).split()
SEGMENT = struct.Struct("<IBBHQQQQQ")
SEGMENT_FIELDS = "layer side kind plane offset stored padded raw checksum".split()
DTYPES = {0: ("opaque", 1), 1: ("fp16", 2), 2: ("bf16", 2), 3: ("fp32", 4), 4: ("fp8", 1)}
KINDS = {1: "raw", 2: "coded", 3: "metadata", 4: "data", 5: "table", 6: "index", 7: "tokens"}
RAW, LOSSLESS, FAST, DENSE = 1, 2, 2, 3


def read_slot(data, at):
    slot = data[at : at + SLOT]
    if slot == bytes(SLOT):
        return None
    need(slot[:8] == b"KVTR\r\n\x1a\n", f"slot at {at}: magic")
    need(xxh3_64(slot[:-8]) == u64(slot, SLOT - 8), f"slot at {at}: checksum")
    header = dict(zip(FIELDS, HEADER.unpack_from(slot)))
    need(header["major"] == 1 and not header["critical_flags"] & ~23, "a later version")
    header["extended"] = header["critical_flags"] & 1
    header["sides"] = 1 if header["critical_flags"] & 2 else 2
    header["coded"] = 1 if header["critical_flags"] & 16 else 0
    if header["minor"] <= 1:
        need(header["extended"] == header["minor"], "minor version of the extension")
        need(header["optional_flags"] == 0, "optional flags")
    fields = HEADER.size
    if header["extended"]:
        fields = parts.read_extension(slot, header, HEADER.size, need)
    if header["minor"] <= 2:
        end = read_note(slot, header, fields) if header["minor"] == 2 else fields
        need(header["header_bytes"] == end, "header bytes")
        need(not any(slot[end:-8]), "zeros after the header")
    return header


def read_note(slot, header, fields):
    """Adds the note to the header. Where it ends."""
    need(header["optional_flags"] == 1, "optional flags")
    at = align(fields, 8)
    need(at + 8 < SLOT - 8 and not any(slot[fields:at]), "zeros before the note")
    size = u32(slot, at)
    need(size > 0 and size % 8 == 0 and at + 8 + size <= SLOT - 8, "note bytes")
    need(u32(slot, at + 4) == 0, "reserved field of the note")
    header["note"] = slot[at + 8 : at + 8 + size]
    return at + 8 + size


def read_header(data):
    need(len(data) >= 3 * SLOT, "too short")
    slots = [slot for slot in (read_slot(data, 0), read_slot(data, SLOT)) if slot]
    need(slots, "no valid slot")
    need(len({slot["sequence"] for slot in slots}) == len(slots), "two slots of one sequence")
    header = max(slots, key=lambda slot: slot["sequence"])
    need(header["generation"] > 0 and header["reserved"] == bytes(3), "generation or reserved")
    need(header["dtype"] in DTYPES and header["order"] <= 1, "dtype or order")
    need(header["sides"] == 2 or header["dtype"] != 0, "one side of an opaque entry")
    need(header["critical_flags"] & 22 != 16, "V alone of two sides")
    if not header["extended"]:
        need(header["logical_tokens"] == header["stored_tokens"], "token counts")
    need(header["record_bytes"] % 4096 == 0, "record size")
    need(header["record_bytes"] <= len(data), "record is cut off")
    return header


def align(value, step):
    return -(-value // step) * step


def expected_segments(header):
    """(layer, side, decoded bytes, offset in the entry) of every segment, in table order."""
    if DTYPES[header["dtype"]][0] == "opaque":
        total, piece = header["opaque_bytes"], 8 << 20
        return [
            (i, 0, min(piece, total - i * piece), i * piece) for i in range(-(-total // piece))
        ]
    row = header["kv_heads"] * header["head_dim"] * DTYPES[header["dtype"]][1]
    matrix = row * header["logical_tokens"]
    out = []
    for layer in range(header["layers"]):
        for side in range(header["sides"]):
            out.append((layer, side, matrix, index_of(header, layer, side) * matrix))
    return out


def index_of(header, layer, side):
    """The place of a matrix in the entry."""
    if header["order"] == 0:
        return layer * header["sides"] + side
    return side * header["layers"] + layer


def read_table(data, header):
    expected = expected_segments(header)
    count = len(expected)
    need(count == header["segment_count"] and header["plane_count"] == 1, "segment count")
    need(sum(item[2] for item in expected) == header["source_bytes"], "source bytes")
    size = align(count * SEGMENT.size, 4096)
    need(header["table_offset"] == 2 * SLOT and header["table_bytes"] == size, "table place")
    need(header["payload_offset"] == 2 * SLOT + size, "payload offset")
    table = data[2 * SLOT : 2 * SLOT + size]
    need(xxh3_64(table) == header["table_checksum"], "table checksum")
    need(not any(table[count * SEGMENT.size :]), "table padding")
    segments = [
        dict(zip(SEGMENT_FIELDS, SEGMENT.unpack_from(table, i * SEGMENT.size)))
        for i in range(count)
    ]
    at = run = header["payload_offset"]
    opaque = DTYPES[header["dtype"]][0] == "opaque"
    for i, (segment, want) in enumerate(zip(segments, expected)):
        need((segment["layer"], segment["side"], segment["raw"]) == want[:3], f"segment {i}")
        need(segment["kind"] in (1, 2) and segment["plane"] == 0, f"segment {i}: kind or plane")
        need(segment["offset"] == at, f"segment {i}: offset")
        end = align(at + segment["stored"], 64)
        if i + 1 == count or ((opaque or want[1] == header["sides"] - 1) and end - run >= 65536):
            end = run = align(end, 4096)
        need(segment["padded"] == end - at, f"segment {i}: padding")
        at = end
        segment["target"] = want[3]
    need(at == header["record_bytes"], "record bytes")
    need(sum(s["stored"] for s in segments) == header["payload_bytes"], "payload bytes")
    return segments


def zstd_decompress(frame, size):
    tool = shutil.which("zstd")
    if tool is None:
        raise NoTool("the zstd command is absent")
    done = subprocess.run([tool, "-d", "-q", "-c"], input=frame, capture_output=True, check=False)
    need(done.returncode == 0 and len(done.stdout) == size, "zstd frame")
    return done.stdout


class Stored:
    """A stored segment, read from front to back."""

    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, count):
        need(count <= len(self.data) - self.at, "segment ends early")
        taken = self.data[self.at : self.at + count]
        self.at += count
        return taken


def read_table_of(stored):
    """Frequencies of a rANS table: a dictionary by symbol."""
    need(len(stored) > 2, "table size")
    first, last = stored[0], stored[1]
    bits = int.from_bytes(stored[2:], "little")
    left = 8 * len(stored[2:])
    need(0 < first <= last, "table range")
    table = {}
    for symbol in (0, *range(first, last + 1)):
        width = bits & 15
        bits >>= 4
        left -= 4
        need(width <= 8, "frequency width")
        if width:
            table[symbol] = (1 << (width - 1)) + (bits & ((1 << (width - 1)) - 1))
            bits >>= width - 1
            left -= width - 1
    need(0 <= left < 8 and bits == 0, "table bytes")
    need(0 in table and first in table and last in table, "table ends")
    need(sum(table.values()) == 256 and 2 <= len(table) <= 128, "table sum")
    return table


def state_count_of(symbols):
    if symbols < 16384:
        return 16
    return 64 if symbols < 131072 else 128


def read_stream(stored, count):
    """The symbols of a rANS stream."""
    code_bytes, escape_count, table_bytes, state_count, zero = struct.unpack(
        "<IIBBH", stored.take(12)
    )
    need(zero == 0 and state_count == state_count_of(count), "stream head")
    table = read_table_of(stored.take(table_bytes))
    escapes = iter(stored.take(escape_count))
    states = list(struct.unpack(f"<{state_count}H", stored.take(2 * state_count)))
    code = stored.take(code_bytes)
    need(min(states) >= 256, "state")
    owner = [0] * 256
    slot = 0
    for symbol, frequency in table.items():
        for _ in range(frequency):
            owner[slot] = symbol
            slot = (slot + 163) % 256
    seen = dict.fromkeys(table, 0)
    entries = []
    for symbol in owner:
        entries.append((symbol, table[symbol], seen[symbol]))
        seen[symbol] += 1
    out = bytearray(count)
    at = 0
    for i in range(count):
        x = states[i % state_count]
        symbol, frequency, rank = entries[x & 255]
        x = frequency * (x >> 8) + rank
        if x < 256:
            need(at < code_bytes, "code ends early")
            x = x << 8 | code[at]
            at += 1
        states[i % state_count] = x
        if symbol == 0:
            symbol = next(escapes, None)
            need(symbol is not None, "escapes end early")
        out[i] = symbol
    need(at == code_bytes and set(states) == {256} and next(escapes, None) is None, "stream end")
    return out


def read_nibbles(stored, elements):
    """One number of four bits an element, from runs of 128."""
    out = bytearray()
    for at in range(0, elements, 128):
        count = min(128, elements - at)
        packed = stored.take((count + 1) // 2)
        run = [x & 15 for x in packed] + [x >> 4 for x in packed]
        need(not any(run[count:]), "nibble after the last element")
        out += bytes(run[:count])
    return out


def read_tile(stored, dtype, element, channels, elements):
    """The elements of the next tile, token-major, as little-endian bytes."""
    kind, flags, zero = struct.unpack("<BBH", stored.take(4))
    need(kind <= 3 and zero == 0, "tile head")
    if kind == 0:
        need(flags == 0, "flags of a raw tile")
        return stored.take(elements * element)
    narrow = flags & 4
    need((kind == 3) == (dtype == "fp8"), "kind against dtype")
    need((kind == 2) == (dtype == "fp16" and not narrow), "kind against dtype")
    allowed = 9 | (2 if dtype == "fp32" else 0) | (4 if dtype == "fp16" else 0)
    if dtype == "fp8":
        allowed = 1
    need(not flags & ~allowed, "tile flags")
    bases = stored.take(channels) if flags & 1 else bytes(channels)
    extras = b""
    if kind == 2:
        extras = stored.take((3 * elements + 7) // 8)
    elif kind == 3:
        lows = read_nibbles(stored, elements)
    elif dtype == "fp32" and not flags & 2:
        extras = stored.take(2 * elements)
    if kind == 3:
        pass
    elif flags & 8:
        lows = bytes((x - 1) & 255 for x in read_stream(stored, elements))
    else:
        lows = stored.take(elements)
    symbols = read_stream(stored, elements)
    exponents = [(128 + bases[i % channels] - x) & 255 for i, x in enumerate(symbols)]
    if kind == 3:
        return bytes((low & 8) << 4 | (e & 15) << 3 | low & 7 for e, low in zip(exponents, lows))
    if dtype == "fp32":
        high = struct.unpack(f"<{elements}H", extras) if extras else [0] * elements
        values = [
            (low & 0x80) << 24 | e << 23 | (low & 0x7F) << 16 | x
            for e, low, x in zip(exponents, lows, high)
        ]
        return struct.pack(f"<{elements}I", *values)
    if dtype == "bf16":
        values = [(low & 0x80) << 8 | e << 7 | low & 0x7F for e, low in zip(exponents, lows)]
    elif narrow:
        values = [
            (low & 0x80) << 8 | (e & 31) << 10 | (low & 0x7F) << 3
            for e, low in zip(exponents, lows)
        ]
    else:
        bits = int.from_bytes(extras, "little")
        need(bits >> (3 * elements) == 0, "bits after the last element")
        values = []
        for i, (e, low) in enumerate(zip(exponents, lows)):
            byte = 3 * i // 8
            triple = int.from_bytes(extras[byte : byte + 2], "little") >> (3 * i % 8) & 7
            values.append((triple & 4) << 13 | (e & 31) << 10 | (triple & 3) << 8 | low)
    return struct.pack(f"<{elements}H", *values)


def read_run(stored, size):
    """The next run of plain bytes."""
    word = u32(stored.take(4), 0)
    run = stored.take(word & 0x7FFFFFFF)
    if word >> 31:
        run = zstd_decompress(run, size)
    need(len(run) == size, "run size")
    return run


def decode_lossless(header, data, size):
    dtype, element = DTYPES[header["dtype"]]
    stored = Stored(data)
    out = bytearray(size)
    runs = dtype == "opaque" or dtype == "fp8" and data[2:4] != b"\0\0"
    if runs:
        for at in range(0, size, 1 << 18):
            count = min(1 << 18, size - at)
            out[at : at + count] = read_run(stored, count)
    else:
        width = header["kv_heads"] * header["head_dim"]
        for token in range(0, header["logical_tokens"], 256):
            tokens = min(256, header["logical_tokens"] - token)
            for channel in range(0, width, 1024):
                channels = min(1024, width - channel)
                tile = read_tile(stored, dtype, element, channels, tokens * channels)
                row = channels * element
                for i in range(tokens):
                    at = ((token + i) * width + channel) * element
                    out[at : at + row] = tile[i * row : (i + 1) * row]
    need(stored.at == len(data), "bytes after the last tile")
    return bytes(out)


def read_segments(data, header, plan):
    """The segments of a record with the extension, checked against what its header implies."""
    wanted = plan.wanted()
    count = len(wanted)
    need(count == header["segment_count"], "segment count")
    need(header["plane_count"] == max(1, *plan.planes.values()), "plane count")
    matrices = header["sides"] * header["layers"]
    need(header["source_bytes"] == matrices * header["logical_tokens"] * plan.row, "source bytes")
    size = align(SEGMENT.size * plan.room(), 4096)
    place = header["table_offset"]
    need(place in (2 * SLOT, 2 * SLOT + size * (header["table_count"] - 1)), "table place")
    need(header["table_bytes"] == size, "table size")
    need(header["payload_offset"] == 2 * SLOT + size * header["table_count"], "payload offset")
    table = data[place : place + size]
    need(xxh3_64(table) == header["table_checksum"], "table checksum")
    need(not any(table[count * SEGMENT.size :]), "table padding")
    at = run = header["payload_offset"]
    segments = []
    for i, (layer, side, kinds, plane, exact, ends_layer, ends_section) in enumerate(wanted):
        fields = SEGMENT.unpack_from(table, i * SEGMENT.size)
        segment = dict(zip(SEGMENT_FIELDS, fields))
        need((segment["layer"], segment["side"]) == (layer, side), f"segment {i}: place")
        need(segment["kind"] in kinds and segment["plane"] == plane, f"segment {i}: kind or plane")
        need(exact is None or segment["stored"] == exact, f"segment {i}: size")
        need(segment["kind"] < 3 or segment["raw"] == segment["stored"], f"segment {i}: raw size")
        need(segment["offset"] == at, f"segment {i}: offset")
        end = align(at + segment["stored"], 64)
        if ends_section or (ends_layer and end - run >= 65536):
            end = run = align(end, 4096)
        need(segment["padded"] == end - at, f"segment {i}: padding")
        at = end
        segments.append(segment)
    need(at == header["record_bytes"], "record bytes")
    need(sum(s["stored"] for s in segments) == header["payload_bytes"], "payload bytes")
    return segments


def check_index(header, index):
    total = header["logical_tokens"]
    need(bin(int.from_bytes(index, "little")).count("1") == header["stored_tokens"], "kept tokens")
    need(total % 8 == 0 or index[-1] >> total % 8 == 0, "unused bits of an index")


def decode_parts(header, plan, matrix):
    """One matrix of stored tokens from its segments: (kind, plane) -> bytes."""
    (layer, side), stored = matrix
    dtype = DTYPES[header["dtype"]][0]
    if (1, 0) in stored:
        need(len(stored[1, 0]) == plan.tokens * plan.row, "raw size")
        return stored[1, 0]
    if (2, 0) in stored:
        if (plan.codec, plan.mode, plan.rate) == (LOSSLESS, FAST, 0):
            raise NoTool("lossless fast is not decoded here")
        need((plan.codec, plan.mode, plan.rate) == (LOSSLESS, DENSE, 0), "variant")
        kept = dict(header, logical_tokens=plan.tokens)
        return decode_lossless(kept, stored[2, 0], plan.tokens * plan.row)
    if plan.codec not in (parts.KIVI, parts.PLANES):
        raise NoTool("values of entropy are not decoded here")
    planes = [stored[parts.DATA, plane] for plane in range(plan.planes[layer, side])]
    coded = parts.decode_groups(plan, layer, side, dtype, stored[parts.METADATA, 0], planes)
    raw = stored.get((parts.RAW_TOKENS, 0), b"")
    head = header["head_tokens"] * plan.row
    return raw[:head] + coded + raw[head:]


def read_extended(data, header):
    """A record with the extension: its segments, and the rows of the kept tokens."""
    plan = parts.Plan(header, DTYPES[header["dtype"]][1], need)
    segments = read_segments(data, header, plan)
    matrices = {
place : {
} for
        place in plan.planes}
    for segment in segments:
        stored_bytes = verify_segment(data, segment)
        if segment["kind"] == parts.INDEX:
            check_index(header, stored_bytes)
            continue
        key = segment["kind"], segment["plane"]
        matrices[segment["layer"], segment["side"]][key] = stored_bytes
    size = plan.tokens * plan.row
    entry = bytearray(len(matrices) * size)
    for (layer, side), stored in matrices.items():
        index = index_of(header, layer, side)
        entry[index * size : (index + 1) * size] = decode_parts(
            header, plan, ((layer, side), stored)
        )
    return header, segments, bytes(entry)


def verify_segment(data, segment):
    """Its stored bytes."""
    at, stored = segment["offset"], segment["stored"]
    padded = data[at : at + segment["padded"]]
    need(xxh3_64(padded) == segment["checksum"], f"checksum of the segment at {at}")
    need(not any(padded[stored:]), f"padding of the segment at {at}")
    return padded[:stored]


def decode_segment(header, segment, stored_bytes):
    stored = segment["stored"]
    if KINDS[segment["kind"]] == "raw":
        need(stored == segment["raw"], "raw size")
        return stored_bytes
    need(stored < segment["raw"], "coded size")
    if (header["codec"], header["mode"], header["rate"]) == (LOSSLESS, FAST, 0):
        raise NoTool("lossless fast is not decoded here")
    need((header["codec"], header["mode"], header["rate"]) == (LOSSLESS, DENSE, 0), "variant")
    return decode_lossless(header, stored_bytes, segment["raw"])


GROUP = struct.Struct("<HHHBBIBBHQQQQ")
LAYOUT_FIELDS = "layers kv_heads head_dim dtype order logical_tokens tokens_may_drop".split()


def check_group(header, head, layout):
    """Whether the record of a group is the one that the head and the table promise."""
    for name in ("key", "generation", "first_position"):
        need(head[name] == header[name], f"a group's {name}")
    for name, value in zip(LAYOUT_FIELDS, layout):
        need(head[name] == value, f"a group's {name}")
    sides, reserved, opaque_bytes = layout[len(LAYOUT_FIELDS) :]
    own = (1 + 2 * head["coded"]) if head["sides"] == 1 else 0
    need(sides == own and reserved == 0, "a group's sides")
    need(head["opaque_bytes"] == opaque_bytes, "a group's opaque bytes")
    need("note" not in head and not head["critical_flags"] & 4, "a group's slot")
    same = all(head[name] == header[name] for name in ("codec", "mode", "rate"))
    exact = head["codec"] in (RAW, LOSSLESS) and head["mode"] >> 8 == 0
    need(head["codec"] == RAW if header["codec"] == RAW else same or exact, "a group's variant")


def read_groups(data, header):
    """A record of groups: the segments of all, and the groups' bytes one after the other."""
    count = header["segment_count"]
    need(header["critical_flags"] & ~16 == 4 and header["dtype"] == 0, "head of groups")
    need(not any(header[name] for name in ("layers", "kv_heads", "head_dim", "order")), "shape")
    need(1 <= count <= 64 and header["mode"] >> 8 == 0, "groups")
    need((header["table_offset"], header["table_bytes"]) == (2 * SLOT, SLOT), "table place")
    need(header["payload_offset"] == 3 * SLOT, "payload offset")
    need(header["payload_bytes"] == header["record_bytes"] - 3 * SLOT, "payload bytes")
    table = data[2 * SLOT : 3 * SLOT]
    need(xxh3_64(table) == header["table_checksum"], "table checksum")
    need(not any(table[count * GROUP.size :]), "table padding")
    at = 3 * SLOT
    segments, entry, heads, absent = [], bytearray(), [], None
    for i in range(count):
        *layout, offset, size, zero = GROUP.unpack_from(table, i * GROUP.size)
        need(offset == at and zero == 0 and size % SLOT == 0, f"group {i}: place")
        need(offset + size <= header["record_bytes"], f"group {i}: size")
        record = data[offset : offset + size]
        head = read_header(record)
        check_group(header, head, layout)
        need(head["record_bytes"] == size, f"group {i}: record bytes")
        try:
            _, inner, decoded = read_record(record)
            segments += inner
            entry += decoded
        except NoTool as error:
            absent = error
        heads.append(head)
        at += size
    need(at == header["record_bytes"], "record bytes")
    need(header["coded"] == max(head["coded"] for head in heads), "V alone in a group")
    need(header["logical_tokens"] == max(head["logical_tokens"] for head in heads), "tokens")
    need(header["stored_tokens"] == header["logical_tokens"], "token counts")
    need(header["source_bytes"] == header["opaque_bytes"], "source bytes")
    need(header["source_bytes"] == sum(head["source_bytes"] for head in heads), "sum of bytes")
    need(header["plane_count"] == max(head["plane_count"] for head in heads), "plane count")
    raw = all(head["codec"] == RAW for head in heads)
    need(raw == (header["codec"] == RAW), "variant against groups")
    if absent is not None:
        raise absent
    return header, segments, bytes(entry)


def read_record(data):
    header = read_header(data)
    if header["critical_flags"] & 4:
        return read_groups(data, header)
    if header["extended"]:
        return read_extended(data, header)
    segments = read_table(data, header)
    all_raw = all(KINDS[segment["kind"]] == "raw" for segment in segments)
    need(all_raw == (header["codec"] == RAW), "variant against segments")
    entry = bytearray(header["source_bytes"])
    stored = [verify_segment(data, segment) for segment in segments]
    for segment, stored_bytes in zip(segments, stored):
        decoded = decode_segment(header, segment, stored_bytes)
        entry[segment["target"] : segment["target"] + segment["raw"]] = decoded
    return header, segments, bytes(entry)


def print_text(header, segments):
    for name in FIELDS[1:]:
        value = header[name]
        print(f"{name:16} {value.hex() if isinstance(value, bytes) else value}")
    print("layer side kind     offset       stored       padded       raw          checksum")
    for s in segments:
        print(
            f"{s['layer']:5} {'KV'[s['side']]:4} {KINDS[s['kind']]:8} {s['offset']:<12} "
            f"{s['stored']:<12} {s['padded']:<12} {s['raw']:<12} {s['checksum']:016x}"
        )


def main():
    parser = argparse.ArgumentParser(description="read a kvterrace record")
    parser.add_argument("record")
    parser.add_argument("--raw", metavar="OUTPUT", help="write the decoded entry here")
    parser.add_argument("--json", action="store_true", help="print header and table as JSON")
    arguments = parser.parse_args()
    try:
        with open(arguments.record, "rb") as file:
            data = file.read()
        header, segments, entry = read_record(data)
    except Unsound as error:
        print(f"{arguments.record}: not sound: {error}", file=sys.stderr)
        return 1
    except NoTool as error:
        print(f"{arguments.record}: {error}", file=sys.stderr)
        return 77
    if arguments.json:
        plain = {
k: v.hex() if isinstance(v, bytes) else v for k, v in header.items()}
        whole = f"{xxh3_64(data):016x}"
        print(json.dumps({"header": plain, "segments": segments, "file_xxh3": whole}))
    else:
        print_text(header, segments)
    if arguments.raw:
        with open(arguments.raw, "wb") as file:
            file.write(entry)
    return 0


if __name__ == "__main__":
    sys.exit(main())
