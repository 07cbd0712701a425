# SPDX-License-Identifier: Apache-2.0
"""transformers: the KV of a DynamicCache, prefix by prefix in chunks of tokens.

    prefixes = kvterrace.transformers.Prefixes(store, model, chunk=256)
    cache, restored = prefixes.restore(tokens)          # as many leading tokens as are stored
    out = model.generate(tokens, past_key_values=cache, max_new_tokens=64,
                         return_dict_in_generate=True)
    prefixes.save(out.past_key_values, out.sequences)   # puts the chunks that are not there yet

docs/ENGINES.md has what decides whether a chunk is found.
"""

import hashlib
import json
import struct

import torch
import transformers as _engine
from transformers.cache_utils import DynamicCache, DynamicLayer

from ._engines import need_version
from ._errors import failure, wrong
from ._kvt import lib
from ._store import Outcome
from ._types import Layout, Space, View

TESTED = ("5.19.0",)
need_version("transformers", _engine.__version__, TESTED)

_DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
# Of a configuration these decide no byte of the KV.
_IRRELEVANT = {"transformers_version", "_name_or_path", "architectures", "torch_dtype", "dtype",
               "bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "id2label", "label2id",
               "return_dict", "output_hidden_states", "output_attentions", "_attn_implementation"}


def _refuse(message):
    return failure(lib.KVT_E_UNSUPPORTED, message)


def _layers(cache):
    """The layers of a cache whose KV is that of all tokens, as the model computed it."""
    if not isinstance(cache, DynamicCache):
        raise _refuse(f"a {type(cache).__name__} is no DynamicCache")
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer:
            continue
        name, reason = type(layer).__name__, "its state is not the KV of each token"
        if getattr(layer, "is_sliding", False):
            reason = "a sliding window has dropped the tokens before it, so no later prompt can " \
                     "begin with what is left"
        elif "Quantized" in name:
            reason = "it keeps numbers that transformers has rounded already: keep them exact " \
                     "here, and let the store choose a lossy form"
        raise _refuse(f"layer {index} is a {name}: {reason}")
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


class Prefixes:
    """The prefixes of one model in a store.

    chunk: tokens of an entry; a prefix is found in whole chunks. name, revision: the model's
    weights; without them what transformers says of where they came from. A folder whose content
    changes needs a revision. salt keeps apart what must not be shared, such as tenants.
    recompute_seconds_per_token: what a token's prefill takes; 0 lets the store predict it.

    Sequences begin at position 0, without padding before them.
    """

    def __init__(self, store, model, *, chunk=256, name=None, revision=None, salt="",
                 recompute_seconds_per_token=0.0):
        if not isinstance(chunk, int) or chunk < 1:
            raise wrong(f"chunk is a number of tokens, not {chunk!r}")
        if model.dtype not in _DTYPES:
            raise _refuse(f"no element type of kvterrace is {model.dtype}")
        self.store, self.model, self.chunk = store, model, chunk
        self._seconds = chunk * recompute_seconds_per_token
        config = model.config
        _layers(DynamicCache(config=config))
        decides = {key: value for key, value in config.to_dict().items() if key not in _IRRELEVANT}
        if revision is None:
            revision = getattr(config, "_commit_hash", None) or ""
        self.space = Space(
            model=name if name is not None else config._name_or_path, revision=revision, salt=salt,
            dtype=_DTYPES[model.dtype], block_tokens=chunk, order="layer_side",
            extra=hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).digest()
            + b"transformers")

    def keys(self, tokens):
        """The key of each whole chunk; each stands for all tokens up to its end."""
        keys, name = [], b""
        tokens = _tokens(tokens)
        for first in range(0, len(tokens) - self.chunk + 1, self.chunk):
            part = tokens[first:first + self.chunk]
            name = hashlib.blake2b(name + struct.pack(f"<{len(part)}q", *part),
                                   digest_size=32).digest()
            keys.append(self.space.key(name))
        return keys

    def save(self, cache, tokens):
        """Puts the KV of the tokens' whole chunks, as far as the cache has it, and returns how many
        leading tokens are in the store now. What is there already is not read."""
        layers, tokens = _layers(cache), _tokens(tokens)
        have = min(len(tokens), cache.get_seq_length())
        keys = self.keys(tokens[:have])
        stored = self.store.match(keys)
        if stored == len(keys):
            return stored * self.chunk
        memories, layout = self._memories(layers)
        total = layers[0].keys.shape[-2]
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

    def _memories(self, layers):
        """K and V of each layer in host memory, and the layout of a chunk."""
        shapes = {tuple(side.shape) for layer in layers for side in (layer.keys, layer.values)}
        dtypes = {side.dtype for layer in layers for side in (layer.keys, layer.values)}
        if dtypes != {self.model.dtype}:
            raise _refuse(f"the cache has {', '.join(map(str, dtypes))}, "
                          f"the model {self.model.dtype}")
        if len(shapes) != 1:
            raise _refuse(f"the layers have several shapes: {', '.join(map(str, sorted(shapes)))}")
        (batch, heads, _, dim), = shapes
        if batch != 1:
            raise _refuse(f"the cache has a batch of {batch}: save one sequence at a time")
        layout = Layout(len(layers), heads, dim, _DTYPES[self.model.dtype], self.chunk)
        return [side[0].detach().cpu().contiguous() for layer in layers
                for side in (layer.keys, layer.values)], layout

    def restore(self, tokens, *, deadline=None):
        """A new DynamicCache with the KV of as many leading tokens as are stored, and how many
        these are. At least the last token is left to the model, which has no logits otherwise.
        deadline: seconds from now after which chunks on devices are not waited for."""
        tokens = _tokens(tokens)
        keys = self.keys(tokens[:-1])
        keys = keys[:self.store.match(keys)]
        cache = DynamicCache(config=self.model.config)
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
        device = self.model.device
        for index, layer in enumerate(layers):
            keys_, values = (side[None, :, :loaded].contiguous().to(device)
                             for side in sides[2 * index:2 * index + 2])
            layer.lazy_initialization(keys_, values)
            layer.keys, layer.values = keys_, values
        return cache, loaded
