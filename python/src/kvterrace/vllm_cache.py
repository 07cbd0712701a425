# SPDX-License-Identifier: Apache-2.0
"""vLLM: kvterrace's decisions for the cache of its own KV offloading.

vLLM keeps the bytes and asks which chunks go. Loaded by configuration (docs/ENGINES.md):

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"cpu_bytes_to_use": 8589934592, "block_size": 256,
        "eviction_policy": "KvterracePolicy",
        "cache_policy_module_path": "kvterrace.vllm_cache"}}'
"""

import vllm

from ._engines import Engine
from .policy import BlockCache

TESTED = ("0.32.0",)

with Engine("vLLM", getattr(vllm, "__version__", "unknown"), TESTED) as _engine:
    from vllm.v1.kv_offload.base import get_offload_group_idx
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, order_request_keys

__all__ = ["KvterracePolicy"]


class _Counted(set):
    """The state of ReqContext with the chunks whose use by that request is counted."""


class KvterracePolicy(CachePolicy):
    """Chunks go by what keeping them is worth: how soon uses are expected of them, and whether
    chunks behind them in a prefix stand on them. Transfers pin their chunks.

    clock gives seconds, for tests and replays; vLLM makes the policy of its capacity alone.
    """

    def __init__(self, cache_capacity, clock=None):
        super().__init__(cache_capacity)
        self.chunks = {}
        self._blocks = BlockCache(cache_capacity, clock=clock)
        self._parents = {}  # of chunks that are about to be inserted

    def get(self, key):
        return self.chunks.get(key)

    def on_store_miss(self, keys, req_context):
        """Notes which chunk each new one follows, and counts the uses of those before it, so that
        they are known when it is decided what goes. vLLM tells the place of a key in its request,
        and keeps those of the others to itself; without them the order of the keys stands in."""
        keys = list(keys)
        known = getattr(req_context, "_offload_key_positions", None) or {}
        ordered = sorted(known, key=known.__getitem__) if all(key in known for key in keys) else \
            keys
        last, new, counted = {}, set(keys), req_context.get_state(_Counted)
        if counted is None:
            counted = _Counted()
            req_context.set_state(counted)
        found, before = [], 0  # chunks that are there; of these, those before the last new one
        for key in ordered:
            group, chunk = get_offload_group_idx(key), self.chunks.get(key)
            if key in new:
                self._parents[key], before = last.get(group), len(found)
            elif chunk is not None and chunk.is_ready and key not in counted:
                found.append(key)
            last[group] = key
        self._blocks.touch(found[:before])
        counted.update(new, found[:before])

    def insert(self, key, chunk):
        self.chunks[key] = chunk
        self._blocks.insert(key, self._parents.pop(key, None))
        if chunk.ref_cnt != 0:
            self._blocks.pin(key)  # until its bytes are there, or are not read any more

    def remove(self, key):
        del self.chunks[key]
        self._blocks.remove(key)

    def touch(self, keys, req_context):
        self._blocks.touch(keys)

    def on_request_finished(self, key_groups, insertion_only_keys, reused_keys, req_context):
        """Counts one use of each chunk that the request has read; the first use of one that it has
        stored was counted then."""
        self._parents.clear()  # of chunks that were not stored after all
        counted = req_context.get_state(_Counted) or ()
        self._blocks.touch([key for key in order_request_keys(key_groups, req_context)
                            if key in reused_keys and key not in counted])

    def evict(self, n, protected):
        if n == 0:
            return []
        keys = self._blocks.evict(n, protected)
        return None if keys is None else [(key, self.chunks.pop(key)) for key in keys]

    def clear(self):
        self.chunks.clear()
        self._parents.clear()
        self._blocks.clear()

    def mark_evictable(self, key):
        self._blocks.unpin(key)

    def mark_non_evictable(self, key):
        self._blocks.pin(key)


_engine.check(KvterracePolicy)
