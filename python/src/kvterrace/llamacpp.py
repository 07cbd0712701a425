# SPDX-License-Identifier: Apache-2.0
"""llama.cpp: the KV of a sequence, prefix by prefix in chunks of tokens.

    prefixes = kvterrace.llamacpp.Prefixes(store, llm)     # a Llama of llama-cpp-python, or a
    restored = prefixes.restore(tokens)                    # llama_context
    ...                                                    # llama_decode of tokens[restored:]
    prefixes.save(tokens)

    slots = kvterrace.llamacpp.SlotFiles(store, "slots/like.bin", model="model.gguf")
    slots.save("slots/a.bin")                # a file that llama-server saved
    slots.restore(tokens, "slots/b.bin")     # one that it restores

llama.cpp's state of a sequence has cells, then the rows of K, layer by layer, then those of V:

    streams u32; for each: cells u32, and where there are any
      cells x {position i32, sequences u32 = 1, sequence i32}
      V is transposed u32, layers u32, (from version 4 on: sizes of two rotations, u32 each)
      K of each layer: type i32, bytes of a row u64, [cell][row]
      V of each layer: the same, or transposed: type i32, bytes of an element u32, width u32,
      [width][cell][element]

A chunk in the store has rows alone: all else that llama.cpp's parser reads is made here, from what
this context or server writes itself. docs/ENGINES.md has what decides whether a chunk is found.
"""

import array
import contextlib
import ctypes
import hashlib
import os
import re
import struct
import tempfile

from ._errors import Error, refuse, wrong
from ._kvt import ffi
from ._store import put_chunk
from ._types import Layout, Space, View

_FILE_MAGIC, _DATA_MAGIC = 0x67677371, 0xaf143cd8
# Words behind the number of layers, by the format's version.
_VERSIONS = {3: 0, 4: 2}
_DTYPES = {0: "fp32", 1: "fp16", 30: "bf16"}  # of ggml's element types
_FORMS = {1: "B", 2: "H", 4: "I", 8: "Q"}  # numbers of so many bytes
_EXACT = ("raw", "lossless")  # forms that give back what was put
_MOST = 1 << 12  # layers or streams: more are no state
_PARTS = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class _State:
    """Bytes of a state, read from front to back."""

    def __init__(self, data):
        self.data, self.at = memoryview(data), 0

    def take(self, count):
        if count > self.left():
            raise refuse("the state ends early, or is of a kind that has more than rows of K and V")
        self.at += count
        return self.data[self.at - count:self.at]

    def read(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def left(self):
        return len(self.data) - self.at


class _Rows:
    """K or V of one layer: [cell][width][size], or turned: [width][cell][size]."""

    def __init__(self, data, cells, size, width, turned):
        self.data, self.cells, self.size, self.width = data, cells, size, width
        self.turned, self.row = turned, size * width

    def straight(self, first, count):
        """The rows of some cells as they lie; turned ones as a copy without content."""
        if self.turned:
            return memoryview(bytearray(count * self.row))
        return self.data[first * self.row:(first + count) * self.row]

    def copy(self, first, count, other, back=False):
        """Copies rows to other, where cells follow each other, or back from there."""
        if not self.turned:
            mine = self.data[first * self.row:(first + count) * self.row]
            if back:
                mine[:] = other
            else:
                other[:] = mine
            return
        mine, other = self.data.cast(_FORMS[self.size]), other.cast(_FORMS[self.size])
        for index in range(self.width):
            at = index * self.cells + first
            if back:
                mine[at:at + count] = other[index::self.width]
            else:
                other[index::self.width] = mine[at:at + count]

    def ordered(self, order):
        """The rows in another order of cells, not turned."""
        plain, made = self.straight(0, self.cells), bytearray(self.cells * self.row)
        if self.turned:
            self.copy(0, self.cells, plain)
        for index, cell in enumerate(order):
            made[index * self.row:(index + 1) * self.row] = plain[cell * self.row:
                                                                  (cell + 1) * self.row]
        return _Rows(memoryview(made), self.cells, self.row, 1, False)


class _Shape:
    """What of a state is no cell: what llama.cpp's parser compares with its own cache."""

    def __init__(self, version, streams, words, turned, sides):
        """turned: whether V is. sides: K of all layers, then V, as (type, bytes of an element,
        elements of a row) where they are turned, else as (type, bytes of a row, 1)."""
        self.version, self.streams, self.words, self.turned = version, streams, words, turned
        self.sides, self.layers = sides, len(sides[0])
        self.token_bytes = sum(size * width for side in sides for _, size, width in side)

    def named(self):
        """What decides the bytes of a chunk."""
        return repr((self.version, self.words, self.turned, self.sides)).encode()

    def layout(self, tokens, heads):
        """Of a chunk: with elements where all rows are alike and not quantised, else of bytes."""
        kinds = {(kind, size * width) for side in self.sides for kind, size, width in side}
        kind, row = next(iter(kinds))
        elements = row // (4 if kind == 0 else 2)
        if len(kinds) == 1 and kind in _DTYPES and elements % heads == 0:
            with contextlib.suppress(Error):
                return Layout(self.layers, heads, elements // heads, _DTYPES[kind], tokens,
                              sides=len(self.sides))
        return Layout.opaque(tokens * self.token_bytes)

    def make(self, cells, head):
        """A state of so many cells behind `head`, as a bytearray, and its rows, to be filled, by
        layer and side."""
        places = array.array("i", bytes(12 * cells))
        places[0::3], places[1::3] = array.array("i", range(cells)), array.array("i", [1]) * cells
        data, rows = bytearray(head), []
        data += struct.pack("<II", self.streams, cells) + places.tobytes()
        data += struct.pack(f"<{2 + len(self.words)}I", self.turned, self.layers, *self.words)
        for turned, side in zip((False, self.turned), self.sides):
            for kind, size, width in side:
                data += struct.pack("<iII", kind, size, width) if turned else \
                    struct.pack("<iQ", kind, size)
                rows.append((len(data), size, width, turned))
                data += bytes(cells * size * width)
        data += bytes(4 * (self.streams - 1))
        whole = memoryview(data)
        return data, _by_layer([_Rows(whole[at:at + cells * size * width], cells, size, width,
                                      turned) for at, size, width, turned in rows], self.layers)


def _by_layer(rows, layers):
    """K and V of each layer, from K of all and V of all."""
    return [rows[index] for layer in range(layers) for index in range(layer, len(rows), layers)]


def _parse(state, version):
    """(the shape, the rows by layer and side, in order of positions from 0 on) of a state; (None,
    None) where it has no cell."""
    shape, rows = None, None
    streams, = state.read("<I")
    if not 1 <= streams <= _MOST:
        raise refuse(f"the state has {streams} streams")
    for stream in range(streams):
        cells, = state.read("<I")
        if cells == 0:
            continue
        if shape is not None:
            raise refuse("the state has several sequences")
        shape, rows = _parse_stream(state, version, streams, cells, 4 * (streams - 1 - stream))
    if state.left():
        raise refuse("the model keeps more than rows of each token (a sliding window, recurrent "
                     "layers, an index): no later prompt can begin with a part of that")
    return shape, rows


def _parse_stream(state, version, streams, cells, behind):
    """The cells of a stream; behind: bytes of the streams after it."""
    places = state.take(12 * cells).cast("i").tolist()
    order = sorted(range(cells), key=places[0::3].__getitem__)
    if any(count != 1 for count in places[1::3]) or \
            any(places[3 * cell] != position for position, cell in enumerate(order)):
        raise refuse("its tokens are not at the positions from 0 on, one of one sequence at each "
                     "(a context that was shifted, a sliding window, positions of several parts)")
    turned, layers, *words = state.read(f"<{2 + _VERSIONS[version]}I")
    if turned > 1 or not 1 <= layers <= _MOST:
        raise refuse(f"the state has {layers} layers")
    sides, rows = [], []
    for turned_side in (False, bool(turned)):
        if sides and state.left() == behind:
            break  # V is a part of K (MLA)
        side = []
        for _ in range(layers):
            kind, size, width = state.read("<iII") if turned_side else (*state.read("<iQ"), 1)
            if size * width == 0 or (turned_side and size not in _FORMS):
                raise refuse(f"the state has rows of {width} elements of {size} bytes")
            side.append((kind, size, width))
            rows.append(_Rows(state.take(cells * size * width), cells, size, width, turned_side))
        sides.append(tuple(side))
    if order != list(range(cells)):
        rows = [one.ordered(order) for one in rows]
    shape = _Shape(version, streams, tuple(words), bool(turned), tuple(sides))
    return shape, _by_layer(rows, layers)


def _digest(model):
    """32 bytes that stand for a GGUF, all parts of it."""
    found = _PARTS.search(model)
    paths = [model] if found is None else [
        f"{model[:found.start()]}-{part:05}-of-{found[2]}.gguf"
        for part in range(1, int(found[2]) + 1)]
    whole = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.digest()


class _Chunks:
    """Chunks of a model's sequences in a store."""

    def __init__(self, store, model, revision, chunk, salt, seconds):
        if not isinstance(chunk, int) or chunk < 1:
            raise wrong(f"chunk is a number of tokens, not {chunk!r}")
        if (model is None) == (revision is None):
            raise wrong("model, the path of a GGUF whose bytes name it, or revision, your name of "
                        "them: one of the two")
        self.store, self.chunk, self._seconds = store, chunk, chunk * seconds
        self._fields = {"model": "llama.cpp", "revision": revision or "", "salt": salt,
                        "block_tokens": chunk}
        self._named = b"" if model is None else _digest(os.fspath(model))
        self._lossy = set()

    def _begin(self, shape, heads, more):
        self._shape, self._layout = shape, shape.layout(self.chunk, heads)
        named = repr((self._named, shape.named(), self._layout, more)).encode()
        self._space = Space(**self._fields, extra=hashlib.sha256(named).digest())

    @property
    def space(self):
        """The space of all chunks."""
        return self._space

    def keys(self, tokens):
        """The key of each whole chunk; each stands for all tokens up to its end."""
        keys, name, tokens = [], b"", _tokens(tokens)
        for first in range(0, len(tokens) - self.chunk + 1, self.chunk):
            name = hashlib.blake2b(name + struct.pack(f"<{self.chunk}i",
                                                      *tokens[first:first + self.chunk]),
                                   digest_size=32).digest()
            keys.append(self._space.key(name))
        return keys

    def _chunks(self, rows, first, count):
        """Memory of `count` chunks from a cell on: for each a View, and a function that copies the
        rows there, or with True back, where an entry does not lie in memory as they do."""
        if self._layout.dtype == "opaque":
            for index in range(count):
                made, at, parts = memoryview(bytearray(self._layout.bytes)), 0, []
                for one in rows:
                    parts.append((one, made[at:at + self.chunk * one.row]))
                    at += self.chunk * one.row
                yield View.packed(self._layout, made), self._copier(parts, first, index)
            return
        whole = [one.straight(first, count * self.chunk) for one in rows]
        for index in range(count):
            parts = [(one, part[index * self.chunk * one.row:(index + 1) * self.chunk * one.row])
                     for one, part in zip(rows, whole) if one.turned]
            yield View.axes(self._layout, "th", whole, tokens_per_block=0,
                            pool_blocks=count * self.chunk,
                            first_slot=index * self.chunk), self._copier(parts, first, index)

    def _copier(self, parts, first, index):
        def copy(back):
            for one, part in parts:
                one.copy(first + index * self.chunk, self.chunk, part, back)
        return copy

    def _put(self, rows, tokens):
        """Puts the rows' whole chunks, and returns how many leading tokens are stored now."""
        keys = self.keys(tokens[:rows[0].cells])
        stored = self.store.match(keys)
        keys = keys[:next((index for index in range(stored, len(keys)) if keys[index] in
                           self._lossy), len(keys))]
        chunks = self._chunks(rows, stored * self.chunk, len(keys) - stored)
        for index, (view, copy) in enumerate(chunks, stored):
            copy(False)
            with view:
                outcome = put_chunk(self.store, keys, index, view, self.chunk, self._seconds)
            if not outcome:
                return index * self.chunk
        return len(keys) * self.chunk

    def _get(self, tokens, most, head, deadline):
        """(a state with the KV of the leading tokens that are stored, how many), or (None, 0).
        head: a function that gives what stands before the state of so many tokens."""
        keys = self.keys(tokens[:max(min(len(tokens) - 1, most), 0)])
        keys = keys[:self.store.match(keys)]
        for index, key in enumerate(keys):
            said = self.store.describe(key)
            if said is None or said["layouts"] != [self._layout]:
                keys = keys[:index]  # gone, or a name that stands for two things
                break
        if not keys:
            return None, 0
        data, rows = self._shape.make(len(keys) * self.chunk, head(len(keys) * self.chunk))
        chunks = list(self._chunks(rows, 0, len(keys)))
        views = [view for view, _ in chunks]
        try:
            loaded = self.store.get_prefix(keys, views, deadline=deadline)
        finally:
            for view in views:
                view.release()
        for _, copy in chunks[:loaded]:
            copy(True)
        # Described after the load: exact variants become lossy ones, and never the reverse.
        self._lossy.update(key for key in keys[:loaded] if (self.store.describe(key) or {}).get(
            "variant") not in _EXACT)
        if 0 < loaded < len(keys):
            count, whole = loaded * self.chunk, rows
            data, rows = self._shape.make(count, head(count))
            for one, other in zip(rows, whole):
                part = memoryview(bytearray(count * one.row))
                other.copy(0, count, part)
                one.copy(0, count, part, True)
        return (data, loaded * self.chunk) if loaded else (None, 0)


def _tokens(tokens):
    """Token ids as a list of numbers that llama.cpp has."""
    tokens = [int(token) for token in tokens]
    if any(not 0 <= token < 1 << 31 for token in tokens):
        raise wrong("a token id is a number from 0 to 2^31 - 1")
    return tokens


class _Library:
    """The functions of a llama.cpp library that Prefixes calls."""

    _FUNCTIONS = {
        "llama_n_seq_max": (ctypes.c_uint32, "c"), "llama_n_ctx_seq": (ctypes.c_uint32, "c"),
        "llama_get_model": (ctypes.c_void_p, "c"), "llama_get_memory": (ctypes.c_void_p, "c"),
        "llama_model_n_head_kv": (ctypes.c_int32, "c"),
        "llama_model_get_vocab": (ctypes.c_void_p, "c"), "llama_vocab_bos": (ctypes.c_int32, "c"),
        "llama_memory_seq_rm": (ctypes.c_bool, "ciii"),
        "llama_state_seq_get_size": (ctypes.c_size_t, "ci"),
        "llama_state_seq_get_data": (ctypes.c_size_t, "ccni"),
        "llama_state_seq_set_data": (ctypes.c_size_t, "ccni"),
        "llama_state_seq_save_file": (ctypes.c_size_t, "csicn")}
    _KINDS = {"c": ctypes.c_void_p, "i": ctypes.c_int32, "n": ctypes.c_size_t,
              "s": ctypes.c_char_p}

    class Batch(ctypes.Structure):
        """A llama_batch, whose members this file does not read; with room for more of them."""

        _fields_ = [("members", ctypes.c_void_p * 24)]

    def __init__(self, library):
        library = _loaded() if library is None else library
        path = library if isinstance(library, (str, os.PathLike)) else getattr(
            library, "_name", None)
        if path is None:
            raise wrong("library is the path of llama.cpp's library, or a ctypes.CDLL of it")
        self._library = ctypes.CDLL(os.fspath(path))
        try:
            for name, (result, arguments) in self._FUNCTIONS.items():
                setattr(self, name[len("llama_"):], self._of(name, result, arguments))
            self.batch_get_one = self._of("llama_batch_get_one", self.Batch, "ci")
            self.decode = self._library["llama_decode"]
            self.decode.restype, self.decode.argtypes = ctypes.c_int32, [ctypes.c_void_p,
                                                                         self.Batch]
        except AttributeError as error:
            raise refuse(f"{path} is no llama.cpp that this adapter knows: {error}") from error

    def _of(self, name, result, arguments):
        found = self._library[name]  # an object of its own, whose types nobody else sets
        found.restype, found.argtypes = result, [self._KINDS[one] for one in arguments]
        return found

    def build(self):
        """What the library says of its version."""
        said = []
        for name in ("ggml_version", "ggml_commit"):
            try:
                said.append(self._of(name, ctypes.c_char_p, "")() or b"")
            except AttributeError:
                said.append(b"")
        return b" ".join(said)


def _loaded():
    """The path of the one library of llama.cpp that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {os.path.realpath(line.split(None, 5)[5].rstrip("\n")) for line in file
                 if "llama" in line and ".so" in line}
    found = []
    for path in sorted(paths):
        try:
            ctypes.CDLL(path).llama_state_seq_get_data  # noqa: B018  (whether it is there)
            found.append(path)
        except (AttributeError, OSError):
            continue
    if len(found) != 1:
        raise wrong(f"library= says which library of llama.cpp the context is of: this process has "
                    f"{', '.join(found) or 'none'}")
    return found[0]


def _address(context):
    """The address of a llama_context: of a Llama, a pointer of ctypes or cffi, or a number."""
    for name in ("_ctx", "ctx"):
        context = getattr(context, name, context)
    if isinstance(context, (ctypes._Pointer, ctypes.c_void_p)):
        context = ctypes.cast(context, ctypes.c_void_p).value
    elif type(context).__module__.startswith("_cffi"):
        context = int(ffi.cast("uintptr_t", context))
    if not isinstance(context, int) or isinstance(context, bool) or context <= 0:
        raise wrong(f"no context of llama.cpp: {context!r}")
    return context


class Prefixes(_Chunks):
    """The prefixes of one context's sequences in a store.

    context: a Llama of llama-cpp-python or llama-cpp-py-sync, or a llama_context. library: its
    path; None: the one that the process has loaded. model: the path of the GGUF, whose bytes are
    read once and name the model; a Llama knows it. revision: your name for it instead. chunk:
    tokens of an entry; a prefix is found in whole chunks. recompute_seconds_per_token: what a
    token's prefill takes; 0 lets the store predict it. salt names what llama.cpp does not tell:
    LoRA adapters, control vectors, and settings of rotation (rope_*, yarn_*, overrides of
    metadata).

    A context without a token decodes one in sequence 0, and removes it, when Prefixes is made:
    that shows the shape of its KV. Calls belong to the thread of the context.
    """

    def __init__(self, store, context, *, library=None, model=None, revision=None, chunk=256,
                 salt="", recompute_seconds_per_token=0.0):
        if model is None and revision is None:
            model = getattr(context, "model_path", None)
        super().__init__(store, model, revision, chunk, salt, recompute_seconds_per_token)
        self._llama, self._library = context, _Library(library)
        self._context = _address(context)
        library, self._sequences = self._library, self._library.n_seq_max(self._context)
        self._memory = library.get_memory(self._context)
        if not self._memory:
            raise refuse("the model has no KV")
        shape, _ = self._learn()
        heads = library.model_n_head_kv(library.get_model(self._context))
        self._begin(shape, max(heads, 1), [library.build(), b"context"])

    def _learn(self):
        """The shape of the context's KV, as it writes that itself."""
        library, context = self._library, self._context
        version = self._version()
        found = next((one for one in (self._read(sequence, version)
                                      for sequence in range(self._sequences)) if one[1]), None)
        if found is not None:
            return found
        vocabulary = library.model_get_vocab(library.get_model(context))
        token = ctypes.c_int32(max(library.vocab_bos(vocabulary), 0))
        if library.decode(context, library.batch_get_one(ctypes.addressof(token), 1)) != 0:
            raise refuse("llama.cpp decodes no token in this context")
        try:
            found = self._read(0, version)
        finally:
            library.memory_seq_rm(self._memory, 0, -1, -1)
        if found[1] is None:
            raise refuse("the model keeps no KV of a token")
        return found

    def _version(self):
        """The version of the format, as the library writes it into files."""
        library, context = self._library, self._context
        sequence = min(range(self._sequences),
                       key=lambda one: library.state_seq_get_size(context, one))
        with tempfile.NamedTemporaryFile(prefix="kvterrace-") as file:
            library.state_seq_save_file(context, os.fsencode(file.name), sequence, None, 0)
            head = file.read(8)
        return _known_version(head)

    def _read(self, sequence, version):
        size = self._library.state_seq_get_size(self._context, sequence)
        data = bytearray(max(size, 8))
        written = self._library.state_seq_get_data(self._context, _place(data), size, sequence)
        state = _State(data)
        if written != len(data) or state.read("<Ii")[0] != _DATA_MAGIC:
            raise refuse("llama.cpp writes a state of a format that this adapter does not know")
        return _parse(state, version)

    def _check(self, sequence):
        if type(sequence) is not int or not 0 <= sequence < self._sequences:
            raise wrong(f"a sequence is a number from 0 to {self._sequences - 1}, not {sequence!r}")

    def save(self, tokens, sequence=0):
        """Puts the KV of the tokens' whole chunks, as far as the sequence has it, and returns how
        many leading tokens are in the store now. The sequence's token ids, from position 0 on, are
        your word: llama.cpp does not keep them."""
        self._check(sequence)
        tokens = _tokens(tokens)
        stored = self.store.match(self.keys(tokens)) * self.chunk
        if stored + self.chunk > len(tokens):
            return stored
        _, rows = self._read(sequence, self._shape.version)
        return 0 if rows is None else self._put(rows, tokens)

    def restore(self, tokens, sequence=0, *, deadline=None):
        """Gives a sequence the KV of as many leading tokens as are stored, in place of what it has,
        and returns how many these are; 0: it is as it was, or empty where llama.cpp had no room.
        At least the last token is left to the model, which has no logits otherwise. deadline:
        seconds from now after which chunks on devices are not waited for."""
        self._check(sequence)
        tokens = _tokens(tokens)
        head = struct.pack("<Ii", _DATA_MAGIC, sequence)
        data, count = self._get(tokens, self._library.n_ctx_seq(self._context), lambda _: head,
                                deadline)
        if count == 0:
            return 0
        if self._library.state_seq_set_data(self._context, _place(data), len(data),
                                            sequence) != len(data):
            self._library.memory_seq_rm(self._memory, sequence, -1, -1)
            count = 0
        if sequence == 0 and hasattr(self._llama, "input_ids"):
            # Llama of llama-cpp-python keeps the token ids of its sequence 0 itself.
            self._llama.input_ids[:count] = tokens[:count]
            self._llama.n_tokens = count
        return count


def _place(data):
    """The address of a bytearray."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def _known_version(head):
    magic, version = struct.unpack("<II", head) if len(head) == 8 else (0, 0)
    if magic != _FILE_MAGIC:
        raise refuse("no state of a sequence of llama.cpp")
    if version not in _VERSIONS:
        raise refuse(f"llama.cpp's state of a sequence is of version {version}; this adapter knows "
                     f"{', '.join(map(str, _VERSIONS))}")
    return version


def _parse_file(path):
    """(token ids, the shape, the rows) of a file of llama-server; the last two are None where it
    has no token."""
    with open(path, "rb") as file:
        state = _State(file.read())
    version = _known_version(state.take(min(8, state.left())))
    count, = state.read("<I")
    tokens = state.take(4 * count).cast("i").tolist()
    if tokens[:1] == [-1]:  # the server's own form: a version, token ids, what is no text
        if len(tokens) < 4 or tokens[1] != 1 or tokens[2] != len(tokens) - 4 or tokens[-1] != 0:
            raise refuse("the slot has more than token ids (images, sound), or is of a newer "
                         "server")
        tokens = tokens[3:-1]
    return (tokens, *_parse(state, version))


class SlotFiles(_Chunks):
    """The prefixes of a llama-server in a store, by the files that its slots are saved to and
    restored from (--slot-save-path).

    like: a file that the server has saved under its present settings, of a slot with a token or
    more: it has the shape of the server's KV. The rest is as in Prefixes; also the version of the
    server belongs to revision or salt."""

    def __init__(self, store, like, *, model=None, revision=None, chunk=256, salt="",
                 recompute_seconds_per_token=0.0):
        super().__init__(store, model, revision, chunk, salt, recompute_seconds_per_token)
        _, shape, rows = _parse_file(like)
        if rows is None:
            raise refuse(f"{os.fspath(like)} has no token, so it does not show what KV looks like")
        self._begin(shape, 1, [b"slot"])

    def save(self, path):
        """Puts the whole chunks of a file that the server saved, and returns how many leading
        tokens of it are in the store now."""
        tokens, shape, rows = _parse_file(path)
        if rows is None:
            return 0
        if shape.named() != self._shape.named():
            raise refuse(f"{os.fspath(path)} is of a server with other settings of its KV")
        return self._put(rows, _tokens(tokens))

    def restore(self, tokens, path, *, deadline=None):
        """Writes a file for the server with the KV of as many leading tokens as are stored, and
        returns how many these are; 0: no file is written. At least the last token is left out,
        which the server computes."""
        tokens = _tokens(tokens)
        data, count = self._get(tokens, len(tokens), lambda count: struct.pack(
            f"<III{count}i", _FILE_MAGIC, self._shape.version, count, *tokens[:count]), deadline)
        if count == 0:
            return 0
        folder, name = os.path.split(os.path.abspath(path))
        with tempfile.NamedTemporaryFile(prefix=f".{name}-", dir=folder, delete=False) as file:
            try:
                file.write(data)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        return count
