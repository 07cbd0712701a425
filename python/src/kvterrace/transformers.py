# SPDX-License-Identifier: Apache-2.0
"""transformers: the KV of a DynamicCache, prefix by prefix in chunks of tokens.

    prefixes = kvterrace.transformers.Prefixes(store, model, chunk=256)
    cache, restored = prefixes.restore(tokens)          # as many leading tokens as are stored
    out = model.generate(tokens, past_key_values=cache, max_new_tokens=64,
                         return_dict_in_generate=True)
    prefixes.save(out.past_key_values, out.sequences)   # puts the chunks that are not there yet

docs/ENGINES.md has what decides whether a chunk is found.
"""

import collections
import contextlib
import hashlib
import struct
import time

import torch
import transformers

from ._engines import Engine
from ._errors import refuse, wrong
from ._identity import Identity, regimes
from ._store import put_chunk
from ._types import Layout, Space, View

TESTED = ("5.19.0",)

with Engine("transformers", transformers.__version__, TESTED) as _engine:
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
# How far KV of one model may be from itself, relative to its size, for kernels of other shapes: in
# the first layer, half as much more with each layer behind it, and at most. Experts that are chosen
# by a last digit are the most of it (0.1 in fp16 and bf16 after 8 layers of random weights).
_ROUNDING = {torch.float16: 0.04, torch.bfloat16: 0.04, torch.float32: 0.005}
_ROUNDING_MOST = 0.3
_EXACT = ("raw", "lossless")  # forms that give back what was put
_PIECE = 512  # tokens that are checked at once
_WINDOW = 8  # tokens at both ends that are computed through all layers


class _Window(DynamicSlidingWindowLayer):
    """A sliding window that keeps all that it has had, so that a later prompt may end anywhere in
    it, and lets attention see what the window holds."""

    def update(self, key_states, value_states, *_, **__):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[-2]
        self.cumulative_length += new
        self.keys = torch.cat([self.keys, key_states], dim=-2)
        self.values = torch.cat([self.values, value_states], dim=-2)
        seen = self.sliding_window - 1 + new
        return self.keys[:, :, -seen:], self.values[:, :, -seen:]


# Layers whose KV is an entry of its own: those of one window (0: none) and one shape. sides, as of
# a Layout: 2 for K and V, 1 and 3 for each alone where they differ in shape.
_Part = collections.namedtuple("_Part", "window sides heads dim layers")


def _parts(layers):
    """The parts of a cache's layers, those without a window first."""
    found = {}
    for index, layer in enumerate(layers):
        (_, heads, _, dim), (_, value_heads, _, value_dim) = layer.keys.shape, layer.values.shape
        kinds = [(2, heads, dim)] if (heads, dim) == (value_heads, value_dim) else \
            [(1, heads, dim), (3, value_heads, value_dim)]
        for kind in kinds:
            found.setdefault((_window(layer), *kind), []).append(index)
    return [_Part(*kind, tuple(layers)) for kind, layers in
            sorted(found.items(), key=lambda one: (one[0][0] > 0, one[1], one[0]))]


def _window(layer):
    return layer.sliding_window if layer.is_sliding else 0


def _first(layer):
    """The position of the first token that a layer has."""
    return layer.cumulative_length - layer.keys.shape[-2] if layer.is_sliding else 0


def _sides(part, layers):
    """K, V or both of each layer of a part."""
    return [side for index in part.layers for side, wanted in
            ((layers[index].keys, part.sides != 3), (layers[index].values, part.sides != 1))
            if wanted]


def _layers(cache):
    """The layers of a cache whose KV is that of all tokens, as the model computed it."""
    if not isinstance(cache, DynamicCache):
        raise refuse(f"a {type(cache).__name__} is no DynamicCache")
    for index, layer in enumerate(cache.layers):
        if type(layer) in (DynamicLayer, _Window):
            continue
        name, reason = type(layer).__name__, "its state is not the KV of each token"
        if type(layer) is DynamicSlidingWindowLayer:
            if not layer.is_initialized or _first(layer) == 0:
                continue
            reason = "a sliding window has dropped the tokens before it, so no later prompt can " \
                     "begin with what is left: compute with the cache of restore(), which keeps all"
        elif "Quantized" in name:
            reason = "it keeps numbers that transformers has rounded already: keep them exact " \
                     "here, and let the store choose a lossy variant"
        raise refuse(f"layer {index} is a {name}: {reason}")
    return cache.layers


def _tokens(tokens):
    """Token ids as a list: from a list, or from a tensor of one sequence."""
    if isinstance(tokens, torch.Tensor):
        if tokens.dim() == 2 and tokens.shape[0] == 1:
            tokens = tokens[0]
        if tokens.dim() != 1:
            raise wrong(f"tokens are those of one sequence, not of shape {tuple(tokens.shape)}")
        tokens = tokens.tolist()
    return [int(token) for token in tokens]


class _Reached(Exception):
    """The first layer's KV is there: the rest of the model need not run."""


class _FirstLayer(DynamicCache):
    """A cache that ends a forward pass at the first layer's KV."""

    def update(self, key_states, value_states, layer_idx, *_, **__):
        self.found = key_states, value_states
        raise _Reached


def _keeps_kv():
    """Whether a cache's layers keep K and V as [sequence][head][token][dim]."""
    cache = DynamicCache()
    for token in (1.0, 2.0):
        cache.update(torch.full((1, 2, 1, 3), token), torch.full((1, 2, 1, 3), -token), 0)
    first = cache.layers[0]
    return type(first) is DynamicLayer and tuple(first.keys.shape) == (1, 2, 2, 3) and \
        float(first.keys[0, 1, 1, 2]) == 2.0 and float(first.values[0, 1, 1, 2]) == -2.0 and \
        cache.get_seq_length() == 2


def _sees_the_same():
    """Whether attention sees the same of a window of ours as of transformers' own."""
    mine, theirs, value = _Window(sliding_window=4), DynamicSlidingWindowLayer(sliding_window=4), 0
    for tokens in (2, 1, 3, 1, 9, 1):
        if mine.get_mask_sizes(tokens) != theirs.get_mask_sizes(tokens):
            return False
        new = torch.arange(value, value + tokens, dtype=torch.float32).reshape(1, 1, tokens, 1)
        pairs, value = zip(mine.update(new, -new), theirs.update(new, -new)), value + tokens
        if not all(torch.equal(one, other) for one, other in pairs):
            return False
    return mine.get_seq_length() == theirs.get_seq_length() == 17 == mine.keys.shape[-2]


_engine.check(_FirstLayer, _Window,
              holds=[("DynamicCache keeps K and V of each token", _keeps_kv),
                     ("a sliding layer shows its window", _sees_the_same)])


def _differs(mine, theirs, axes):
    """The largest relative difference of KV, each over the axes; NaN counts as different."""
    mine, theirs = mine.float(), theirs.to(mine.device).float()
    if mine.shape != theirs.shape:
        return float("inf")
    size, off = (torch.linalg.vector_norm(one, dim=axes) for one in (mine, mine - theirs))
    return float((off / size.clamp(min=1e-30)).nan_to_num(nan=float("inf")).max())


class Prefixes:
    """The prefixes of one model in a store.

    chunk: tokens of an entry; a prefix is found in whole chunks. recompute_seconds_per_token: what
    a token's prefill takes; 0 lets the store predict it.

    At each call the space has all of the model that decides KV: its tensors by content, active
    adapters, configuration, rotary regime, types, and the version of transformers. Making Prefixes
    reads all weights once; keep one for each model. revision: your name for weights that cannot be
    read (quantised, offloaded), for code that is not transformers' and for forward hooks; with it
    the weights but those of adapters are not read, and a change of them is refused. name: a name
    more in the space; without it two folders of equal content share. salt keeps apart what must not
    be shared, such as tenants, and what no call sees: patched functions of transformers.

    save takes a DynamicCache of one sequence whose token ids begin at position 0, without padding,
    masks, embeddings of your own or images, computed by the model as it is at the call. It computes
    a part of the KV again and refuses a cache that differs; check=False takes your word for it. Of
    a model with sliding windows compute with a cache of restore(), also where that finds nothing:
    it keeps what later prompts begin with. docs/ENGINES.md has what that sees and what it cannot.
    """

    def __init__(self, store, model, *, chunk=256, name="", revision=None, salt="", check=True,
                 recompute_seconds_per_token=0.0):
        if not isinstance(chunk, int) or chunk < 1:
            raise wrong(f"chunk is a number of tokens, not {chunk!r}")
        if model.dtype not in _DTYPES:
            raise refuse(f"no element type of kvterrace is {model.dtype}")
        if revision == "":
            raise wrong("a revision is a text that changes with the weights, or None")
        self.store, self.model, self.chunk, self._known = store, model, chunk, None
        self._seconds, self._verify = chunk * recompute_seconds_per_token, check
        _layers(DynamicCache(config=model.config))
        self._identity = Identity(model, revision)
        self._fields = {"revision": revision or "", "salt": salt,
                        "model": name or "transformers", "block_tokens": chunk,
                        "order": "layer_side"}

    @property
    def space(self):
        """The space of sequences within the limits of their rotary type, of the model as it is."""
        return self._space(self._identity.now(), regimes(self.model.config, 0))

    def _space(self, identity, beyond):
        return Space(dtype=_DTYPES[self.model.dtype], **self._fields,
                     extra=identity + b"transformers" + bytes(beyond))

    def keys(self, tokens):
        """The key of each whole chunk; each stands for all tokens up to its end. Of layers with a
        window, and of further shapes, chunks have keys of their own beside these. None have a key
        in a sequence beyond the limit of dynamic NTK."""
        tokens = _tokens(tokens)
        beyond = regimes(self.model.config, len(tokens))
        return [] if beyond is None else self._keys(tokens, self._identity.now(), beyond, 1)[0]

    def _keys(self, tokens, identity, beyond, parts):
        """The keys of the chunks of each part."""
        keys, name, space = [[] for _ in range(parts)], b"", self._space(identity, beyond)
        for first in range(0, len(tokens) - self.chunk + 1, self.chunk):
            part = tokens[first:first + self.chunk]
            name = hashlib.blake2b(name + struct.pack(f"<{len(part)}q", *part),
                                   digest_size=32).digest()
            for group, one in enumerate(keys):
                one.append(space.key(name, group))
        return keys

    def _layout(self, part):
        return Layout(len(part.layers), part.heads, part.dim, _DTYPES[self.model.dtype], self.chunk,
                      sides=part.sides)

    def _from(self, part, count):
        """The first chunk of a part that `count` chunks go on from."""
        return max(count * self.chunk - part.window + 1, 0) // self.chunk if part.window else 0

    def _longest(self, parts, there, most):
        """How many leading chunks, `most` at most, a sequence can go on from. there: of each part
        with a window, whether each chunk is stored."""
        return next((count for count in range(most, 0, -1) if all(
            all(one[self._from(part, count):count]) for part, one in zip(parts, there)
            if part.window)), 0)

    def _stored(self, parts, keys):
        """The same of the store, with what is there."""
        most = min([len(keys[0])] + [self.store.match(one) for part, one in zip(parts, keys)
                                     if not part.window])
        there = [[key in self.store for key in one[:most]] if part.window else []
                 for part, one in zip(parts, keys)]
        return self._longest(parts, there, most), there

    def _shapes(self):
        """The parts of the model's layers, as a token shows them."""
        if self._known is None:
            cache, device = DynamicCache(config=self.model.config), self.model.device
            with torch.no_grad(), torch.compiler.set_stance("force_eager"):
                self._identity.model(input_ids=torch.tensor([[0]], device=device), use_cache=True,
                                     past_key_values=cache)
            if not all(layer.is_initialized for layer in cache.layers):
                raise refuse("a layer of the model has no KV of its own")
            self._known = _parts(cache.layers)
        return self._known

    def _ready(self):
        """Refuses a model that drops out at random, and returns its identity."""
        module = next((one for one in self._identity.model.modules() if one.training and
                       (one is self._identity.model or getattr(one, "p", 0))), None)
        if module is not None:
            raise refuse("the model is in training mode, in which it may drop out at random: call "
                         "model.eval()")
        return self._identity.now()

    def save(self, cache, tokens):
        """Puts the KV of the tokens' whole chunks, as far as the cache has it, and returns how many
        leading tokens are in the store now. What is there already is not read. Chunks that restore
        gave the cache in a lossy form are not put again. UnsupportedError: the cache is not what
        this model computes from these tokens, or no name stands for it."""
        layers, tokens, identity = _layers(cache), _tokens(tokens), self._ready()
        begun, lossy = getattr(cache, "_kvterrace", (identity, ()))
        if begun != identity:
            raise refuse("the cache was restored for other weights, adapters or settings of the "
                         "model than these")
        total = cache.get_seq_length()
        beyond = regimes(self.model.config, total)
        if beyond is None:
            raise refuse(f"{total} tokens are beyond the limit of dynamic NTK, where each length "
                         "has KV of its own")
        tokens = tokens[:total]
        if len(tokens) < self.chunk:
            return 0
        self._check_layers(layers)
        parts = _parts(layers)
        keys = self._keys(tokens, identity, beyond, len(parts))
        todo = [self._missing(part, one, layers, lossy) for part, one in zip(parts, keys)]
        first = min((one[0] for one in todo if one), default=None)
        if first is not None:
            last = max(one[-1] for one in todo if one) + 1
            if self._verify:
                self._compare(layers, tokens[:last * self.chunk], first * self.chunk, total,
                              any(beyond))
            for part, one, chunks in zip(parts, keys, todo):
                self._put(part, one, chunks, layers)
        return self._stored(parts, keys)[0] * self.chunk

    def _missing(self, part, keys, layers, lossy):
        """The chunks of a part that are to be put: no exact copy is in the store, and the cache has
        them."""
        begin = -(-max(_first(layers[index]) for index in part.layers) // self.chunk)
        if part.window:
            return [index for index in range(begin, len(keys)) if keys[index] not in lossy and
                    keys[index] not in self.store]
        stored = self.store.match(keys)
        end = next((index for index in range(stored, len(keys)) if keys[index] in lossy), len(keys))
        return list(range(stored, end))

    def _put(self, part, keys, chunks, layers):
        layout, first = self._layout(part), _first(layers[part.layers[0]])
        memories = [side[0].detach().cpu().contiguous() for side in _sides(part, layers)] \
            if chunks else []
        for index in chunks:
            view = View.axes(layout, "ht", memories, tokens_per_block=0,
                             pool_blocks=memories[0].shape[1],
                             first_slot=index * self.chunk - first)
            with view:
                outcome = put_chunk(self.store, keys, index, view, self.chunk, self._seconds)
            if not outcome:
                return

    def _compare(self, layers, tokens, first, total, beyond):
        """Refuses a cache that is not the KV of these tokens, from `first` on, at their positions:
        each token's first layer, and all layers of the ends."""
        last = len(tokens)

        def begins(count):
            """A cache of the first `count` tokens, without a copy. Of the first layer alone nobody
            looks at tokens that a window has dropped."""
            made = _windowed(kind(config=self.model.config))
            for layer, kept in zip(made.layers, layers) if count else ():
                end = max(count - _first(kept), 0)
                layer.lazy_initialization(kept.keys, kept.values)
                layer.keys, layer.values = kept.keys[:, :, :end], kept.values[:, :, :end]
                if layer.is_sliding:
                    layer.cumulative_length = count
            return made

        def run(cache, start, end):
            """The model over tokens. Beyond a rotary limit the sequence's last position goes with
            them, so that they are in its regime."""
            ids, places = tokens[start:end], {}
            if beyond and end < total:
                ids = [*ids, tokens[-1]]
                places["position_ids"] = torch.tensor([[*range(start, end), total - 1]],
                                                      device=device)
            with contextlib.suppress(_Reached):
                self._identity.model(input_ids=torch.tensor([ids], device=device), use_cache=True,
                                     past_key_values=cache, **places)

        def judge(mine, axes, index, start, end):
            kept, at = layers[index], _first(layers[index])
            theirs = [side[:, :, start - at:end - at] for side in (kept.keys, kept.values)]
            limit = min(_ROUNDING[self.model.dtype] * (1 + index / 2), _ROUNDING_MOST)
            for side, one, other in zip(("K", "V"), mine, theirs):
                off = _differs(one[:, :, :end - start], other, axes)
                if off > limit:
                    raise refuse(
                        f"{side} of layer {index}, tokens {start} to {end}, is {off:.2g} off what "
                        f"the model computes from these token ids at these positions (at most "
                        f"{limit:.2g}): other weights or adapters, padding, a mask, images, "
                        "embeddings, other positions or ids")

        device = self.model.device
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            kind = _FirstLayer
            for start in range(max(first, _first(layers[0])), last, _PIECE):
                cache, end = begins(start), min(start + _PIECE, last)
                run(cache, start, end)
                judge(cache.found, (1, 3), 0, start, end)
            kind = DynamicCache
            least = max(_first(layer) and _first(layer) + _window(layer) - 1 for layer in layers)
            ends = {max(last - _WINDOW, least), *([] if first or least else [0])}
            for start in (one for one in ends if one < last):
                cache, end = begins(start), min(start + _WINDOW, last)
                run(cache, start, end)
                for index, layer in enumerate(cache.layers):
                    at = start - _first(layers[index])
                    judge((layer.keys[:, :, at:], layer.values[:, :, at:]), (1, 2, 3), index, start,
                          end)

    def _check_layers(self, layers):
        """Refuses KV that is not of one sequence, as the model computes it."""
        if not all(layer.is_initialized for layer in layers):
            raise refuse("a layer of the cache has no KV of its own")
        sides = [side for layer in layers for side in (layer.keys, layer.values)]
        dtypes, batches = {side.dtype for side in sides}, {side.shape[0] for side in sides}
        if dtypes != {self.model.dtype}:
            raise refuse(f"the cache has {', '.join(map(str, dtypes))}, "
                         f"the model {self.model.dtype}")
        if batches != {1}:
            raise refuse(f"the cache has a batch of {max(batches)}: save one sequence at a time")

    def restore(self, tokens, *, deadline=None):
        """A new DynamicCache with the KV of as many leading tokens as are stored, and how many
        these are. At least the last token is left to the model, which has no logits otherwise.
        deadline: seconds from now after which chunks on devices are not waited for."""
        tokens, identity = _tokens(tokens), self._ready()
        beyond = regimes(self.model.config, len(tokens))
        cache = _windowed(DynamicCache(config=self.model.config))
        cache._kvterrace = identity, ()
        layers = _layers(cache)
        if beyond is None or len(tokens) <= self.chunk:
            return cache, 0
        parts = self._shapes()
        keys = self._keys(tokens[:-1], identity, beyond, len(parts))
        until = None if deadline is None else time.monotonic() + deadline
        count, there = self._stored(parts, keys)
        full, used = {}, set()
        for part, one in zip(parts, keys):
            if not part.window:
                count, full[part] = self._load(part, one[:count], 0, until)
        count = self._longest(parts, there, count)
        found = dict(full)
        while count:
            short = False
            for part, one, have in zip(parts, keys, there):
                if part.window:
                    first = self._from(part, count)
                    loaded, found[part] = self._load(part, one[first:count], first, until)
                    short = short or loaded < count
                    have[loaded:count] = [False] * (count - loaded)
            if not short:
                break
            count = self._longest(parts, there, count)
        if count == 0:
            return cache, 0
        for part, one in zip(parts, keys):
            used.update(one[self._from(part, count):count])
            self._fill(part, layers, found[part], count)
        # Described after the load: exact variants become lossy ones, and never the reverse.
        cache._kvterrace = identity, {
            key for key in used if (self.store.describe(key) or {}).get("variant") not in _EXACT}
        return cache, count * self.chunk

    def _load(self, part, keys, first, until):
        """(how many leading chunks are there now, those before `first` included, K and V of the
        part's layers from `first` on)."""
        layout = self._layout(part)
        for index, key in enumerate(keys):
            said = self.store.describe(key)
            if said is None or said["layouts"] != [layout]:
                keys = keys[:index]  # gone, or a name that stands for two things
                break
        total = len(keys) * self.chunk
        sides = [torch.empty((part.heads, total, part.dim), dtype=self.model.dtype)
                 for _ in range(len(part.layers) * (2 if part.sides == 2 else 1))]
        views = [View.axes(layout, "ht", sides, tokens_per_block=0, pool_blocks=total,
                           first_slot=index * self.chunk) for index in range(len(keys))]
        try:
            left = None if until is None else until - time.monotonic()
            return first + self.store.get_prefix(keys, views, deadline=left), sides
        finally:
            for view in views:
                view.release()

    def _fill(self, part, layers, sides, count):
        """Gives K and V of a part, which end with `count` chunks, to its layers."""
        first, device = self._from(part, count) * self.chunk, self.model.device
        made = iter([side[None, :, :count * self.chunk - first].contiguous().to(device)
                     for side in sides])
        for index in part.layers:
            layer = layers[index]
            names = {2: ("keys", "values"), 1: ("keys",), 3: ("values",)}[part.sides]
            given = {name: next(made) for name in names}
            if not layer.is_initialized:
                some = next(iter(given.values()))
                layer.lazy_initialization(some, some)
            for name, side in given.items():
                setattr(layer, name, side)
            if layer.is_sliding:
                layer.cumulative_length = count * self.chunk


def _windowed(cache):
    """The cache with windows that keep what they have had."""
    cache.layers = [_Window(sliding_window=layer.sliding_window) if
                    type(layer) is DynamicSlidingWindowLayer else layer for layer in cache.layers]
    return cache
