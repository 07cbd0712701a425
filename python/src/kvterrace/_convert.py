# SPDX-License-Identifier: Apache-2.0
"""Structs of the library as plain dicts, lists, numbers and texts."""

from ._errors import encoded, wrong
from ._kvt import ffi, lib

TIERS = {"none": lib.KVT_TIER_NONE, "hbm": lib.KVT_TIER_HBM, "dram": lib.KVT_TIER_DRAM,
         "ssd": lib.KVT_TIER_SSD}
TIER_NAMES = {number: name for name, number in TIERS.items()} | {lib.KVT_TIER_REMOTE: "remote"}
DTYPES = {"opaque": lib.KVT_DTYPE_OPAQUE, "fp16": lib.KVT_DTYPE_FP16, "bf16": lib.KVT_DTYPE_BF16,
          "fp32": lib.KVT_DTYPE_FP32, "fp8": lib.KVT_DTYPE_FP8}
DTYPE_NAMES = {number: name for name, number in DTYPES.items()}
_HIDDEN = {"struct_size", "reserved", "reserved2", "reserved3"}
NO_DEADLINE = lib.KVT_NO_DEADLINE


def new(kind):
    """A cleared struct whose struct_size is set."""
    item = ffi.new(f"{kind} *")
    item.struct_size = ffi.sizeof(kind)
    return item


def variant_name(variant):
    """The name of a variant, such as "kivi:k4v4,g64"."""
    text = ffi.new("char[128]")
    lib.kvt_variant_format(variant, text, 128)
    return ffi.string(text).decode()


def variant_of(name):
    """The kvt_variant * of a name, or ArgumentError."""
    made = ffi.new("kvt_variant *")
    if lib.kvt_variant_parse(encoded(name, "the name of a variant"), made) != lib.KVT_OK:
        raise wrong(f"there is no variant {name!r}")
    return made


def plain(value):
    """A C value in Python's terms. Members of a struct keep their names; an array by tier becomes a
    dict by the tier's name; a variant becomes its name, a key its bytes."""
    if not isinstance(value, ffi.CData):
        return value
    kind = ffi.typeof(value)
    if kind.kind == "struct":
        name = kind.cname.removeprefix("struct ")
        if name == "kvt_variant":
            return variant_name(value)
        if name == "kvt_key":
            return bytes(ffi.buffer(value.bytes))
        return {name: _member(name, field, getattr(value, name)) for name, field in kind.fields
                if name not in _HIDDEN}
    if kind.kind == "array":
        if kind.item.cname == "char":
            return ffi.string(value).decode(errors="replace")
        if kind.length == lib.KVT_TIER_PLACES:
            return {name: plain(value[number]) for name, number in TIERS.items()}
        return [plain(item) for item in value]
    if kind.kind == "pointer":
        if value == ffi.NULL:
            return None
        return ffi.string(value).decode() if kind.item.cname == "char" else None
    if kind.kind == "enum":
        return int(value)
    return value


def _member(name, field, value):
    if name in ("tier", "source_tier"):
        return TIER_NAMES.get(int(value), "none")
    if field.type.cname == "int" and name in ("status", "overall"):
        return ffi.string(lib.kvt_status_name(value)).decode()
    return plain(value)
