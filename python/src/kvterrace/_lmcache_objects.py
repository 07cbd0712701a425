# SPDX-License-Identifier: Apache-2.0
"""Keys and layouts of LMCache's objects, as its adapters and the serde have them."""

import logging
import os
import struct

from ._errors import Error
from ._shapes import AUTO, choose_shape
from ._tasks import names_to_keys
from ._types import Layout, Space

_log = logging.getLogger("kvterrace.lmcache")
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8"}
_HASH_BYTES = 32  # of blake3 and sha256; what LMCache seeds by chance has fewer
_RANK = struct.Struct(">QI")  # kv_rank, object group: what comes before the chunk's hash in a name


class Keys:
    """Keys of kvterrace for those of LMCache. The model and the salt are of the space, so that
    tenants are apart; rank, object group and hash are the name."""

    def __init__(self, revision, kind, readers=None):
        """readers: what makes entries read after this process, or None, as readers_to_come."""
        self._revision, self._kind, self._spaces = revision or "", kind, {}
        self._unchecked = readers is not None and os.environ.get("PYTHONHASHSEED") is None

    def _check(self, hash_bytes):
        """Says of the first key whether later processes will find it."""
        self._unchecked = False
        if hash_bytes < _HASH_BYTES:
            _log.warning("kvterrace: hashes of chunks have %d bytes: what makes such short ones is "
                         "seeded at random, and what this process stores is found by no later one "
                         "and by no other host. Set PYTHONHASHSEED, to the same value for all, or "
                         "--hash-algorithm blake3", hash_bytes)

    def space(self, model, salt):
        found = self._spaces.get((model, salt))
        if found is None:
            found = Space(model=model, salt=salt, revision=self._revision, extra=self._kind)
            if len(self._spaces) >= 4096:
                self._spaces.clear()
            self._spaces[model, salt] = found
        return found

    def join(self, keys):
        """The keys of ObjectKeys, one after the other."""
        if not keys:
            return b""
        if self._unchecked:
            self._check(len(keys[0].chunk_hash))
        model, salt, pack = keys[0].model_name, keys[0].cache_salt, _RANK.pack
        names = [pack(key.kv_rank, key.object_group_id) + key.chunk_hash for key in keys
                 if key.cache_salt == salt and key.model_name == model]
        if len(names) == len(keys):
            return names_to_keys(self.space(model, salt), names)
        return b"".join([self.space(key.model_name, key.cache_salt).key(
            pack(key.kv_rank, key.object_group_id) + key.chunk_hash) for key in keys])

    def join_texts(self, texts):
        """The keys of texts model@rank@group@hash[@salt]."""
        spaces = {}
        for index, text in enumerate(texts):
            parts = text.split("@")
            place = (parts[0], parts[4] if len(parts) > 4 else "")
            if self._unchecked and len(parts) > 3:
                self._check(len(parts[3]) // 2)
            spaces.setdefault(place, []).append(index)
        if len(spaces) == 1:
            return names_to_keys(self.space(*next(iter(spaces))), [text.encode() for text in texts])
        found = [b""] * len(texts)
        for place, indices in spaces.items():
            for index in indices:
                found[index] = self.space(*place).key(texts[index])
        return b"".join(found)


class ModelLayouts:
    """Layouts of the models of an adapter. head_dim: of all of them, "auto" or 0, as choose_shape
    takes it."""

    def __init__(self, adapter, head_dim, wanted):
        self._adapter, self._given, self._wanted, self._known = adapter, head_dim, wanted, {}

    def of(self, model):
        found = self._known.get(model)
        if found is None:
            head_dim = self._given
            if head_dim == AUTO or not head_dim:
                head_dim = choose_shape(self._adapter, (0, head_dim), self._wanted, model)[1]
            if len(self._known) >= 256:
                self._known.clear()
            found = self._known[model] = Layouts(head_dim)
        return found


class Layouts:
    """Layouts of memory objects: from shape and dtype, or as bytes where these say too little."""

    def __init__(self, head_dim):
        self._head_dim, self._known, self._said = head_dim, {}, False

    def of(self, item, size):
        """(layouts of the object's groups, whether it is a buffer of bytes)."""
        about = item.metadata
        if about.shapes is not None and about.dtypes is not None:
            shapes, dtypes = tuple(about.shapes), tuple(about.dtypes)
        else:
            shapes, dtypes = (about.shape,), (about.dtype,)
        layouts, whole, of_bytes = self._find(shapes, dtypes)
        if layouts is not None and size == whole:
            return layouts, of_bytes
        # A serde has written fewer bytes than the object has room for, or no layout is known.
        return (Layout.opaque(size),), True

    def made(self, shapes, dtypes):
        """The layouts of an object that is not there yet."""
        return self._find(shapes, dtypes)[0] or ()

    def _find(self, shapes, dtypes):
        found = self._known.get((shapes, dtypes))
        if found is None:
            found = self._make(shapes, dtypes)
            if len(self._known) >= 4096:
                self._known.clear()
            self._known[shapes, dtypes] = found
        return found

    def _make(self, shapes, dtypes):
        made = [self._layout(tuple(map(int, shape)), str(dtype).rpartition(".")[2])
                for shape, dtype in zip(shapes, dtypes)]
        if None not in made:
            return tuple(made), sum(layout.bytes for layout in made), False
        if not self._said and not (len(shapes) == 1 and len(shapes[0]) == 1):
            self._said = True
            _log.warning("kvterrace: objects of shape %s and type %s are stored as bytes, because "
                         "their layers, tokens and heads are not known", shapes, dtypes)
        size = 0
        for shape, dtype in zip(shapes, dtypes):
            elements = 1
            for one in shape:
                elements *= int(one)
            size += elements * getattr(dtype, "itemsize", 1)
        is_bytes = len(shapes) == 1 and len(shapes[0]) == 1 and \
            str(dtypes[0]).rpartition(".")[2] == "uint8"
        return (Layout.opaque(size),) if size else None, size, is_bytes

    def _layout(self, shape, dtype):
        """[K and V, or one][layer][token][head x dim], or without the first axis; else None."""
        if dtype not in _DTYPES or len(shape) not in (3, 4) or 0 in shape:
            return None
        sides, layers, tokens, width = shape if len(shape) == 4 else (1, *shape)
        if sides not in (1, 2):
            return None
        heads, dim = 1, width
        if self._head_dim and sides == 2:
            if width % self._head_dim:
                return None
            heads, dim = width // self._head_dim, self._head_dim
        try:
            return Layout(layers=layers, kv_heads=heads, head_dim=dim, dtype=_DTYPES[dtype],
                          tokens=tokens, sides=sides, order="side_layer")
        except Error:
            return None
