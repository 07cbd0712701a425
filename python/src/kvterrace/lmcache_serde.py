# SPDX-License-Identifier: Apache-2.0
"""kvterrace's codecs as a serde of LMCache, before any of its second levels (docs/ENGINES.md):

    {"type": "fs", "base_path": "/cache",
     "serde": {"type": "kvterrace", "variant": "planes:k8v8,g64", "head_dim": 128,
               "revision": "sha256:9f2c"}}

LMCache's configuration names a serde and no module, so the process imports this one, or
kvterrace.lmcache, before LMCache makes its levels.
"""

from . import codec
from ._convert import variant_of
from ._engines import Engine, Parameters, installed, need_identity
from ._errors import wrong
from ._kvt import ffi, lib
from ._lmcache_objects import Keys, Layouts

TESTED = ("0.5.6",)

with Engine("LMCache", installed("lmcache"), TESTED) as engine:
    from lmcache.v1.distributed.serde.async_processor import AsyncSerdeProcessor
    from lmcache.v1.distributed.serde.base import Deserializer, Serializer
    from lmcache.v1.distributed.serde.factory import (
        get_registered_serde_types, register_serde_factory)

_ALIGN = lib.KVT_CODING_ALIGN


class _Coder:
    """Layouts, keys and the variant, as both directions have them."""

    def __init__(self, variant, head_dim, revision):
        self._layouts, self._keys = Layouts(head_dim), Keys(revision, b"lmcache serde")
        self.variant = variant

    def layouts(self, item):
        """The layouts of an object's groups, which lie one after the other."""
        return self._layouts.of(item, item.get_size())[0]

    def layouts_of(self, about):
        return self._layouts.made(tuple(about.shapes), tuple(about.dtypes))

    def variant_of(self, layout):
        """Bytes have no shape: they take the codec that loses nothing."""
        return "lossless" if layout.dtype == "opaque" else self.variant

    def key(self, key):
        return self._keys.join([key])


def _memory(item, writable=False):
    view = memoryview(item.byte_array).cast("B")
    if writable and view.readonly:
        raise wrong("the object is read-only")
    return view


class KvterraceSerializer(Serializer):
    """An object as one record for each of its groups; each states the object's key."""

    def __init__(self, coder):
        self._coder = coder

    def serialize(self, src, dst, key):
        source, target = _memory(src), _memory(dst, True)
        name, at, written = self._coder.key(key), 0, 0
        for layout in self._coder.layouts(src):
            data, room = source[at:at + layout.bytes], target[written:]
            variant = self._coder.variant_of(layout)
            if int(ffi.cast("uintptr_t", ffi.from_buffer(room))) % _ALIGN == 0:
                written += codec.encode_into(room, data, layout, variant, key=name)
            else:
                record = codec.encode(data, layout, variant, key=name)
                if len(record) > len(room):
                    raise wrong(f"a record of {len(record)} bytes has room for {len(room)}")
                room[:len(record)] = record
                written += len(record)
            at += layout.bytes
        return written

    def estimate_serialized_size(self, layout_desc):
        return sum(codec.bound(layout, self._coder.variant_of(layout))
                   for layout in self._coder.layouts_of(layout_desc))


class KvterraceDeserializer(Deserializer):
    """The object that records are of. One that is damaged, or of another key or shape, is an
    exception, which LMCache takes for a failed load."""

    def __init__(self, coder):
        self._coder = coder

    def deserialize(self, src, dst, key):
        source, target = _memory(src), _memory(dst, True)
        name, at, read = self._coder.key(key), 0, 0
        for layout in self._coder.layouts(dst):
            record = source[read:]
            about = codec.inspect(record)
            if about.layout != layout:
                raise wrong(f"the record is of {about.layout}, the object of {layout}")
            codec.decode_into(record[:about.record_bytes], target[at:at + layout.bytes], key=name)
            at, read = at + layout.bytes, read + about.record_bytes


def make_processor(parameters):
    """What LMCache calls with the members of "serde": variant (lossless), head_dim, which lossy
    variants need, revision, and max_workers (1). revision names the model's and whatever else
    decides KV, and has no default: a serde is not told whether the level behind it outlives the
    process."""
    given = Parameters(parameters, "kvterrace.lmcache_serde")
    revision = given.take("revision", str)
    need_identity("kvterrace.lmcache_serde", "the level behind it", "revision", given=revision)
    coder = _Coder(given.take("variant", str, "lossless"), given.take("head_dim", int, 0, 1),
                   revision)
    workers = given.take("max_workers", int, 1, 1)
    given.end()
    variant_of(coder.variant)  # a name that there is
    return AsyncSerdeProcessor(KvterraceSerializer(coder), KvterraceDeserializer(coder),
                               max_workers=workers)


engine.check(KvterraceSerializer, KvterraceDeserializer,
             calls=[(AsyncSerdeProcessor, "max_workers")])
if "kvterrace" not in get_registered_serde_types():
    register_serde_factory("kvterrace", make_processor)
