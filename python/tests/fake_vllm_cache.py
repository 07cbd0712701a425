# SPDX-License-Identifier: Apache-2.0
"""The names of vLLM 0.32.0 that kvterrace.vllm_cache stands on, so that its tests need no engine.

`python -m kvterrace.bench policy` drives the real ones where vLLM is installed.
"""

import itertools
import sys
import types


class ChunkStatus:
    def __init__(self):
        self.ref_cnt = -1

    @property
    def is_ready(self):
        return self.ref_cnt >= 0


class ReqContext:
    numbers = itertools.count()

    def __init__(self, positions):
        self.req_id, self._offload_key_positions = str(next(self.numbers)), positions
        self._state = {}

    def set_state(self, value):
        self._state[type(value)] = value

    def get_state(self, kind):
        return self._state.get(kind)


class CachePolicy:
    def __init__(self, cache_capacity):
        self.cache_capacity = cache_capacity


def make_offload_key(block_hash, group_idx):
    return block_hash + group_idx.to_bytes(4, "big")


def get_offload_group_idx(key):
    return int.from_bytes(key[-4:], "big")


def order_request_keys(key_groups, req_context):
    return [key for group in key_groups for key in group]


def install():
    """Puts the names where the adapter looks for them; returns what takes them away."""
    names = {"vllm": {"__version__": "0.32.0"},
             "vllm.v1": {}, "vllm.v1.kv_offload": {},
             "vllm.v1.kv_offload.base": {"get_offload_group_idx": get_offload_group_idx},
             "vllm.v1.kv_offload.cpu": {}, "vllm.v1.kv_offload.cpu.policies": {},
             "vllm.v1.kv_offload.cpu.policies.base": {"CachePolicy": CachePolicy,
                                                      "order_request_keys": order_request_keys}}
    before = {name: sys.modules.get(name) for name in names}
    for name, members in names.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(members)

    def remove():
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module

    return remove
