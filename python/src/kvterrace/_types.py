# SPDX-License-Identifier: Apache-2.0
"""What names an entry, what its bytes are, and where they lie: Key, Space, Layout, View."""

import threading
from dataclasses import dataclass

from . import _native
from ._convert import DTYPE_NAMES, DTYPES, new
from ._errors import encoded, failure, wrong
from ._kvt import ffi, lib
from ._memory import memory_of

_ORDERS = {"layer_side": lib.KVT_ORDER_LAYER_SIDE, "side_layer": lib.KVT_ORDER_SIDE_LAYER}
# What others call the element types of a Layout.
DTYPE_SPELLINGS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32",
                   "float": "fp32"}
_ORDER_NAMES = {number: name for name, number in _ORDERS.items()}


def element_name(dtype):
    """An element type as Layout has it, where it is one under another name, as of torch."""
    name = str(dtype).removeprefix("torch.")
    return DTYPE_SPELLINGS.get(name, name)


def _named(dtype):
    """The same of what a caller gives: a text, or torch's own object."""
    torches = isinstance(dtype, str) or type(dtype).__module__ == "torch"
    return element_name(dtype) if torches else dtype


class Key(bytes):
    """The 32 bytes that name an entry. Plain bytes of that length are taken wherever a Key is."""

    __slots__ = ()

    def __new__(cls, value):
        try:
            return super().__new__(cls, check_key(bytes(value) if not isinstance(value, int)
                                                  else b""))
        except TypeError as error:
            raise wrong(f"a key is 32 bytes, not {type(value).__name__}") from error

    @property
    def space(self):
        """The number of the key's space, as of Space.id."""
        return int.from_bytes(self[:8], "big")

    def __repr__(self):
        return f"Key({self.hex()})"

    __str__ = __repr__


def check_key(key):
    """The key as bytes, or ArgumentError."""
    if not isinstance(key, bytes):
        raise wrong(f"a key is 32 bytes, not {type(key).__name__}")
    if len(key) != 32:
        raise wrong(f"a key has 32 bytes, not {len(key)}")
    return key


def join_keys(keys):
    """The keys one after the other, and how many."""
    if not isinstance(keys, (list, tuple)):
        keys = list(keys)
    joined = _native.join(keys)
    if joined is None:
        joined = b"".join([check_key(key) for key in keys])
    return joined, len(keys)


def _space_from(fields):
    """A Space of another process."""
    return Space(**fields)


class Space:
    """Everything beside the tokens that decides an entry's bytes; makes keys of names.

    model names the weights and is needed. Further texts: revision, dtype, salt; numbers, left out
    for not said: block_tokens, layers, kv_heads, head_dim, sides, tensor_rank, tensor_ranks,
    pipeline_rank, pipeline_ranks; order is "layer_side" or "side_layer". extra: whatever else
    decides, as bytes. Two spaces are the same when every field is, letter by letter; a dtype
    that Layout has is the same under its other names ("bfloat16", torch.bfloat16). A store that is
    opened for another model, dtype or block size has another space, so its keys miss.
    """

    _TEXTS = ("model", "revision", "dtype", "salt")
    _NUMBERS = ("block_tokens", "layers", "kv_heads", "head_dim", "sides", "tensor_rank",
                "tensor_ranks", "pipeline_rank", "pipeline_ranks")

    def __init__(self, *, order="layer_side", extra=b"", **fields):
        space, keep = new("kvt_space"), []
        if "dtype" in fields:
            fields["dtype"] = _named(fields["dtype"])
        if fields.get("block_tokens") == 0:
            raise wrong("block_tokens is the tokens of an entry; it is left out where they vary")
        for name, value in fields.items():
            if name in self._TEXTS:
                keep.append(ffi.new("char[]", encoded(value, name)))
                setattr(space, name, keep[-1])
            elif name in self._NUMBERS:
                if not isinstance(value, int) or not 0 <= value < 1 << 32:
                    raise wrong(f"{name} is a number from 0 to 2^32 - 1")
                setattr(space, name, value)
            else:
                raise TypeError(f"Space has no field {name!r}; it has "
                                f"{', '.join(self._TEXTS + self._NUMBERS)}, order, extra")
        if not fields.get("model"):
            raise wrong("a space names its model: KV of two models that have no name would be one")
        if order not in _ORDERS:
            raise wrong(f"order is one of {', '.join(_ORDERS)}, not {order!r}")
        space.order = _ORDERS[order]
        if extra:
            if not isinstance(extra, bytes):
                raise wrong("extra is bytes")
            keep.append(ffi.from_buffer("char[]", extra))
            space.extra, space.extra_bytes = keep[-1], len(extra)
        self._hash = ffi.new("kvt_space_hash *")
        status = lib.kvt_space_make(space, self._hash)
        if status != lib.KVT_OK:
            raise failure(status, "a field of the space is out of range")
        self.fields = dict(fields, order=order, extra=extra)

    def __reduce__(self):
        return _space_from, (self.fields,)

    @property
    def hash(self):
        """The 32 bytes of the hash over all fields."""
        return bytes(ffi.buffer(self._hash.bytes))

    @property
    def id(self):
        """The number by which a store counts and clears the entries of this space."""
        return lib.kvt_space_id(self._hash)

    def key(self, name, group=0):
        """The key of a name: the engine's hash of a block, 1 to 4096 bytes. group tells groups of
        layers apart that are entries of their own."""
        if isinstance(name, str):
            name = encoded(name, "a name")
        if not isinstance(name, (bytes, bytearray, memoryview)):
            raise wrong(f"a name is bytes or text, not {type(name).__name__}")
        name, key = bytes(name), ffi.new("kvt_key *")
        if not isinstance(group, int) or not 0 <= group < 1 << 32:
            raise wrong("group is a number from 0 to 2^32 - 1")
        status = lib.kvt_key_make(self._hash, name, len(name), group, key)
        if status != lib.KVT_OK:
            raise failure(status, f"a name has 1 to {lib.KVT_NAME_MAX} bytes, not {len(name)}")
        return Key(bytes(ffi.buffer(key)))

    def __repr__(self):
        return f"Space({', '.join(f'{name}={value!r}' for name, value in self.fields.items())})"


@dataclass(frozen=True)
class Layout:
    """What an entry's bytes are: layers x sides x tokens x kv_heads x head_dim elements.

    dtype is "fp16", "bf16", "fp32", "fp8" (E4M3) or "opaque", or a name of torch's for one; sides
    is 2 for K and V, 1 for one matrix a layer that is coded as K, 3 for V alone. order is
    "layer_side", [layer][K then V][token][head][dim], or "side_layer", [K then
    V][layer][token][head][dim]. An opaque entry has opaque_bytes alone: it is kept as bytes, by the
    raw and lossless codecs.
    """

    layers: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    dtype: str = "opaque"
    tokens: int = 0
    sides: int = 2
    order: str = "layer_side"
    tokens_may_drop: bool = False
    opaque_bytes: int = 0

    def __post_init__(self):
        object.__setattr__(self, "dtype", _named(self.dtype))
        if self.dtype not in DTYPES:
            raise wrong(f"dtype is one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.order not in _ORDERS:
            raise wrong(f"order is one of {', '.join(_ORDERS)}, not {self.order!r}")
        try:
            made = ffi.new("kvt_layout *", {
                "layers": self.layers, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
                "dtype": DTYPES[self.dtype], "order": _ORDERS[self.order], "tokens": self.tokens,
                "tokens_may_drop": int(self.tokens_may_drop),
                "sides": self.sides if self.dtype != "opaque" else 0,
                "opaque_bytes": self.opaque_bytes})
        except (OverflowError, TypeError) as error:
            names = ("layers", "kv_heads", "head_dim", "tokens", "sides", "opaque_bytes")
            bad = [f"{name} is {getattr(self, name)!r}" for name in names
                   if type(getattr(self, name)) is not int or getattr(self, name) < 0]
            raise wrong("a number of the layout is out of range: "
                        f"{', '.join(bad) or error}") from error
        size = ffi.new("uint64_t *")
        status = lib.kvt_layout_bytes(made, size)
        if status != lib.KVT_OK:
            raise failure(status, f"no entry has the layout {self}")
        object.__setattr__(self, "_made", made)
        object.__setattr__(self, "_bytes", size[0])

    @classmethod
    def opaque(cls, size):
        """The layout of bytes that nobody knows the shape of."""
        return cls(opaque_bytes=size)

    @property
    def bytes(self):
        """Bytes of a whole entry in a packed buffer."""
        return self._bytes

    def __reduce__(self):
        return Layout, tuple(getattr(self, name) for name in self.__dataclass_fields__)


def layout_from(made):
    """The Layout of a kvt_layout."""
    if made.dtype == lib.KVT_DTYPE_OPAQUE:
        return Layout(opaque_bytes=made.opaque_bytes)
    return Layout(made.layers, made.kv_heads, made.head_dim, DTYPE_NAMES[made.dtype], made.tokens,
                  made.sides or lib.KVT_SIDES_BOTH, _ORDER_NAMES[made.order],
                  bool(made.tokens_may_drop))


class View:
    """Where an entry lies in an engine's memory: buffers, strides and a block table.

    View.axes is for a pool whose axes follow each other; View.strided for any strides in bytes;
    View.packed for one buffer in the layout's order. A view keeps its buffers exported until
    release(), which an engine calls before it closes its pool; calls that are under way keep them
    until they end.
    """

    def __init__(self, view, memories, layout, keep=()):
        self._view, self._memories, self.layout = view, memories, layout
        self._keep, self._users, self._lock = keep, 0, threading.Lock()
        self._writable = all(memory.writable for memory in memories)
        view.dtype = layout._made.dtype
        message = ffi.new("char[256]")
        status = lib.kvt_view_check(view, layout._made, message, 256)
        if status != lib.KVT_OK:
            text = ffi.string(message).decode()
            self.release()
            raise failure(status, text)

    @classmethod
    def packed(cls, layout, buffer):
        """The view of a packed buffer of layout.bytes."""
        memory = memory_of(buffer)
        memory.check_kind(layout.dtype)
        if memory.bytes != layout.bytes:
            raise wrong(f"the buffer has {memory.bytes} bytes, the layout {layout.bytes}")
        view = ffi.new("kvt_view *", lib.kvt_view_packed(memory.address, memory.bytes))
        return cls(view, [memory], layout)

    @classmethod
    def axes(cls, layout, axes, buffers, *, tokens_per_block=0, pool_blocks=None, blocks=None,
             first_slot=0):
        """The view of an entry in a pool.

        axes names the pool's axes, outermost first: l layer, s side (K, V), b block, t token,
        h head; the elements of a head come last and have no letter. buffers: one buffer, or one for
        each axis of l and s that has no letter: [K, V], [layer 0, ...], or [layer 0's K, layer 0's
        V, ...]. tokens_per_block 0: the pool has no blocks. pool_blocks: blocks of the pool (tokens
        without blocks); None: as many as fill the first buffer. blocks: the entry's block numbers
        in order; None: 0, 1, 2 ... first_slot: of the first token in its block.
        """
        named = encoded(axes, "axes")
        memories, view = _memories(buffers, layout), new("kvt_view")
        if pool_blocks is None:
            pool_blocks = _count_blocks(layout, axes, tokens_per_block, memories)
        try:
            status = lib.kvt_view_make(layout._made, named, tokens_per_block, pool_blocks,
                                       view)
        except OverflowError as error:
            raise wrong(f"a number of the view is out of range: {error}") from error
        if status != lib.KVT_OK:
            raise failure(status, f"no pool has the axes {axes!r} for this layout")
        return cls._place(view, memories, layout, blocks, first_slot, True)

    @classmethod
    def strided(cls, layout, buffers, *, bases="one", layer_stride=0, side_stride=0,
                block_stride=0, token_stride=0, head_stride=0, tokens_per_block=0, blocks=None,
                first_slot=0):
        """The view with strides in bytes. bases says what has buffers of its own: "one", "sides",
        "layers" or "layers_sides"."""
        kinds = {"one": lib.KVT_BASES_ONE, "sides": lib.KVT_BASES_SIDES,
                 "layers": lib.KVT_BASES_LAYERS, "layers_sides": lib.KVT_BASES_LAYERS_SIDES}
        if bases not in kinds:
            raise wrong(f"bases is one of {', '.join(kinds)}, not {bases!r}")
        memories, view = _memories(buffers, layout), new("kvt_view")
        try:
            view.bases_kind, view.layer_stride, view.side_stride = (kinds[bases], layer_stride,
                                                                    side_stride)
            view.block_stride, view.token_stride = block_stride, token_stride
            view.head_stride, view.tokens_per_block = head_stride, tokens_per_block
        except (OverflowError, TypeError) as error:
            raise wrong(f"a number of the view is out of range: {error}") from error
        return cls._place(view, memories, layout, blocks, first_slot, False)

    @classmethod
    def _place(cls, view, memories, layout, blocks, first_slot, expected):
        keep = []
        if view.bases_kind in (lib.KVT_BASES_ONE, lib.KVT_BASES_SIDES):
            wanted = 1 if view.bases_kind == lib.KVT_BASES_ONE else 2
            _need(memories, wanted)
            for index, memory in enumerate(memories):
                _fits(memory, view.base_bytes[index] if expected else 0)
                view.base[index], view.base_bytes[index] = memory.address, memory.bytes
        else:
            sides = lib.kvt_layout_sides(layout._made)
            _need(memories, layout.layers * (sides if view.bases_kind == lib.KVT_BASES_LAYERS_SIDES
                                             else 1))
            for memory in memories:
                _fits(memory, view.base_bytes[0] if expected else 0)
            keep.append(ffi.new("void *[]", [memory.address for memory in memories]))
            keep.append(ffi.new("uint64_t[]", [memory.bytes for memory in memories]))
            view.bases, view.bases_bytes = keep[0], keep[1]
        try:
            if blocks is not None:
                table = ffi.new("uint32_t[]", list(blocks))
                keep.append(table)
                view.blocks, view.block_count = table, len(table)
            view.first_slot = first_slot
        except (OverflowError, TypeError) as error:
            raise wrong(f"a number of the view is out of range: {error}") from error
        return cls(view, memories, layout, keep)

    @property
    def writable(self):
        """Whether an entry can be read into it."""
        return self._writable

    def release(self):
        """Gives the buffers back, at once or when the calls that use them have ended. No further
        call takes the view. A second release does nothing."""
        with self._lock:
            self._view = None
            if self._users:
                return
            memories, self._memories = self._memories, []
        for memory in memories:
            memory.release()

    def _hold(self, writable):
        """The kvt_view, for a call that ends with _drop."""
        with self._lock:
            if self._view is None:
                raise wrong("the view is released")
            if writable and not self._writable:
                raise wrong("the view's memory is read-only")
            self._users += 1
            return self._view

    def _drop(self):
        with self._lock:
            self._users -= 1
            over = self._view is None and self._users == 0
        if over:
            self.release()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


def _memories(buffers, layout):
    several = isinstance(buffers, (list, tuple))
    memories = [memory_of(one) for one in (buffers if several else [buffers])]
    for memory in memories:
        memory.check_kind(layout.dtype)
    return memories


def _need(memories, count):
    if len(memories) != count:
        raise wrong(f"the view has {count} buffers, not {len(memories)}")


def _fits(memory, size):
    if memory.bytes < size:
        raise wrong(f"a buffer has {memory.bytes} bytes, the pool needs {size}")


def _count_blocks(layout, axes, tokens_per_block, memories):
    """Blocks (or tokens) that the first buffer has room for."""
    row = layout.kv_heads * layout.head_dim * {"fp16": 2, "bf16": 2, "fp32": 4}.get(layout.dtype, 1)
    unit = row * max(tokens_per_block, 1)
    unit *= layout.layers if "l" in axes else 1
    unit *= 2 if "s" in axes and layout.sides == lib.KVT_SIDES_BOTH else 1
    return memories[0].bytes // unit if unit and memories else 0
