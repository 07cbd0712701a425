# SPDX-License-Identifier: Apache-2.0
"""transformers: the KV of a DynamicCache, prefix by prefix in chunks of tokens.

    prefixes = kvterrace.transformers.Prefixes(store, model, chunk=256)
    cache, restored = prefixes.restore(tokens)          # as many leading tokens as are stored
    out = model.generate(tokens, past_key_values=cache, max_new_tokens=64,
                         return_dict_in_generate=True)
    prefixes.save(out.past_key_values, out.sequences)   # puts the chunks that are not there yet

docs/ENGINES.md has what decides whether a chunk is found.
"""

import contextlib
import hashlib
import struct

import torch
import transformers

from ._engines import Engine
from ._errors import refuse, wrong
from ._identity import Identity, regimes
from ._store import Outcome
from ._types import Layout, Space, View

TESTED = ("5.19.0",)

with Engine("transformers", transformers.__version__, TESTED) as _engine:
    from transformers.cache_utils import DynamicCache, DynamicLayer

_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
# How far KV of one model may be from itself, relative to its size, for kernels of other shapes: in
# the first layer, half as much more with each layer behind it, and at most. Experts that are chosen
# by a last digit are the most of it (0.1 in fp16 and bf16 after 8 layers of random weights).
_ROUNDING = {torch.float16: 0.04, torch.bfloat16: 0.04, torch.float32: 0.005}
_ROUNDING_MOST = 0.3
_EXACT = ("raw", "lossless")  # forms that give back what was put
_PIECE = 512  # tokens that are checked at once
_WINDOW = 8  # tokens at both ends that are computed through all layers


def _layers(cache):
    """The layers of a cache whose KV is that of all tokens, as the model computed it."""
    if not isinstance(cache, DynamicCache):
        raise refuse(f"a {type(cache).__name__} is no DynamicCache")
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            continue
        name, reason = type(layer).__name__, "its state is not the KV of each token"
        if getattr(layer, "is_sliding", False):
            reason = "a sliding window has dropped the tokens before it, so no later prompt can " \
                     "begin with what is left"
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


_engine.check(_FirstLayer, holds=[("DynamicCache keeps K and V of each token", _keeps_kv)])


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
    a part of the KV again and refuses a cache that differs; check=False takes your word for it.
    docs/ENGINES.md has what that sees and what it cannot.
    """

    def __init__(self, store, model, *, chunk=256, name="", revision=None, salt="", check=True,
                 recompute_seconds_per_token=0.0):
        if not isinstance(chunk, int) or chunk < 1:
            raise wrong(f"chunk is a number of tokens, not {chunk!r}")
        if model.dtype not in _DTYPES:
            raise refuse(f"no element type of kvterrace is {model.dtype}")
        if revision == "":
            raise wrong("a revision is a text that changes with the weights, or None")
        self.store, self.model, self.chunk = store, model, chunk
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
        """The key of each whole chunk; each stands for all tokens up to its end. None have a key in
        a sequence beyond the limit of dynamic NTK."""
        tokens = _tokens(tokens)
        beyond = regimes(self.model.config, len(tokens))
        return [] if beyond is None else self._keys(tokens, self._identity.now(), beyond)

    def _keys(self, tokens, identity, beyond):
        keys, name, space = [], b"", self._space(identity, beyond)
        for first in range(0, len(tokens) - self.chunk + 1, self.chunk):
            part = tokens[first:first + self.chunk]
            name = hashlib.blake2b(name + struct.pack(f"<{len(part)}q", *part),
                                   digest_size=32).digest()
            keys.append(space.key(name))
        return keys

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
        keys = self._keys(tokens, identity, beyond)
        stored = self.store.match(keys)
        keys = keys[:next((index for index in range(stored, len(keys)) if keys[index] in lossy),
                          len(keys))]
        if stored == len(keys):
            return stored * self.chunk
        memories, layout = self._memories(layers)
        if self._verify:
            self._compare(layers, tokens[:len(keys) * self.chunk], stored * self.chunk, total,
                          any(beyond))
        for index in range(stored, len(keys)):
            first = index * self.chunk
            view = View.axes(layout, "ht", memories, tokens_per_block=0, pool_blocks=total,
                             first_slot=first)
            with view:
                options = {"parent": keys[index - 1] if index else None, "first_position": first,
                           "recompute_seconds": self._seconds}
                outcome = self.store.put(keys[index], view, **options)
                if outcome is Outcome.BUSY:
                    self.store.flush()
                    outcome = self.store.put(keys[index], view, **options)
            if not outcome:
                return index * self.chunk
        return len(keys) * self.chunk

    def _compare(self, layers, tokens, first, total, beyond):
        """Refuses a cache that is not the KV of these tokens, from `first` on, at their positions:
        each token's first layer, and all layers of the ends."""
        last = len(tokens)

        def begins(count):
            """A cache of the first `count` tokens, without a copy."""
            made = kind(config=self.model.config)
            for layer, kept in zip(made.layers, layers) if count else ():
                layer.lazy_initialization(kept.keys, kept.values)
                layer.keys, layer.values = kept.keys[:, :, :count], kept.values[:, :, :count]
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

        def judge(mine, theirs, axes, index, start, end):
            limit = min(_ROUNDING[self.model.dtype] * (1 + index / 2), _ROUNDING_MOST)
            for side, one, other in zip(("K", "V"), mine, theirs):
                off = _differs(one[:, :, :end - start], other[:, :, start:end], axes)
                if off > limit:
                    raise refuse(
                        f"{side} of layer {index}, tokens {start} to {end}, is {off:.2g} off what "
                        f"the model computes from these token ids at these positions (at most "
                        f"{limit:.2g}): other weights or adapters, padding, a mask, images, "
                        "embeddings, other positions or ids")

        device = self.model.device
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            kind = _FirstLayer
            for start in range(first, last, _PIECE):
                cache, end = begins(start), min(start + _PIECE, last)
                run(cache, start, end)
                judge(cache.found, (layers[0].keys, layers[0].values), (1, 3), 0, start, end)
            kind = DynamicCache
            ends = {max(last - _WINDOW, 0), *([] if first else [0])}
            for start in ends:
                cache, end = begins(start), min(start + _WINDOW, last)
                run(cache, start, end)
                for index, (mine, kept) in enumerate(zip(cache.layers, layers)):
                    judge((mine.keys[:, :, start:], mine.values[:, :, start:]),
                          (kept.keys, kept.values), (1, 2, 3), index, start, end)

    def _memories(self, layers):
        """K and V of each layer in host memory, and the layout of a chunk."""
        shapes = {tuple(side.shape) for layer in layers for side in (layer.keys, layer.values)}
        dtypes = {side.dtype for layer in layers for side in (layer.keys, layer.values)}
        if dtypes != {self.model.dtype}:
            raise refuse(f"the cache has {', '.join(map(str, dtypes))}, "
                          f"the model {self.model.dtype}")
        if len(shapes) != 1:
            raise refuse(f"the layers have several shapes: {', '.join(map(str, sorted(shapes)))}")
        (batch, heads, _, dim), = shapes
        if batch != 1:
            raise refuse(f"the cache has a batch of {batch}: save one sequence at a time")
        layout = Layout(len(layers), heads, dim, _DTYPES[self.model.dtype], self.chunk)
        return [side[0].detach().cpu().contiguous() for layer in layers
                for side in (layer.keys, layer.values)], layout

    def restore(self, tokens, *, deadline=None):
        """A new DynamicCache with the KV of as many leading tokens as are stored, and how many
        these are. At least the last token is left to the model, which has no logits otherwise.
        deadline: seconds from now after which chunks on devices are not waited for."""
        tokens, identity = _tokens(tokens), self._ready()
        beyond = regimes(self.model.config, len(tokens))
        keys = [] if beyond is None else self._keys(tokens[:-1], identity, beyond)
        keys = keys[:self.store.match(keys)]
        cache = DynamicCache(config=self.model.config)
        cache._kvterrace = identity, ()
        layers = _layers(cache)
        said = self.store.describe(keys[0]) if keys else None
        if said is None:
            return cache, 0
        layout, = said["layouts"]
        if layout.layers != len(layers) or layout.tokens != self.chunk:
            return cache, 0  # a name that stands for two things: not this model's
        total = len(keys) * self.chunk
        sides = [torch.empty((layout.kv_heads, total, layout.head_dim), dtype=self.model.dtype)
                 for _ in range(2 * layout.layers)]
        views = [View.axes(layout, "ht", sides, tokens_per_block=0, pool_blocks=total,
                           first_slot=index * self.chunk) for index in range(len(keys))]
        try:
            loaded = self.store.get_prefix(keys, views, deadline=deadline) * self.chunk
        finally:
            for view in views:
                view.release()
        if loaded == 0:
            return cache, 0
        # Described after the load: exact variants become lossy ones, and never the reverse.
        forms = [(self.store.describe(key) or {}).get("variant") for key in keys]
        cache._kvterrace = identity, {key for key, one in zip(keys, forms) if one not in _EXACT}
        device = self.model.device
        for index, layer in enumerate(layers):
            keys_, values = (side[None, :, :loaded].contiguous().to(device)
                             for side in sides[2 * index:2 * index + 2])
            layer.lazy_initialization(keys_, values)
            layer.keys, layer.values = keys_, values
        return cache, loaded
