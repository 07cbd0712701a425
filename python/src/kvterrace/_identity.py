# SPDX-License-Identifier: Apache-2.0
"""What a model of torch computes KV with, as bytes of a space: its tensors by content, the plain
attributes of its modules, its configuration.

The content is read once, and each call compares a fingerprint: of every tensor the object, its
address, version, shape and type, and SAMPLES elements. That sees other weights, in-place
operations, `load_state_dict`, optimizer steps, and dense writes past torch's counters (`.data`,
numpy). It cannot see a write past the counters that leaves all samples as they are; a new Identity
reads everything.
"""

import concurrent.futures
import hashlib
import json
import os
import weakref

import torch
import transformers

from ._errors import refuse

SAMPLES = 16
_BLOCK = 1 << 14  # words that one sum stands for
_WEIGHTS = {}  # of each device
_THREADS = min(8, os.cpu_count() or 1)
# Code whose version is known: transformers' is part of the space, and the others follow it.
_KNOWN_CODE = {"torch", "transformers", "peft", "accelerate"}
_PLAIN = (str, int, float, bool, type(None))
# Attributes of a module that decide no KV, or that are looked at elsewhere.
_SKIPPED = {"training", "gradient_checkpointing"}
# Of a configuration these decide no byte of the KV.
_IRRELEVANT = {"transformers_version", "_name_or_path", "architectures", "torch_dtype", "dtype",
               "bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "id2label", "label2id",
               "return_dict", "output_hidden_states", "output_attentions"}


def _root(thing):
    return (getattr(thing, "__module__", None) or "").split(".", 1)[0]


def _plain(value):
    """Whether a value is text, numbers, or a container of such."""
    if isinstance(value, dict):
        return all(_plain(key) and _plain(one) for key, one in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_plain, value))
    return isinstance(value, _PLAIN)


def _ordered(value):
    """A value of JSON for one that JSON has not; sets have no order of their own."""
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)


def rotary_kinds(config):
    """[(rotary type, its parameters, the configuration it stands in)] of all layers' kinds, as
    nested configurations have them."""
    found, parts = [], [config]
    while parts:
        part = parts.pop()
        for name in getattr(part, "sub_configs", None) or ():
            if getattr(part, name, None) is not None:
                parts.append(getattr(part, name))
        rotary = getattr(part, "rope_parameters", None) or {}
        for one in (rotary, *rotary.values()):
            if isinstance(one, dict) and "rope_type" in one:
                found.append((one["rope_type"], one, part))
    return found


def regimes(config, length):
    """Whether a sequence of so many tokens is beyond the limit of each rotary type that has two
    regimes. Dynamic NTK has one for each length beyond the limit: None, no name stands for it."""
    found = []
    for kind, rotary, part in rotary_kinds(config):
        limit = rotary.get("original_max_position_embeddings")
        if kind == "longrope":
            found.append(length > limit)
        elif "dynamic" in kind:
            # At the limit itself the regime is that of the longest sequence before.
            if length >= min(limit or 1 << 62, part.max_position_embeddings):
                return None
    return tuple(found)


def _content(tensor):
    """16 bytes or more that stand for a tensor's bytes: of each block of words a sum with random
    odd weights, modulo 2^64, where the tensor lies. No secret, but no accident hits it."""
    with torch.no_grad():
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if data.numel() < 1 << 16:
            return bytes(data.cpu().numpy())
        if data.storage_offset() % 8:
            data = data.clone()
        whole = data.numel() // 8 * 8
        weights = _weights(data.device)
        sums, words = [], data[:whole].view(torch.int64)
        for piece in words.split(_BLOCK if data.device.type == "cpu" else _BLOCK * 256):
            piece = piece ^ (piece >> 29)  # else a change of high bits alone keeps to high bits
            full = piece.numel() // _BLOCK * _BLOCK
            sums.append((piece[:full].view(-1, _BLOCK) * weights).sum(1))
            sums.append((piece[full:] * weights[:piece.numel() - full]).sum().reshape(1))
        return torch.cat(sums).cpu().numpy().tobytes() + bytes(data[whole:].cpu().numpy())


def _weights(device):
    if device not in _WEIGHTS:
        generator = torch.Generator().manual_seed(0x6B767465)
        made = torch.randint(-1 << 63, (1 << 63) - 1, (_BLOCK,), generator=generator,
                             dtype=torch.int64) | 1
        _WEIGHTS[device] = made.to(device)
    return _WEIGHTS[device]


def _samples(tensors):
    """SAMPLES elements of each tensor, spread over it, as bytes; one copy from each device."""
    groups, found = {}, [b""] * len(tensors)
    for index, tensor in enumerate(tensors):
        count, tensor = tensor.numel(), tensor.detach()
        if count:
            groups.setdefault((tensor.device, tensor.dtype), []).append(index)
            if not tensor.is_contiguous():
                tensor = tensor.flatten()
            picked = min(count, SAMPLES)
            found[index] = tensor.as_strided((picked,), (count // picked,), tensor.storage_offset())
    for indices in groups.values():
        data = torch.cat([found[index] for index in indices]).view(torch.uint8)
        data, first = data.cpu().numpy().tobytes(), 0
        for index in indices:
            size = found[index].numel() * found[index].element_size()
            found[index], first = data[first:first + size], first + size
    return found


class Identity:
    """What decides a model's KV beside token ids, at each call. revision: None reads all tensors; a
    text stands for what cannot be read, and for the tensors but those of adapters."""

    def __init__(self, model, revision):
        self.model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
        self._named, self._contents, self._facts, self._digest = revision is not None, None, [], b""
        self.now()

    def now(self):
        """32 bytes that stand for all that decides. UnsupportedError: something that does cannot be
        read, or has changed under a revision."""
        self._check()
        facts, tensors = [], []
        with torch.no_grad():
            self._visit(self.model, "", frozenset(), False, facts, tensors, set())
            marks = {name: (weakref.ref(tensor), _mark(tensor, sample), adapters)
                     for (name, tensor, adapters), sample
                     in zip(tensors, _samples([one[1] for one in tensors]))}
            facts.append(self._configuration())
            before = self._contents or {}
            changed = [(name, tensor) for name, tensor, _ in tensors if name not in before or
                       before[name][0]() is not tensor or before[name][1] != marks[name][1]]
            if not changed and facts == self._facts and len(marks) == len(before):
                return self._digest
            self._take(facts, marks, changed)
        return self._digest

    def _take(self, facts, marks, changed):
        if self._named and self._contents is not None:
            base = [name for name, _ in changed if not marks[name][2]]
            base += [name for name, one in self._contents.items() if not one[2] and
                     name not in marks]
            if base:
                raise refuse(f"{base[0]} was changed, moved or replaced since the revision was "
                             "named: make the Prefixes anew, with the revision of what the model "
                             "is now")
        read = [(name, tensor) for name, tensor in changed if marks[name][2] or not self._named]
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            made = dict(zip([name for name, _ in read],
                            pool.map(_content, [tensor for _, tensor in read])))
        contents = {}
        for name, (reference, mark, adapters) in marks.items():
            digest = made.get(name) or (self._contents or {}).get(name, (b"",) * 4)[3]
            contents[name] = reference, mark, adapters, digest
        whole = hashlib.sha256(repr(facts).encode())
        for name, (_, mark, _, digest) in contents.items():
            whole.update(repr((name, *mark[:2], digest)).encode())
        self._facts, self._contents, self._digest = facts, contents, whole.digest()

    def _check(self):
        """Refuses what no name can stand for."""
        model = self.model
        if (getattr(model, "_tp_size", None) or 1) > 1:
            raise refuse("the model is one of several tensor ranks, and each has KV of its own")
        for name, config in (getattr(model, "peft_config", None) or {}).items():
            if getattr(config, "is_prompt_learning", False):
                raise refuse(f"the adapter {name} puts virtual tokens before the prompt, which no "
                             "token ids name")
            if getattr(config, "alora_invocation_tokens", None):
                raise refuse(f"the adapter {name} acts from its invocation on, so KV depends on "
                             "what a call computes at once")
        if not self._named and (getattr(model.config, "quantization_config", None) is not None or
                                getattr(model, "is_quantized", False)):
            self._need("the weights are quantised, with scales that lie beside them")

    def _need(self, what):
        if not self._named:
            raise refuse(f"{what}: name weights, code and quantisation by revision=")

    def _configuration(self):
        config = self.model.config
        said = {key: value for key, value in config.to_dict().items() if key not in _IRRELEVANT}
        text, device = config.get_text_config(decoder=True), self.model.device.type
        return (transformers.__version__, str(self.model.dtype),
                json.dumps(said, sort_keys=True, default=_ordered),
                [getattr(one, name, None) for one in (config, text)
                 for name in ("_attn_implementation", "_experts_implementation")],
                str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "")

    def _visit(self, module, path, idle, adapters, facts, tensors, seen):
        """Notes a module's kind, plain attributes and tensors, then those of its children. idle:
        names of adapters that are not active here; adapters: whether this is a part of one."""
        if id(module) in seen:
            return
        seen.add(id(module))
        own, kind = vars(module), type(module)
        forward = own.get("forward")
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        for code in (kind, *hooks, *([] if forward is None else [forward])):
            if _root(code) not in _KNOWN_CODE:
                name = getattr(code, "__qualname__", type(code).__qualname__)
                self._need(f"{path or 'the model'} runs code that is not transformers' ({name})")
        if hasattr(module, "adapter_layer_names"):
            active = [] if module.disable_adapters else list(module.active_adapters)
            idle, adapters = frozenset(module._get_available_adapters()) - set(active), True
            facts.append((path, "adapters", active))
        rotary = own.get("rope_type")
        moving = any("dynamic" in one or one == "longrope" for one in
                     (rotary.values() if isinstance(rotary, dict) else [rotary or ""]))
        facts.append((path, kind.__module__, kind.__qualname__, len(hooks)))
        for name, value in own.items():
            if name in _SKIPPED or name[:1] == "_":
                continue
            if moving and name.endswith(("max_seq_len_cached", "attention_scaling", "inv_freq")):
                continue  # of the last call; the parameters are the configuration's
            if isinstance(value, dict):
                value = {key: one for key, one in value.items() if key not in idle}
            if isinstance(value, torch.Tensor):
                self._tensor(path, name, value, adapters, tensors)
            elif _plain(value):
                facts.append((path, name, _ordered(value) if isinstance(value, (set, frozenset))
                              else repr(value)))
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None and name not in idle and not (moving and
                                                               name.endswith("inv_freq")):
                self._tensor(path, name, value, adapters, tensors)
        for name, child in module._modules.items():
            if child is not None and name not in idle:
                base = name in ("base_layer", "original_module")
                self._visit(child, f"{path}.{name}" if path else name,
                            frozenset() if base else idle, adapters and not base, facts, tensors,
                            seen)

    def _tensor(self, path, name, tensor, adapters, tensors):
        name = f"{path}.{name}"
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or \
                tensor.layout != torch.strided:
            self._need(f"{name} is a {type(tensor).__qualname__}, which cannot be read as bytes")
        elif tensor.device.type == "meta":
            self._need(f"{name} is offloaded")
        else:
            tensors.append((name, tensor, adapters))


def _mark(tensor, sample):
    """What changes with a tensor's content, as far as torch counts and the samples see."""
    return (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, tensor.data_ptr(),
            None if tensor.is_inference() else tensor._version, sample)
