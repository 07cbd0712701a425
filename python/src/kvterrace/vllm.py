# SPDX-License-Identifier: Apache-2.0
"""vLLM: a secondary tier of its KV offloading, and a spec that offloads on its CPU platform.

Both are loaded by configuration (docs/ENGINES.md):

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 8589934592, "block_size": 256,
        "secondary_tiers": [{"type": "KvterraceTier", "module_path": "kvterrace.vllm",
                             "config": "/etc/kvterrace.ini", "revision": "sha256:9f2c"}]}}'

On the CPU platform: "spec_name": "HostTieringSpec", "spec_module_path": "kvterrace.vllm".
"""

import json
import logging
import os
import time
import typing

import vllm

from . import __version__ as _version
from ._books import Said, Told
from ._convert import new
from ._engines import Engine, check_one_place, fill_places, need_identity
from ._errors import DeviceError, Error, failure, wrong
from ._hosts import Asked, Hosts
from ._kvt import ffi, lib
from ._memory import memory_of
from ._shapes import choose_shape, wants_shape
from ._store import Store, readers_to_come
from ._tasks import EXISTED, GET, OK, PUT, Places, Tasks, make_like
from ._types import Layout, Space, element_name
from ._vllm_room import Turns
from ._wishes import wishes_of

TESTED = ("0.32.0",)

with Engine("vLLM", getattr(vllm, "__version__", "unknown"), TESTED) as _engine:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        OffloadingConnectorStats)
    from vllm.v1.kv_offload.base import (
        Locality, LookupResult, Medium, OffloadingCounterMetadata, OffloadingEvent,
        OffloadingGaugeMetadata, ReqContext, RequestOffloadingContext, ScheduleEndContext,
        get_offload_block_hash, get_offload_group_idx)
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    from ._vllm_copies import HostCopyWorker, learn_order

_log = logging.getLogger("vllm.kvterrace")
_DTYPES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32",
           "float": "fp32", "fp8": "fp8", "fp8_e4m3": "fp8"}
_COUNTERS = {"load_misses": "Chunks that a load asked for and kvterrace did not have whole",
             "stores_refused": "Chunks that the policy declined, or that came without a server",
             "stores_failed": "Chunks that kvterrace could not take in time",
             "room_waits": "Requests that waited for room in vLLM's host memory",
             "room_misses": "Requests for which that room did not come in time",
             "load_stored_bytes": "Bytes of records that loads read, as they are stored"}
_GAUGES = {"entries": "Entries in a tier of kvterrace", "bytes": "Bytes of a tier in use"}
_TIERS = ("hbm", "dram", "ssd")
_STATS_SECONDS = 1.0
_DEPTH = 1 << 16
_SECONDS_PER_TOKEN = 1e-4


_TIER = "the tier KvterraceTier of vLLM"


def _wrong(message):
    return failure(lib.KVT_E_CONFIG, f"{_TIER}: {message}")


def _machine(platform):
    """What decides how a kernel of vLLM packs KV within a block, beside the layout's name."""
    name = getattr(platform, "device_name", "unknown")
    if name != "cpu":
        return name
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    return "cpu " + " ".join(flag for flag in ("amx_tile", "avx512f", "asimd")
                             if flag in flags.split())


def _fault_of_shape(spec, heads):
    """Why rows of a spec cannot have a shape; None where they can: the groups of layers are alike,
    and the workers part the heads among them, or write one copy."""
    config, parallel = spec.config, spec.config.parallel
    replicated = getattr(spec, "replicated_layout", False)
    if len({(len(group.layer_names), group.tokens_per_block) for group in config.groups}) != 1:
        return "groups of layers that differ in their number or in the tokens of a block"
    if parallel.world_size != 1 and not replicated and (
            parallel.tp_size != parallel.world_size or heads % parallel.tp_size != 0):
        return f"{parallel.world_size} workers that do not each have a part of the {heads} heads"
    if parallel.world_size != 1 and not replicated and not isinstance(spec, HostTieringSpec):
        return "workers that lay their parts of a row side by side"
    return None


def _check_shape(spec, heads):
    fault = _fault_of_shape(spec, heads)
    if fault is not None:
        raise _wrong(f"kv_heads and head_dim do not describe rows of {fault}; leave them out, and "
                     "rows are kept as bytes")


def _copies(spec):
    """The workers that each write a part of a row."""
    return 1 if getattr(spec, "replicated_layout", False) else spec.config.parallel.world_size


def _find_shape(spec, tier):
    """kv_heads and head_dim of a tier's configuration, (0, 0) for rows as bytes. Numbers that
    nobody gave are taken only where a row can have them."""
    config, given = spec.config, (tier.get("kv_heads"), tier.get("head_dim"))
    host = isinstance(spec, HostTieringSpec)
    wanted = wants_shape(tier.get("settings"), tier.get("variant")) and \
        (host or tier.get("axes") is not None)
    heads, dim = choose_shape(_TIER, given, wanted, config.model.name)
    if any(given) or not heads:
        return heads, dim
    kind = _DTYPES.get(str(config.model.dtype).removeprefix("torch."))
    fits = kind is not None and _fault_of_shape(spec, heads) is None and \
        (not host or len(spec.secondary_tier_configs) == 1)
    if fits:
        block = Layout(len(config.groups[0].layer_names), heads, dim, kind,
                       config.groups[0].tokens_per_block)
        fits = block.bytes == config.worker_kv_bytes_per_block * _copies(spec)
    if not fits:
        _log.info("kvterrace: rows are kept as bytes: they are not of %d KV heads of %d", heads,
                  dim)
    return (heads, dim) if fits else (0, 0)


class _Rows:
    """The rows of vLLM's host memory as entries: the layout, and the place of each row."""

    def __init__(self, spec, view, kv_heads, head_dim, axes):
        config, self.spec = spec.config, spec
        self.replicated, copies = getattr(spec, "replicated_layout", False), _copies(spec)
        self.blocks = config.cache.blocks_per_chunk
        self.tokens = config.groups[0].tokens_per_block * self.blocks
        self.stride, self.count = view.strides[0], view.shape[0]
        used = config.worker_kv_bytes_per_block * self.blocks * copies
        self.bytes = used if 0 < used <= self.stride else self.stride
        self.memory = memory_of(view, writable=True)
        self.template = None
        if kv_heads or head_dim:
            self.layout = self._shape(config, kv_heads, head_dim, axes)
        else:
            self.layout = Layout.opaque(self.bytes)

    def _shape(self, config, kv_heads, head_dim, axes):
        if not kv_heads or not head_dim:
            raise _wrong("kv_heads and head_dim go together")
        _check_shape(self.spec, kv_heads)
        dtype = _DTYPES.get(str(config.model.dtype).removeprefix("torch."))
        if dtype is None:
            raise _wrong(f"no element type of kvterrace is {config.model.dtype}")
        layers = len(config.groups[0].layer_names)
        layout = Layout(layers, kv_heads, head_dim, dtype, self.tokens)
        if layout.bytes != self.bytes:
            raise _wrong(f"{layers} layers x 2 x {self.tokens} tokens x {kv_heads} heads x "
                         f"{head_dim} of {dtype} are {layout.bytes} bytes, a row has {self.bytes}")
        if getattr(self.spec, "packed", None) == (kv_heads, head_dim):
            return layout  # HostTieringSpec writes rows in the layout's own order
        if axes is None:
            raise _wrong("axes is missing: the order of a row's axes, as docs/ENGINES.md lists it "
                         "for each attention backend")
        view, message = new("kvt_view"), ffi.new("char[256]")
        status = lib.kvt_view_make(layout._made, str(axes).encode(),
                                   self.tokens // self.blocks, self.blocks, view)
        if status != lib.KVT_OK:
            raise _wrong(f"no row has the axes {axes!r}")
        view.base[0], view.base_bytes[0] = self.memory.address, self.bytes
        status = lib.kvt_view_check(view, layout._made, message, 256)
        if status != lib.KVT_OK:
            raise _wrong(f"axes {axes!r}: {ffi.string(message).decode()}")
        self.template = view
        return layout

    @property
    def shaped(self):
        return self.layout.dtype != "opaque"

    def places(self, chunks):
        """ArgumentError: a number that is no chunk of the region."""
        first, rows = int(ffi.cast("uintptr_t", self.memory.address)), [int(one) for one in chunks]
        for row in rows:
            if not 0 <= row < self.count:
                raise wrong(f"chunk {row} of a region that has {self.count}")
        return Places([self.layout], addresses=[first + row * self.stride for row in rows],
                      pattern=self.template, elsewhere=True)


class _Request:
    """What a tier knows of one request. It hangs on vLLM's own context of the request and on the
    jobs of it that have not ended: with the last of these it goes, in whatever order they end."""

    __slots__ = ("name", "failed", "ends", "asked", "wishes", "like", "used", "finished", "found")

    def __init__(self, name, wishes, like):
        self.name = name  # vLLM's
        self.failed, self.ends = set(), {}  # keys that a load missed; (group, end): the key
        self.asked = {}  # of each group, what other hosts are known to have
        self.wishes, self.like = wishes, like
        self.used, self.finished = set(), False  # keys that its hint is for
        self.found = []  # keys that it was the first to find


class _Requests(dict):
    """The state of ReqContext in which each tier has its _Request."""


class _Job(typing.NamedTuple):
    """A job of vLLM: its keys, and the same as kvterrace has them."""

    name: int
    keys: list
    ours: list
    request: _Request


class KvterraceTier(SecondaryTierManager):
    """A secondary tier of vLLM's tiered KV offloading that keeps chunks in a store of kvterrace.

    Keys of its configuration:

    config, settings    a file and a dict of settings of docs/CONFIGURATION.md, or one of the two.
                        {dp} in their values becomes the number of the data parallel replica,
                        {engine} the engine's id, for engines that keep stores apart
    connect             in their place: the socket of `kvterrace serve`, whose store all engines of
                        the host share. It tells no events
    kv_heads, head_dim, axes   what a row consists of, for lossy variants; else rows stay as bytes,
                        by the raw and lossless codecs. HostTieringSpec needs no axes. "auto" takes
                        the two numbers from the model's config.json, as do a `variant` and a
                        ladder among `settings` where it has them and they fit
    variant             a fixed form, such as "planes:k8v8,g64", for policies that choose none
    revision, salt      of the model's weights, and whatever else decides KV; one of them is needed
                        where the store has a catalog, other hosts or other processes
    recompute_seconds_per_token   what a token's prefill takes, for policies that weigh it. Without
                        it 0.0001 for rows that are kept as bytes; for rows with a shape, what the
                        store's prefill model predicts
    store_seconds       how long a store waits for room before its chunks are dropped (30)
    load_seconds        how long a load waits for devices; without it, as long as it takes
    host_seconds        how long a lookup waits for other hosts; without it, remote.deadline
    room_seconds        how long a request whose chunks are here and find no room in vLLM's host
                        memory waits, without one before it getting in, until vLLM computes them
                        (1; 0: not at all)
    threads             of the queue for loads (0: 2)
    enable_kv_events, locality   as vLLM's own tiers have them. Events tell the tier that has an
                        entry, DRAM as CPU and the rest as STORAGE, and LOCAL without locality

    Requests say by `kvterrace` in their kv_transfer_params, or by KV hints, what is to become of
    their KV (_wishes.py).
    """

    medium = Medium.STORAGE

    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None, *,
                 config=None, settings=None, connect=None, variant=None, kv_heads=0, head_dim=0,
                 axes=None, revision=None, salt=None, recompute_seconds_per_token=None,
                 store_seconds=30.0, load_seconds=None, host_seconds=None, room_seconds=1.0,
                 threads=0,
                 enable_kv_events=False, locality=None, **unknown):
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if unknown:
            raise _wrong(f"unknown keys: {', '.join(sorted(unknown))}")
        if config is None and settings is None and connect is None:
            raise _wrong("config, settings or connect says where the store is")
        check_one_place(_TIER, connect, config=config, settings=settings, variant=variant)
        about = offloading_spec.config
        place = fill_places(_TIER, {"dp": about.parallel.data_parallel_index,
                                    "engine": about.engine_id},
                            {"config": config, "settings": settings, "connect": connect})
        self._readers = readers_to_come(**place)
        need_identity(_TIER, self._readers, "revision", "salt",
                      given=revision if salt is None else salt)
        self.locality = Locality(locality) if locality is not None else None
        self._store_seconds, self._load_seconds = store_seconds, load_seconds
        if isinstance(room_seconds, bool) or not isinstance(room_seconds, (int, float)) or \
                not 0 <= room_seconds <= 3600:
            raise _wrong(f"room_seconds is a number from 0 to 3600, not {room_seconds!r}")
        self._spec = offloading_spec
        kv_heads, head_dim = _find_shape(offloading_spec, {
            "kv_heads": kv_heads, "head_dim": head_dim, "axes": axes, "variant": variant,
            "settings": settings})
        self._rows = _Rows(offloading_spec, primary_kv_view, kv_heads, head_dim, axes)
        self._space = _space(offloading_spec.config, self._rows, revision or "",
                             salt or "")
        if recompute_seconds_per_token is None:
            recompute_seconds_per_token = 0.0 if self._rows.shaped else _SECONDS_PER_TOKEN
        self._seconds = self._rows.tokens * recompute_seconds_per_token
        self._like = make_like(recompute_seconds=self._seconds)
        self._jobs, self._ended, self._counts = 0, [], dict.fromkeys(_COUNTERS, 0)
        self._turns = Turns(room_seconds, self._counts) if room_seconds else None
        self._said, self._stats_at, self._closed = Said(_log), 0.0, False
        wanted = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        if enable_kv_events and not wanted:
            _log.warning("kvterrace: enable_kv_events without vLLM's own KV events does nothing")
        if wanted and connect is not None:
            wanted = False
            _log.warning("kvterrace: enable_kv_events does nothing: a connected store tells no "
                         "events")
        self._events = [] if wanted else None
        self._told, self._media = None, {}  # what is told to lie where
        self._found = {}  # chunks of an earlier process, which are not told yet
        self._loaded, self._due = [], []  # of these: to be told with the events after the next
        try:
            self._store = Store(**place, variant=variant)
        except BaseException:
            self._rows.memory.release()
            raise
        try:
            self._tasks = Tasks(self._store, threads=threads, depth=_DEPTH)
            if wanted:
                # Without DRAM what lies there is only on its way to a device.
                self._dram = bool(self._store.stats()["tiers"]["dram"]["capacity_bytes"])
                self._told = Told(self._store, follow=self._dram)
            shared = connect is None and self._store.remote_stats() is not None
            self._hosts = Hosts(self._store, host_seconds) if shared else None
        except BaseException:
            self._store.close()
            self._rows.memory.release()
            raise
        kept = f"as {self._rows.layout}" if self._rows.shaped else "as bytes"
        _log.info("kvterrace %s: chunks of %d tokens, %d bytes, kept %s", _version,
                  self._rows.tokens, self._rows.bytes, kept)

    def _key(self, key):
        return self._space.key(get_offload_block_hash(key), get_offload_group_idx(key))

    def _request(self, context):
        tiers = context.get_state(_Requests)
        if tiers is None:
            tiers = _Requests()
            context.set_state(tiers)
        if self not in tiers:
            wishes = wishes_of(context.kv_transfer_params, context.kv_hints, self._said)
            entry = wishes.entry
            like = self._like if entry is None else make_like(recompute_seconds=self._seconds,
                                                              **entry)
            tiers[self] = _Request(context.req_id, wishes, like)
        return tiers[self]

    # ---- what the scheduler asks ----

    def lookup(self, key, req_context):
        request = self._request(req_context)
        if key in request.failed or request.wishes.skip_read:
            return LookupResult.MISS
        mine = self._key(key)
        if self._store.exists(mine):
            if self._told is not None and self._told.note(mine, key):
                self._found[key] = mine  # by an earlier process
                request.found.append(key)
            return LookupResult.RETRY if self._waits_for_room(key, req_context) else \
                LookupResult.HIT
        if self._hosts is None:
            return LookupResult.MISS
        asked = request.asked.setdefault(get_offload_group_idx(key), Asked())
        there = self._hosts.ask(asked, mine)
        if there is None:
            return LookupResult.RETRY  # vLLM goes on with the prefix, and asks again next step
        return LookupResult.HIT if there else LookupResult.MISS

    def _waits_for_room(self, key, context):
        """Whether vLLM's host memory has no place for a chunk now, and may have one soon."""
        if self._turns is None:
            return False
        primary = getattr(getattr(self._spec, "_manager", None), "primary_tier", None)
        try:
            places = primary._get_num_free_chunks() + primary._num_evictable_cache_chunks
        except AttributeError:  # no such insides: vLLM decides
            return False
        return self._turns.waits(context.req_id, key, places)

    def on_schedule_end(self, context):
        if self._turns is not None:
            self._turns.scheduled(context.new_req_ids)
        if self._hosts is not None:
            self._hosts.send()

    def touch(self, keys, req_context):
        ours, request = [self._key(key) for key in keys], self._request(req_context)
        self._store.touch(ours)
        if request.wishes.hint is not None:
            request.used.update(ours)

    def on_new_request(self, req_context):
        if self._readers is not None:
            self._check_hashes()
        return RequestOffloadingContext()

    def _check_hashes(self):
        """vLLM chooses the seed of its block hashes after it has made its tiers and before its
        first request."""
        from vllm.v1.core import kv_cache_utils as hashes
        if os.environ.get("PYTHONHASHSEED") is None and \
                hashes.get_none_hash_seed() != hashes.DEFAULT_NONE_HASH_SEED:
            self._said.once("kvterrace: the block hashes of this process are its own, because "
                            "xxhash is seeded at random: what it stores is found by no later one "
                            "and by no other host. Set PYTHONHASHSEED, to the same value for all, "
                            "or --prefix-caching-hash-algo sha256")

    def on_request_finished(self, req_context):
        if self._turns is not None:
            self._turns.leave(req_context.req_id)
        request = (req_context.get_state(_Requests) or {}).pop(self, None)
        if request is None:
            return
        for asked in request.asked.values():
            self._hosts.forget(asked)
        request.finished = True  # what it still stores gets its hint then
        self._tell_found(request.found)
        self._hint(request, list(request.used))

    def _hint(self, request, ours):
        expected = request.wishes.expectation()
        if expected is None or not ours:
            return
        try:
            self._store.hint(ours, *expected)
        except Error as error:
            self._said.once("kvterrace: a hint is not taken: %s", error, of=error.code)

    # ---- jobs ----

    def submit_store(self, job_metadata):
        context = job_metadata.req_context

        def end(pair):  # vLLM gives them in any order: parents go first, and lie side by side then
            place = context.get_offload_key_position(pair[0])
            return (place is None, place)

        request = self._request(context)
        if request.wishes.skip_write:
            self._ended.append(JobResult(job_metadata.job_id, True, transfer_bytes=0))
            return
        pairs = sorted(zip(job_metadata.keys, job_metadata.chunk_ids, strict=True), key=end)
        keys, ours = [key for key, _ in pairs], [self._key(key) for key, _ in pairs]
        self._submit(PUT, _Job(job_metadata.job_id, keys, ours, request),
                     [chunk for _, chunk in pairs], self._store_seconds,
                     self._chain(keys, ours, request.ends, context))

    def _note(self, keys, ours, ends, context):
        """Where the chunks of a request end, for those that follow."""
        places = [context.get_offload_key_position(key) for key in keys]
        for key, mine, place in zip(keys, ours, places):
            if place is not None:
                ends[get_offload_group_idx(key), place] = mine
        return places

    def _chain(self, keys, ours, ends, context):
        """Parents and first positions of chunks, by where they end in their request."""
        places = self._note(keys, ours, ends, context)
        firsts = [max((place or self._rows.tokens) - self._rows.tokens, 0) for place in places]
        parents = [ends.get((get_offload_group_idx(key), first)) if first else None
                   for key, first in zip(keys, firsts)]
        return parents, firsts

    def submit_load(self, job_metadata):
        keys, context = list(job_metadata.keys), job_metadata.req_context
        ours = [self._key(key) for key in keys]
        request = self._request(context)
        self._note(keys, ours, request.ends, context)
        if request.wishes.hint is not None:
            request.used.update(ours)
        self._submit(GET, _Job(job_metadata.job_id, keys, ours, request),
                     job_metadata.chunk_ids, self._load_seconds)

    def _submit(self, kind, job, chunks, seconds, chain=None):
        """Hands a job over. One that cannot be begun, as with a number that is no chunk, has
        failed, and vLLM goes on without it."""
        self._jobs += 1
        try:
            places = self._rows.places(chunks)
            if chain is not None:
                places.follow(*chain)
            self._tasks.submit(self._tasks.make(kind, b"".join(job.ours), len(job.keys), places,
                                                like=job.request.like, deadline=seconds,
                                                note=(kind, job)))
        except Error as error:
            self._said.once("kvterrace: a job is not done: %s", error, of=error.code)
            self._end(kind, job, [error.code] * len(job.keys), 0, 0.0)

    def get_finished_jobs(self):
        self._take()
        done, self._ended = self._ended, []
        return done

    def _take(self):
        for task in self._tasks.drain():
            _, statuses = task.statuses()
            self._end(*task.note, ffi.unpack(statuses, task.count), *task.cost())
            task.free()

    def _end(self, kind, job, statuses, stored_bytes, seconds):
        self._jobs -= 1
        end = self._end_load if kind == GET else self._end_store
        self._ended.append(end(job, statuses, stored_bytes, seconds))

    def _end_load(self, job, statuses, stored_bytes, seconds):
        good = [key for key, status in zip(job.keys, statuses) if status == OK]
        self._loaded += [key for key in good if key in self._found]
        if self._turns is not None:
            self._turns.came(job.request.name, good)
        moved = len(good) * self._rows.bytes
        self._counts["load_stored_bytes"] += stored_bytes
        if len(good) == len(job.keys):
            return JobResult(job.name, True, transfer_time=seconds, transfer_bytes=moved)
        found = set(good)
        self._counts["load_misses"] += len(job.keys) - len(good)
        job.request.failed.update(key for key in job.keys if key not in found)
        for status in set(statuses) - {OK, lib.KVT_MISS}:
            self._say(status, "a load")
        return JobResult(job.name, False, successful_keys=tuple(good) or None,
                         transfer_time=seconds, transfer_bytes=moved)

    def _end_store(self, job, statuses, _, seconds):
        stored, fresh, failed = 0, [], 0
        for key, mine, status in zip(job.keys, job.ours, statuses):
            if status in (OK, EXISTED):
                stored += 1
                if self._told is not None and self._told.note(mine, key):
                    fresh.append((mine, key))
            elif status == lib.KVT_REFUSED:
                self._counts["stores_refused"] += 1
                self._said.declined(self._store, mine, "chunks")
            else:
                failed += 1
                self._say(status, "a store")
        self._counts["stores_failed"] += failed
        if fresh:
            self._tell_stored(fresh)
        if job.request.finished:
            self._hint(job.request, job.ours)
        elif job.request.wishes.hint is not None:
            job.request.used.update(job.ours)
        return JobResult(job.name, failed == 0, transfer_time=seconds,
                         transfer_bytes=stored * self._rows.bytes)

    def _say(self, status, what):
        self._said.once("kvterrace: %s ended with %s", what, failure(status), of=status)

    def has_pending_work(self):
        return bool(self._jobs or self._ended)

    def drain_jobs(self):
        self._tasks.wait()
        self._take()

    # ---- events, metrics, end ----

    def _tell(self, keys, medium, removed):
        self._events.append(OffloadingEvent(
            keys=keys, medium=medium, removed=removed, locality=self.locality or Locality.LOCAL,
            ownership=self.tier_type, removal_expected=not removed))

    def _tell_each(self, keys, media, removed):
        for medium in Medium:
            some = [key for key, one in zip(keys, media) if one is medium]
            if some:
                self._tell(some, medium, removed)

    def _medium(self, mine):
        found = self._store.describe(mine) if self._dram else None
        return Medium.CPU if found is not None and found["tier"] == "dram" else Medium.STORAGE

    def _tell_stored(self, pairs):
        keys, media = [key for _, key in pairs], [self._medium(mine) for mine, _ in pairs]
        self._tell_each(keys, media, False)
        self._media.update(zip(keys, media))
        self._told.told([mine for mine, _ in pairs])

    def _tell_found(self, keys):
        """vLLM knows a chunk's tokens after it has looked the chunk up in its host memory, which it
        does in the step after a load; it tells a chunk that it does not know without them."""
        pairs = [(self._found.pop(key), key) for key in keys if key in self._found]
        if pairs:
            self._tell_stored(pairs)

    def take_events(self):
        if self._events is None:
            return ()
        self._tell_found(self._due)
        self._due, self._loaded = self._loaded, []
        gone = self._told.gone()
        self._tell_each(gone, [self._media.pop(key) for key in gone], True)
        stayed, self._told.stayed = self._told.stayed, []
        for mine, key in stayed:
            now = self._medium(mine)
            if key in self._media and now is not self._media[key]:
                self._tell([key], now, False)
                self._tell([key], self._media[key], True)
                self._media[key] = now
        events, self._events = self._events, []
        return events

    @classmethod
    def build_metric_definitions(cls, extra_config):
        """Prometheus metrics of this tier; Store.metrics has those of the store."""
        definitions = {f"vllm:kvterrace_{name}": OffloadingCounterMetadata(documentation=text)
                       for name, text in _COUNTERS.items()}
        for name, text in _GAUGES.items():
            definitions[f"vllm:kvterrace_{name}"] = OffloadingGaugeMetadata(documentation=text,
                                                                            labelnames=("tier",))
        return definitions

    def get_stats(self):
        now = time.monotonic()
        if self._closed or now < self._stats_at:
            return None
        self._stats_at = now + _STATS_SECONDS
        stats, counts = OffloadingConnectorStats(), self._counts
        self._counts = dict.fromkeys(_COUNTERS, 0)
        for name, value in counts.items():
            stats.increase_counter(f"vllm:kvterrace_{name}", value)
        try:
            tiers = self._store.stats()["tiers"]
        except DeviceError:  # no connection
            return stats
        for tier in _TIERS:
            stats.set_gauge("vllm:kvterrace_entries", tiers[tier]["entries"], (tier,))
            stats.set_gauge("vllm:kvterrace_bytes", tiers[tier]["used_bytes"], (tier,))
        return stats

    def shutdown(self):
        """Ends the queue first, so that nothing touches vLLM's memory any more; then gives that
        memory back, since vLLM cannot unmap it while it is exported; then closes the store, which
        writes to SSD what its settings say."""
        if self._closed:
            return
        self._closed = True
        if self._hosts is not None:
            self._hosts.close()
        self.drain_jobs()
        self._tasks.close()
        self._rows.template = None
        self._rows.memory.release()
        if self._told is not None:
            self._told.close()
        self._store.close()


_engine.check(KvterraceTier, calls=[
    (JobResult, "job_id", "success", "successful_keys", "transfer_time", "transfer_bytes"),
    (OffloadingEvent, "keys", "medium", "removed", "locality", "ownership", "removal_expected"),
    (ReqContext, "req_id", "kv_transfer_params", "kv_hints"),
    (ScheduleEndContext, "new_req_ids"),
    (OffloadingCounterMetadata, "documentation"),
    (OffloadingGaugeMetadata, "documentation", "labelnames")])


def _is_whole(config, replicated, packed):
    """Whether a row is what one worker alone would write, however many write it: they write one
    copy, or in our own order, or vLLM puts their parts where one worker has them. Where parts lie
    side by side, that is so if heads are the outermost axis of a block and each row has one
    block."""
    if replicated or packed:
        return True
    if not config.parallel.is_parallelism_agnostic:
        return False
    return config.canonical_layout or (
        config.kv_cache_layout == "BHLNC" and config.cache.blocks_per_chunk == 1 and
        config.parallel.pp_size == 1)


def _space(config, rows, revision, salt):
    """All that decides a row's bytes and is known here."""
    from vllm.platforms import current_platform
    parallel = config.parallel
    one = _is_whole(config, rows.replicated, rows.shaped and rows.template is None)
    extra = {"engine": "vllm", "version": vllm.__version__, "layout": config.kv_cache_layout,
             "canonical": config.canonical_layout, "replicated": False,
             "machine": _machine(current_platform), "bytes": rows.bytes,
             "groups": [[group.tokens_per_block, list(group.layer_names)]
                        for group in config.groups],
             "hash_tokens": config.cache.tokens_per_hash,
             "world": 1 if one else parallel.world_size,
             "context": [parallel.pcp_size, parallel.dcp_size],
             "ranks": [1, 1] if one else [parallel.tp_size, parallel.pp_size]}
    shape = {}
    if rows.shaped:
        extra["packed"] = rows.template is None
        shape = {"layers": rows.layout.layers, "kv_heads": rows.layout.kv_heads,
                 "head_dim": rows.layout.head_dim, "sides": 2}
    return Space(model=config.model.name, revision=revision, dtype=element_name(config.model.dtype),
                 salt=salt, block_tokens=rows.tokens,
                 extra=json.dumps(extra, sort_keys=True).encode(), **shape)


# ---- vLLM's CPU platform ----

# What vLLM's other specs say of their regions, and TieringOffloadingSpec does not: that a name is
# gone once all have mapped it, who fills the pages, and of how many files a region is.
_OF_OTHER_SPECS = ("?barrier", "?creator_memory_check", "?populate_only_on_creator",
                   "?populate_shard", "?num_segments")


class HostTieringSpec(TieringOffloadingSpec):
    """TieringOffloadingSpec for vLLM's CPU platform, which vLLM's own refuses there: blocks are
    copied on the host. Takes the configuration of TieringOffloadingSpec, any tiers.

    vLLM's attention on the CPU keeps K of a block with the tokens innermost, and tiles on some
    processors. When its KvterraceTier has kv_heads and head_dim, rows are written in kvterrace's
    own order instead, [layer][K, V][token][head][dim], which lossy variants need; workers of tensor
    parallelism write their heads of it, so that a row is the same however many they are.
    """

    def __init__(self, config):
        _engine.check(HostTieringSpec, HostCopyWorker,
                      whole=[(SharedOffloadRegion, "engine_id", "num_chunks", "rank",
                              "kv_bytes_per_chunk", "cpu_page_size", *_OF_OTHER_SPECS)],
                      holds=[("SharedOffloadRegion.base_tensor is a property",
                              lambda: isinstance(SharedOffloadRegion.base_tensor, property))])
        if config.canonical_layout:
            raise failure(lib.KVT_E_UNSUPPORTED,
                          "HostTieringSpec copies blocks as they are: leave canonical_layout out")
        super().__init__(config)
        self.packed = None
        tiers = self.secondary_tier_configs
        shaped = [shape for shape in (_find_shape(self, tier) for tier in tiers
                                      if tier.get("type") == "KvterraceTier" and
                                      tier.get("axes") is None) if shape[0]]
        if shaped:
            if len(tiers) != 1:
                raise _wrong("with kv_heads and head_dim it is the only tier of HostTieringSpec: "
                             "others would take its rows for vLLM's own")
            _check_shape(self, shaped[0][0])
            self.packed = shaped[0]

    def get_worker(self, kv_caches):
        if not self._worker:
            self._worker = self._make_worker(kv_caches)
        return self._worker

    def _make_worker(self, kv_caches):
        for one in kv_caches.tensors:
            if one.tensor.device.type != "cpu":
                raise failure(lib.KVT_E_UNSUPPORTED, "HostTieringSpec is for KV in host memory, "
                              f"not on {one.tensor.device}: TieringOffloadingSpec is for that")
        rank = 0 if self.replicated_layout else self.config.parallel.rank
        region = SharedOffloadRegion(engine_id=self._engine_id, num_chunks=self.num_chunks,
                                     rank=rank, kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                                     cpu_page_size=self.cpu_page_size_per_worker)
        try:
            order = None
            if self.packed is not None:
                heads, dim = self.packed
                order = learn_order(heads // _copies(self), dim,
                                    self.config.groups[0].tokens_per_block, self.config.model.dtype,
                                    rank, heads)
            return HostCopyWorker(kv_caches, self.blocks_per_chunk, region, order)
        except BaseException:
            region.cleanup()
            raise
