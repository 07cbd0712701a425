# SPDX-License-Identifier: Apache-2.0
"""Single records: an entry's bytes into one self-describing record, and back, without a store.

    from kvterrace import Layout, codec

    layout = Layout(layers=32, kv_heads=8, head_dim=128, dtype="bf16", tokens=256)
    record = codec.encode(kv, layout, "planes:k4v4,g64")    # a memoryview; send or keep its bytes
    codec.decode_into(record, kv_again)                     # the record knows its layout
    coarser = codec.derive(record, "planes:k2v2,g64")       # without the entry

    basis = codec.Basis.open("model-layer.kvtbasis")        # learnt once per model
    record = codec.encode(kv, layout, basis.variant(2), bases=[basis])
    codec.decode(record, bases=[basis])

For those who keep the bytes themselves: a serialiser between engines, a transport, a tool. Entries
and targets are contiguous buffers or DLPack tensors and are not copied. Records are bytes of any
kind; one that does not begin at a multiple of 64 bytes in memory, as most `bytes` do, is copied
once before it is read. What `encode` and `derive` give is aligned.

A record that is damaged is a CorruptError: nothing that a checksum does not vouch for is given out
as an entry. The content of a target is undefined after an exception. No thread changes a buffer
while a call uses it. Calls run without the interpreter's lock, on the calling thread.
"""

import mmap
from typing import NamedTuple

from ._convert import new, variant_name, variant_of
from ._errors import failure, wrong
from ._kvt import ffi, lib
from ._memory import Memory, memory_of
from ._types import Key, Layout, check_key, layout_from

__all__ = ["Basis", "Info", "bound", "decode", "decode_into", "derive", "encode", "encode_into",
           "inspect", "kept_tokens"]

_ALIGN = lib.KVT_CODING_ALIGN
_allocate = ffi.new_allocator(should_clear_after_alloc=False)


class Info(NamedTuple):
    """The description that a record carries of itself. Sizes are bytes."""

    layout: Layout  # of the entry as it was given; opaque for a record of groups of layers
    variant: str  # that it is stored in: "raw" where nothing shrank
    key: Key
    generation: int
    first_position: int  # of the entry's first token in its sequence
    record_bytes: int
    payload_bytes: int  # of them without heads and padding
    source_bytes: int
    decoded_bytes: int  # fewer than source_bytes after a drop of tokens
    stored_tokens: int
    segments: int
    raw_segments: int  # that are stored as they are
    groups: int  # 0 for a record of one layout
    bits_per_element: float
    basis: str | None = None  # the hash of the basis that decoding needs, in hexadecimal


class _Aligned:
    """Memory of the package's own whose address is a multiple of 64; nothing for no bytes."""

    def __init__(self, size):
        self.keep = _allocate("char[]", size + _ALIGN) if size else None
        self.address, self.bytes = ffi.NULL, size
        if size:
            first = int(ffi.cast("uintptr_t", self.keep))
            self.address = self.keep + (-first) % _ALIGN


class _Borrowed:
    """Buffers that a call holds, given back when its with statement ends."""

    def __init__(self):
        self._held = []

    def take(self, source, writable=False):
        memory = memory_of(source, writable)
        if not isinstance(source, Memory):
            self._held.append(memory)
        return memory

    def record(self, source):
        """The memory of a record that is read, copied where it is not aligned."""
        memory = self.take(source)
        if memory.bytes == 0:
            raise wrong("the record is empty")
        if int(ffi.cast("uintptr_t", memory.address)) % _ALIGN == 0:
            return memory
        copy = _Aligned(memory.bytes)
        ffi.memmove(copy.address, memory.address, memory.bytes)
        return copy

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for memory in self._held:
            memory.release()


_SPANS = {lib.KVT_BASIS_HEAD: "head", lib.KVT_BASIS_LAYER: "layer",
          lib.KVT_BASIS_LAYERS4: "layers4"}


class Basis:
    """A basis of the transform codec, read and checked. Nothing changes it; any thread may use it.

    hash: its name in hexadecimal. span: "head", "layer" or "layers4", the elements that are coded
    together. layers, kv_heads, head_dim, rotary_dim, sides: of the entries that it is for. model,
    tokens, digest: of what it was learnt on. bytes: of the object.
    """

    __slots__ = ("hash", "span", "layers", "kv_heads", "head_dim", "rotary_dim", "sides", "model",
                 "tokens", "digest", "bytes", "_keep", "_view")

    def __init__(self, data):
        """data: a whole .kvtbasis object in any buffer. It is copied unless it begins at a multiple
        of 64 bytes, and held as long as the Basis lives: do not change it. CorruptError."""
        memory = memory_of(data)
        if memory.bytes == 0:
            raise wrong("the basis is empty")
        if int(ffi.cast("uintptr_t", memory.address)) % _ALIGN != 0:
            copy = _Aligned(memory.bytes)
            ffi.memmove(copy.address, memory.address, memory.bytes)
            memory = copy
        room, info = _Aligned(lib.KVT_CODING_BASIS_BYTES), new("kvt_coding_basis_info")
        view = ffi.new("kvt_coding_basis **")
        status = lib.kvt_coding_basis_read(memory.address, memory.bytes, room.address, info, view)
        if status != lib.KVT_OK:
            raise failure(status, "the bytes are no sound basis")
        self._keep, self._view = (memory, room), view[0]
        self.hash = bytes(ffi.buffer(info.hash)).hex()
        self.span, self.bytes = _SPANS[info.span], memory.bytes
        self.layers, self.kv_heads, self.head_dim = info.layers, info.kv_heads, info.head_dim
        self.rotary_dim, self.sides, self.tokens = info.rotary_dim, info.sides, info.tokens
        self.digest = bytes(ffi.buffer(info.digest)).hex()
        self.model = ffi.string(info.model).decode(errors="replace")

    @classmethod
    def open(cls, path):
        """The basis of a file, which is read whole. OSError: it cannot be."""
        with open(path, "rb") as file:
            return cls(file.read())

    def variant(self, step=0.5):
        """The name of the variant that codes with this basis: a step in the basis's unit, 1/64 to
        15, rounded to 64ths."""
        name = f"transform:{self.hash[:5].upper()},s{step}"
        return variant_name(variant_of(name)[0])

    def __repr__(self):
        return f"Basis({self.hash[:5].upper()}, {self.span}, {self.model!r})"


def _set_bases(target, bases):
    """Gives bases to a kvt_coding or kvt_decoding; returns what they lie in while it is used."""
    if isinstance(bases, (Basis, str, bytes)):
        raise wrong(f"bases are a list of Basis, not {type(bases).__name__}")
    try:
        bases = list(bases)
    except TypeError as error:
        raise wrong(f"bases are a list of Basis: {error}") from error
    if any(not isinstance(basis, Basis) for basis in bases):
        raise wrong("bases are a list of Basis")
    views = ffi.new("kvt_coding_basis *[]", [basis._view for basis in bases])
    target.bases, target.basis_count = views, len(bases)
    return views, bases


def _floats(values, what, kind):
    try:
        return ffi.new(f"{kind}[]", [item for row in values for item in row])
    except (TypeError, OverflowError) as error:
        raise wrong(f"{what} are rows of numbers: {error}") from error


def _coding(layout, variant, key, generation, first_position, sink_tokens, recent_tokens,
            chain_tokens, scores, levels, bases):
    """The kvt_coding, and what it points to."""
    if not isinstance(layout, Layout):
        raise wrong(f"layout is a Layout, not {type(layout).__name__}")
    coding, keep = new("kvt_coding"), []
    coding.layout, coding.variant = layout._made[0], variant_of(variant)[0]
    if key is not None:
        ffi.memmove(coding.key.bytes, check_key(key), 32)
    try:
        coding.generation, coding.first_position = generation, first_position
        coding.recent_tokens, coding.chain_tokens = recent_tokens, chain_tokens
        if sink_tokens is not None:
            coding.sink_tokens = sink_tokens or lib.KVT_CODING_NO_SINKS
    except (OverflowError, TypeError) as error:
        raise wrong(f"a number of the coding is out of range: {error}") from error
    if scores is not None:
        scores = list(scores)
        keep.append(_floats(scores, "scores", "float"))
        if any(len(row) != layout.tokens for row in scores):
            raise wrong(f"a row of scores has {layout.tokens} numbers, one for each token")
        coding.scores, coding.score_layers = keep[-1], len(scores)
    if levels is not None:
        levels = list(levels)
        keep.append(_floats(levels, "levels", "int8_t"))
        if len(levels) != layout.layers or any(len(row) != 2 for row in levels):
            raise wrong(f"levels are {layout.layers} rows, one for each layer: of K and of V")
        coding.levels = keep[-1]
    keep.append(_set_bases(coding, bases))
    return coding, keep


def _plan(coding, variant, layout):
    sizes = new("kvt_coding_sizes")
    status = lib.kvt_coding_plan(coding, sizes)
    if status == lib.KVT_E_UNSUPPORTED:
        raise failure(status, f"{variant} does not take {layout}, or not what is asked beside it")
    if status != lib.KVT_OK:
        raise failure(status, "a number of the coding is out of range")
    return sizes


def _encode(coding, sizes, memory, layout, target, capacity):
    memory.check_kind(layout.dtype)
    if memory.bytes != sizes.source_bytes:
        raise wrong(f"the buffer has {memory.bytes} bytes, the layout {sizes.source_bytes}")
    scratch, size = _Aligned(sizes.scratch_bytes), ffi.new("uint64_t *")
    status = lib.kvt_coding_encode(coding, memory.address, memory.bytes, target, capacity,
                                   scratch.address, scratch.bytes, size)
    if status == lib.KVT_E_MISMATCH:
        raise failure(status, f"{variant_name(coding.variant)} needs the basis of that name, which "
                              "is not among the bases")
    if status == lib.KVT_E_SPACE:
        raise failure(status, f"the record does not fit into {capacity} bytes; "
                              f"{sizes.record_bytes} are always enough")
    if status < 0:
        raise failure(status)
    return size[0]


class _Room:
    """An area of its own for a record, of whole pages, cut to the record's size."""

    def __init__(self, size):
        self.area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory = ffi.from_buffer("char[]", self.area, require_writable=True)

    def cut(self, size):
        ffi.release(self.memory)
        self.area.resize(size)
        return memoryview(self.area)


def bound(layout, variant="lossless", *, sink_tokens=None, recent_tokens=0, chain_tokens=0,
          first_position=0, scores=None, levels=None, bases=()):
    """Bytes that a record of such an entry has at most: room for encode_into."""
    coding, _keep = _coding(layout, variant, None, 1, first_position, sink_tokens, recent_tokens,
                            chain_tokens, scores, levels, bases)
    return _plan(coding, variant, layout).record_bytes


def encode(data, layout=None, variant="lossless", *, key=None, generation=1, first_position=0,
           sink_tokens=None, recent_tokens=0, chain_tokens=0, scores=None, levels=None, bases=()):
    """The record of an entry, as a memoryview of memory of its own, a multiple of 4096 bytes.

    data: a contiguous buffer or DLPack tensor of layout.bytes in the layout's order; layout None:
    opaque bytes. variant: a name of codec.h, such as "lossless", "kivi:k4v4,g64",
    "planes:k4v4,g64" or "entropy:k0.25v0.5". key and generation are stated in the record.
    first_position: of the entry's first token in its sequence. Lossy variants store the sequence's
    first sink_tokens raw (None: 4; 0: none), and its last recent_tokens, of chain_tokens in all
    (0: the entry is the sequence's end). scores: for drop:scores, one row of a number for each
    token, or one row for each layer. levels: for planes, a row of [K, V] for each layer, planes
    more or fewer, -3 to 3. bases: for transform, a list with the Basis that the variant names.

    Where nothing shrinks the record is a raw one. ArgumentError, UnsupportedError; MismatchError:
    the variant's basis is not in the list.
    """
    with _Borrowed() as borrowed:
        memory = borrowed.take(data)
        if layout is None and memory.bytes == 0:
            raise wrong("the buffer is empty")
        layout = Layout.opaque(memory.bytes) if layout is None else layout
        coding, _keep = _coding(layout, variant, key, generation, first_position, sink_tokens,
                                recent_tokens, chain_tokens, scores, levels, bases)
        sizes = _plan(coding, variant, layout)
        room = _Room(sizes.record_bytes)
        size = _encode(coding, sizes, memory, layout, room.memory, sizes.record_bytes)
        return room.cut(size)


def encode_into(record, data, layout=None, variant="lossless", *, key=None, generation=1,
                first_position=0, sink_tokens=None, recent_tokens=0, chain_tokens=0, scores=None,
                levels=None, bases=()):
    """Encodes into memory of the caller's, such as an mmap, and returns the record's bytes.

    record: a writable buffer that begins at a multiple of 64 bytes; bound() are always enough, and
    fewer may be: a SpaceError says that they were not. The rest as encode().
    """
    with _Borrowed() as borrowed:
        memory, target = borrowed.take(data), borrowed.take(record, True)
        if layout is None and memory.bytes == 0:
            raise wrong("the buffer is empty")
        if int(ffi.cast("uintptr_t", target.address)) % _ALIGN != 0 or target.bytes == 0:
            raise wrong(f"the memory for a record begins at a multiple of {_ALIGN} bytes")
        layout = Layout.opaque(memory.bytes) if layout is None else layout
        coding, _keep = _coding(layout, variant, key, generation, first_position, sink_tokens,
                                recent_tokens, chain_tokens, scores, levels, bases)
        sizes = _plan(coding, variant, layout)
        return _encode(coding, sizes, memory, layout, target.address, target.bytes)


def _look(memory, verify):
    info = new("kvt_coding_info")
    call = lib.kvt_coding_verify if verify else lib.kvt_coding_inspect
    status = call(memory.address, memory.bytes, info)
    if status != lib.KVT_OK:
        raise failure(status, "the bytes are no sound record")
    return info


def _info(made):
    return Info(layout_from(made.layout), variant_name(made.variant),
                Key(bytes(ffi.buffer(made.key.bytes))), made.generation, made.first_position,
                made.record_bytes, made.payload_bytes, made.source_bytes, made.decoded_bytes,
                made.stored_tokens, made.segment_count, made.raw_segments, made.group_count,
                made.bits_per_element,
                bytes(ffi.buffer(made.basis)).hex() if made.basis_span else None)


def inspect(record, *, verify=False):
    """Reads the description of a record, as an Info. verify: its checksums are compared, too."""
    with _Borrowed() as borrowed:
        return _info(_look(borrowed.record(record), verify))


def _refuse(status, info, bases):
    """The exception of a record that is not decoded: it names the basis that is lacking."""
    needed = bytes(ffi.buffer(info.basis)).hex() if info.basis_span else None
    if status == lib.KVT_E_MISMATCH and needed not in [None, *(basis.hash for basis in bases)]:
        raise failure(status, f"the record needs the basis {needed}, which is not among the bases")
    raise failure(status)


def _decode(memory, info, key, generation, bases, address, size):
    decoding = new("kvt_decoding")
    if key is not None:
        expected = ffi.new("kvt_key *")
        ffi.memmove(expected.bytes, check_key(key), 32)
        decoding.key = expected
    try:
        decoding.generation = generation
    except (OverflowError, TypeError) as error:
        raise wrong(f"generation is out of range: {error}") from error
    keep, scratch = _set_bases(decoding, bases), _Aligned(info.scratch_bytes)
    status = lib.kvt_coding_decode(decoding, memory.address, memory.bytes, address, size,
                                   scratch.address, scratch.bytes)
    if status != lib.KVT_OK:
        _refuse(status, info, keep[1])


def decode(record, *, key=None, generation=1, bases=()):
    """The entry of a record, packed, as a bytearray. key, with its generation: that the record must
    state, else it is a MismatchError, as it is when the Basis that it needs (Info.basis) is not in
    the list. CorruptError."""
    with _Borrowed() as borrowed:
        memory = borrowed.record(record)
        info = _look(memory, False)
        target = bytearray(info.decoded_bytes)
        with ffi.from_buffer("char[]", target, require_writable=True) as address:
            _decode(memory, info, key, generation, bases, address, len(target))
        return target


def decode_into(record, target, *, key=None, generation=1, bases=()):
    """Decodes into a contiguous writable buffer or DLPack tensor of info.decoded_bytes, whose
    elements are those of the record, and returns the Info."""
    with _Borrowed() as borrowed:
        memory, goal = borrowed.record(record), borrowed.take(target, True)
        info = _look(memory, False)
        said = _info(info)
        goal.check_kind(said.layout.dtype)
        if goal.bytes != info.decoded_bytes:
            raise wrong(f"the buffer has {goal.bytes} bytes, the entry {info.decoded_bytes}")
        _decode(memory, info, key, generation, bases, goal.address, goal.bytes)
        return said


def derive(record, variant, *, bases=()):
    """A coarser record of a record, without the entry: planes with fewer planes, entropy at three
    times the step of K, V or both, transform at three times its step. It decodes to what encoding
    the entry so would. UnsupportedError or ArgumentError: the record has no such form.
    MismatchError: the Basis that it needs is not in the list. CorruptError."""
    with _Borrowed() as borrowed:
        memory = borrowed.record(record)
        info, wanted = _look(memory, False), variant_of(variant)[0]
        # Coarser codes are fewer, but a table may be larger: then the bound is asked for.
        coding = new("kvt_coding")
        coding.layout, coding.variant = info.layout, wanted
        sizes = new("kvt_coding_sizes")
        status = lib.kvt_coding_plan(coding, sizes)
        room = _Room(max(info.record_bytes, sizes.record_bytes if status == lib.KVT_OK else 0))
        scratch, size = _Aligned(info.scratch_bytes), ffi.new("uint64_t *")
        decoding = new("kvt_decoding")
        keep = _set_bases(decoding, bases)
        status = lib.kvt_coding_derive(decoding, memory.address, memory.bytes, wanted, room.memory,
                                       len(room.memory), scratch.address, scratch.bytes, size)
        if status == lib.KVT_E_MISMATCH:
            _refuse(status, info, keep[1])
        if status != lib.KVT_OK:
            raise failure(status, f"no {variant} can be made of {variant_name(info.variant)}"
                          if status in (lib.KVT_E_UNSUPPORTED, lib.KVT_E_ARGUMENT) else "")
        return room.cut(size[0])


def kept_tokens(record, layer):
    """The tokens of a layer that a record has, as a list of numbers from 0, ascending."""
    with _Borrowed() as borrowed:
        memory = borrowed.record(record)
        count = _look(memory, False).stored_tokens
        tokens = ffi.new("uint32_t[]", max(count, 1))
        try:
            status = lib.kvt_coding_tokens_read(memory.address, memory.bytes, layer, tokens, count)
        except (OverflowError, TypeError) as error:
            raise wrong(f"layer is out of range: {error}") from error
        if status != lib.KVT_OK:
            raise failure(status, f"the record has no layer {layer}"
                          if status == lib.KVT_E_ARGUMENT else "")
        return list(tokens[0:count])
