# SPDX-License-Identifier: Apache-2.0
"""The extension of records (minor 1 and later), for format_reader.py: levels, parts, raw tokens,
kept tokens, and the values of the codecs with groups, kivi and planes. After docs/FORMAT.md alone;
Python's standard library only. entropy is checked as far as the record goes, not decoded.
"""

import functools
import struct

EXTENSION = struct.Struct("<8I")
EXTENSION_FIELDS = (
    "head_tokens tail_k tail_v chain_tokens index_count level_count table_count zero"
).split()
KIVI, PLANES, ENTROPY = 3, 4, 5
FP8 = 4
PLANE_BITS = (2, 1, 1, 2, 2)
METADATA, DATA, INDEX, RAW_TOKENS = 3, 4, 6, 7
NO_LAYER = 0xFFFFFFFF


def read_extension(slot, header, header_size, need):
    """Adds the extension's fields and the levels to the header. Where they end in the slot."""
    extension = dict(zip(EXTENSION_FIELDS, EXTENSION.unpack_from(slot, header_size)))
    need(extension.pop("zero") == 0, "reserved field of the extension")
    levels = extension["level_count"]
    need(levels == (header["layers"] if header["codec"] >= KIVI else 0), "level count")
    need(header["header_bytes"] >= header_size + EXTENSION.size + levels, "header bytes")
    need(extension["table_count"] == (2 if header["codec"] == PLANES else 1), "table count")
    at = header_size + EXTENSION.size
    extension["levels"] = list(slot[at : at + levels])
    header.update(extension)
    return at + levels


def bits(value, low, count):
    return value >> low & ((1 << count) - 1)


class Plan:
    """What the header of a record with the extension implies."""

    def __init__(self, header, element, need):
        self.header, self.element, self.need = header, element, need
        self.codec, self.rate = header["codec"], header["rate"]
        self.mode = header["mode"] & 0xFF
        self.tokens = header["stored_tokens"]
        self.width = header["kv_heads"] * header["head_dim"]
        self.row = self.width * element
        self.parts = self.codec >= KIVI
        self.sides = range(header["sides"])
        if header["sides"] == 1:
            need(header["tail_v"] == 0, "raw tokens of V")
            need(all(levels >> 4 == 0 for levels in header["levels"]), "levels of V")
        need(self.tokens <= header["logical_tokens"], "stored tokens")
        need((header["mode"] >> 8 != 0) == (header["index_count"] > 0), "index without a drop")
        self.first = 1 if self.codec == PLANES and bits(self.rate, 12, 1) else 0
        self.planes = {}
        for layer in range(header["layers"]):
            for side in self.sides:
                self.planes[layer, side] = self.planes_of(layer, side)
        self.coded = {
            side: self.tokens - header["head_tokens"] - header["tail_v" if side else "tail_k"]
            for side in self.sides
        }
        need(min(self.coded.values()) >= 0, "raw tokens")

    def planes_of(self, layer, side):
        """Planes of a matrix; 0 when it is raw."""
        if not self.parts:
            return 1
        nibble = self.header["levels"][layer] >> 4 * side & 15
        if nibble == 8:
            return 0
        level = nibble - 16 if nibble > 8 else nibble
        count = 1 if self.codec != PLANES else bits(self.rate, 3 * self.as_side(side), 3) + level
        if self.header["dtype"] == FP8 and self.codec == PLANES:
            self.need(max(bits(self.rate, 0, 3), bits(self.rate, 3, 3)) <= 4, "planes of fp8")
            count = min(count, 4)
        self.need(1 <= count <= (5 if self.codec == PLANES else 1), "level")
        return count

    def as_side(self, side):
        """The side whose fields of the rate apply."""
        return side or self.header["coded"]

    def shape(self, side):
        """(group, channels of a unit, whether groups run along the columns)."""
        if self.codec == KIVI:
            group = 1 << bits(self.rate, 8, 4)
            return group, self.header["head_dim"], self.as_side(side) == 0
        unit = self.header["head_dim"] if bits(self.rate, 11, 1) else self.width
        columns = self.as_side(side) == 0 or bits(self.rate, 10, 1) == 1
        return 1 << bits(self.rate, 6, 4), unit, columns

    def groups(self, side):
        group, unit, columns = self.shape(side)
        if columns:
            return -(-self.coded[side] // group) * self.width
        return self.coded[side] * (self.width // unit) * -(-unit // group)

    def plane_width(self, side, plane):
        if self.codec == PLANES:
            return PLANE_BITS[plane]
        return bits(self.rate, 4 * self.as_side(side), 4)

    def room(self):
        """Segments that the table has space for."""
        parts = {KIVI: 2, PLANES: 6}.get(self.codec, 1 if self.parts else 0)
        return self.header["index_count"] + len(self.sides) * self.header["layers"] * (1 + parts)

    def wanted(self):
        """(layer, side, kinds, plane, exact bytes or None, ends its layer, ends its section)."""
        index = self.header["index_count"]
        self.need(index in (0, 1, self.header["layers"]), "index count")
        first = []
        for i in range(index):
            layer = NO_LAYER if index == 1 else i
            first.append([layer, 0, (INDEX,), 0, -(-self.header["logical_tokens"] // 8), 0, 0])
        for layer in range(self.header["layers"]):
            for side in self.sides:
                first += self.wanted_matrix(layer, side)
            first[-1][5] = 1
        sections = [first]
        for plane in range(1, 5):
            for side in (self.first, 1 - self.first) if len(self.sides) == 2 else (0,):
                sections.append(
                    [
                        [layer, side, (DATA,), plane, self.plane_bytes(side, plane), 1, 0]
                        for layer in range(self.header["layers"])
                        if self.planes[layer, side] > plane
                    ]
                )
        for section in sections:
            if section:
                section[-1][6] = 1
        return [want for section in sections for want in section]

    def plane_bytes(self, side, plane):
        return self.coded[side] * self.width // 8 * self.plane_width(side, plane)

    def wanted_matrix(self, layer, side):
        """The segments of one matrix in plane 0."""
        if not self.parts:
            return [[layer, side, (1, 2), 0, None, 0, 0]]
        if self.planes[layer, side] == 0:
            return [[layer, side, (1,), 0, self.tokens * self.row, 0, 0]]
        out = []
        raw = self.tokens - self.coded[side]
        if raw:
            out.append([layer, side, (RAW_TOKENS,), 0, raw * self.row, 0, 0])
        if self.codec in (KIVI, PLANES):
            head = 32 if self.codec == PLANES else 0
            out.append([layer, side, (METADATA,), 0, head + 4 * self.groups(side), 0, 0])
            out.append([layer, side, (DATA,), 0, self.plane_bytes(side, 0), 0, 0])
        else:
            out.append([layer, side, (DATA,), 0, None, 0, 0])
        return out


def half(value):
    """Rounded to fp16."""
    try:
        return struct.unpack("<e", struct.pack("<e", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


@functools.cache
def e4m3(word):
    """The byte nearest to a finite bf16, of two as near the even one."""
    size = struct.unpack("<f", struct.pack("<I", (word & 0x7FFF) << 16))[0]
    near = min(range(0x7F), key=lambda x: (abs(e4m3_value(x) - min(size, 448.0)), x & 1))
    return bytes([word >> 8 & 0x80 | near])


def e4m3_value(byte):
    """The value of a byte without a sign."""
    exponent, mantissa = byte >> 3, byte & 7
    return mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


def store(dtype, value):
    """An fp32 value, given exactly, as the bytes of an element."""
    if dtype == "fp16":
        (single,) = struct.unpack("<f", struct.pack("<f", value))
        return struct.pack("<e", single)
    packed = struct.pack("<f", value)
    if dtype == "fp32":
        return packed
    word = int.from_bytes(packed, "little")
    word = (word + 0x7FFF + (word >> 16 & 1)) >> 16 & 0xFFFF
    return e4m3(word) if dtype == "fp8" else word.to_bytes(2, "little")


def unpack_plane(data, width, count):
    """The codes of one plane, token-major."""
    out = []
    at = 0
    for chunk in range(0, count, 64):
        n = min(64, count - chunk)
        size = n * width // 8
        part = data[at : at + size]
        at += size
        if width == 1:
            out += [part[i // 8] >> i % 8 & 1 for i in range(n)]
        else:
            mask = (1 << width) - 1
            out += [part[i % size] >> width * (i // size) & mask for i in range(n)]
    return out


def level_of(planes, table, code):
    """What the upper bits of a fine code stand for, in steps of the scale."""
    if planes == 1:
        return table[code]
    if planes == 2:
        return table[4 + code]
    if planes == 3:
        return float(code)
    if planes == 4:
        if code in (0, 63):
            return 0.0 if code == 0 else 15.0
        return min(max(16 * code - 24, 8 * code + 3), 8 * code + 453) / 64
    return min(max(4 * code - 30, 2 * code), 2 * code + 450) / 64


def decode_groups(plan, layer, side, dtype, metadata, planes):
    """The coded tokens of a matrix of kivi or planes."""
    count = plan.coded[side] * plan.width
    groups = plan.groups(side)
    head = 32 if plan.codec == PLANES else 0
    table = struct.unpack("<16e", metadata[:32]) if head else ()
    plan.need(not any(metadata[24:head]), "zeros after the centroids")
    plan.need(all(0 <= level <= 15 for level in table[:12]), "centroids")
    minima = struct.unpack_from(f"<{groups}e", metadata, head)
    scales = struct.unpack_from(f"<{groups}e", metadata, head + 2 * groups)
    codes = [0] * count
    for plane, data in enumerate(planes):
        width = plan.plane_width(side, plane)
        for i, code in enumerate(unpack_plane(data, width, count)):
            codes[i] = codes[i] << width | code
    group, unit, columns = plan.shape(side)
    per_unit = -(-unit // group)
    out = bytearray()
    for i, code in enumerate(codes):
        token, channel = divmod(i, plan.width)
        if columns:
            g = token // group * plan.width + channel
        else:
            inner = (channel // unit) * per_unit + channel % unit // group
            g = token * (plan.width // unit) * per_unit + inner
        if plan.codec == PLANES:
            code = level_of(plan.planes[layer, side], table, code)
        product = scales[g] * code
        if plan.codec == KIVI and plan.mode == 2:
            out += store(dtype, half(half(product) + minima[g]))
        else:
            out += store(dtype, product + minima[g])
    return bytes(out)
