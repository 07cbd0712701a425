# SPDX-License-Identifier: Apache-2.0
"""KV heads of a model by the model's own configuration, for adapters whose engine does not tell
them. One rule for all: numbers that are given count, "auto" asks the configuration, and so does
nothing given where the settings name lossy forms."""

import json
import os

from ._errors import failure
from ._kvt import lib

AUTO = "auto"
_PARTS = ("text_config", "llm_config", "language_config")  # of models of more than text


def kv_shape(config):
    """(KV heads, elements of a head) by a configuration as config.json has it; None where it does
    not give them, or not the same for all layers."""
    if not isinstance(config, dict):
        return None
    for part in _PARTS:
        if isinstance(config.get(part), dict):
            return kv_shape(config[part])
    heads = config.get("num_attention_heads")
    kv_heads, dim = config.get("num_key_value_heads"), config.get("head_dim")
    if kv_heads is None:
        kv_heads = heads
    if dim is None and isinstance(heads, int) and isinstance(config.get("hidden_size"), int):
        dim = config["hidden_size"] // heads if heads > 0 else None
    if config.get("kv_lora_rank") or config.get("multi_query"):  # a latent, or one head by a switch
        return None
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in (kv_heads, dim)):
        return None
    return kv_heads, dim


def _find(model):
    """The path of a model's config.json, in its folder or in the cache of Hugging Face; no host is
    asked."""
    path = os.path.join(model, "config.json")
    if os.path.isfile(path) or os.path.isdir(model):
        return path
    try:
        from huggingface_hub import try_to_load_from_cache
        found = try_to_load_from_cache(model, "config.json")
    except Exception:  # no such package, or a name that is none there
        return None
    return found if isinstance(found, str) else None


def shape_of_model(model):
    """kv_shape of a model that an engine names by folder or by name; None: not to be had."""
    path = _find(model) if isinstance(model, str) and model else None
    try:
        with open(path, encoding="utf-8") as file:
            return kv_shape(json.load(file))
    except (OSError, TypeError, ValueError):
        return None


def wants_shape(settings=None, variant=None):
    """Whether settings name forms that need to know what bytes are: lossy ones."""
    settings = settings or {}
    chosen = str(variant or settings.get("store.variant") or "raw").partition(":")[0]
    return settings.get("store.ladder") == "calibrated" or chosen not in ("raw", "lossless")


def choose_shape(adapter, given, wanted, model):
    """(KV heads, elements of a head) to take for a model, (0, 0) for bytes. given: a number or
    "auto" for each of the two, 0 or None where nothing was; wanted: as wants_shape says."""
    automatic = AUTO in given
    if not automatic and (any(given) or not wanted):
        return tuple(one or 0 for one in given)
    found = shape_of_model(model)
    if found is None:
        if automatic:
            raise failure(lib.KVT_E_CONFIG, f"{adapter}: no configuration of the model {model!r} "
                          "says how many KV heads it has and how large they are: give numbers")
        return 0, 0
    for one, here in zip(given, found):
        if one not in (0, None, AUTO, here):
            raise failure(lib.KVT_E_CONFIG, f"{adapter}: {one} was given where the model's "
                          f"configuration has {here}")
    return found
