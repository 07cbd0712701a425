# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCache on a kvterrace store: the storage behind its host memory (docs/ENGINES.md).

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
      '{"backend_name": "kvterrace", "module_path": "kvterrace.sglang", "interface_v1": 1,
        "class_name": "KvterraceStorage",
        "kvterrace": {"connect": "/run/kvterrace.sock", "revision": "sha256:9f2c"}}'
"""

import json
import logging
import threading

from ._books import Said
from ._calls import instant
from ._convert import new
from ._engines import Engine, Parameters, installed
from ._errors import Error, failure
from ._kvt import ffi, lib
from ._tasks import DECLINED, EXISTED, GET, OK, PUT, Places, Tasks, make_like, names_to_keys
from ._types import Layout, Space

TESTED = ("0.5.23",)

with Engine("SGLang", installed("sglang"), TESTED) as _engine:
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult)

_log = logging.getLogger(__name__)
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8"}
# The axes of a pool's kv_buffer, outermost first, as kvt_view_make names them. The first table is
# of K and V in one buffer, the second of one matrix a layer.
_TWO = {"layer_first": "slth", "page_first": "stlh", "page_first_direct": "sblth",
        "page_head": "sbhtl"}
_ONE = {"layer_first": "lth", "page_first": "tlh", "page_first_direct": "blth"}
_GROUPS = lib.KVT_GROUPS_MAX


def _axes_shape(axes, layers, heads, tokens, pages):
    """The shape that a buffer of these axes has, but for its last dimension."""
    sizes = {"s": 2, "l": layers, "b": pages, "h": heads,
             "t": tokens if "b" in axes else tokens * pages}
    return tuple(sizes[axis] for axis in axes)


class _Pool:
    """A host pool of SGLang: what its pages are, and where they lie."""

    def __init__(self, pool, name):
        self.pool, self.name = pool, str(getattr(name, "value", name))
        self.step = getattr(pool, "logical_page_size", None) or getattr(pool, "page_size", 1) or 1
        self.layout_name = str(getattr(pool, "layout", "none"))
        self.dtype = str(getattr(pool, "dtype", "none")).rpartition(".")[2]
        self.layout = self.pattern = None
        try:
            self._view()
        except (AttributeError, TypeError, Error):
            self.layout = self.pattern = None

    def _view(self):
        """The layout of a page and the view of a pool whose buffer is as its layout's name says."""
        pool, buffer = self.pool, self.pool.kv_buffer
        dtype, pages = _DTYPES.get(self.dtype), pool.page_num
        shape = tuple(map(int, buffer.shape))
        if hasattr(pool, "kv_cache_dim"):
            axes, heads, width, sides = _ONE.get(self.layout_name), 1, pool.kv_cache_dim, 1
        else:
            axes, heads, width, sides = (_TWO.get(self.layout_name), pool.head_num, pool.head_dim,
                                         2)
        layers, tokens = pool.layer_num, pool.page_size
        if axes is None or dtype is None or not buffer.is_contiguous() or \
                shape != _axes_shape(axes, layers, heads, tokens, pages) + (width,) or \
                getattr(pool, "v_head_dim", width) != width:
            return
        if not getattr(buffer, "is_cpu", True):
            return
        layout = Layout(layers=layers, kv_heads=heads, head_dim=width, dtype=dtype, tokens=tokens,
                        sides=sides)
        view, message = new("kvt_view"), ffi.new("char[256]")
        status = lib.kvt_view_make(layout._made, axes.encode(), tokens, pages, view)
        if status != OK:
            return
        view.base[0] = ffi.cast("void *", buffer.data_ptr())
        if lib.kvt_view_check(view, layout._made, message, 256) != OK:
            return
        self.layout, self.pattern, self.pages = layout, view, pages

    def describe(self):
        """What decides the bytes of a page, for its space."""
        shape = [list(map(int, getattr(getattr(self.pool, "kv_buffer", None), "shape", ())))[-2:]]
        return {"pool": self.name, "layout": self.layout_name, "dtype": self.dtype,
                "page": self.step, "shape": shape,
                "format": str(getattr(self.pool, "storage_format_tag", None)),
                "layers": [getattr(self.pool, name, None) for name in
                           ("start_layer", "end_layer", "layer_num")]}

    def places(self, starts):
        """Places of the pages that begin at these tokens; None: the pool says too little."""
        if any(start % self.step for start in starts):
            raise ValueError(f"{self.name}: pages begin at multiples of {self.step}")
        if self.pattern is not None:
            blocks = [start // self.step for start in starts]
            if not all(0 <= block < self.pages for block in blocks):
                raise ValueError(f"{self.name}: a page lies outside of the pool")
            return Places([self.layout], pattern=self.pattern, blocks=blocks, keep=self.pool,
                          elsewhere=True)
        return None

    def ranges(self, indices, count):
        """The same from the ranges that the pool gives for a page, each a group of bytes. None: it
        gives none, or too many."""
        if not getattr(getattr(self.pool, "kv_buffer", None), "is_cpu", True):
            return None
        try:
            found = self.pool.get_page_buffer_meta(indices)
        except (AttributeError, NotImplementedError, ValueError):
            return None
        if not found or not found[0] or len(found[0]) % count:
            return None
        addresses, sizes = list(map(int, found[0])), list(map(int, found[1]))
        groups = len(addresses) // count
        if groups > _GROUPS or len(sizes) != len(addresses) or \
                sizes != sizes[:groups] * count:
            return None
        return Places([Layout.opaque(size) for size in sizes[:groups]], group_count=groups,
                      addresses=addresses, scattered=True, keep=self.pool)


class KvterraceStorage(HiCacheStorage):
    """The backend `dynamic` of HiCache, with interface_v1: pages go between the pools' own memory
    and the store, a batch at a time, on the thread that asks.

    extra_config's object "kvterrace", all optional:
      connect          the socket of `kvterrace serve`, whose store all ranks share; MLA with
                       several tensor ranks, of which one writes for all, needs it
      config           settings file of the store (docs/CONFIGURATION.md)
      settings         settings by name, as {"tier.dram.capacity": "8GiB"}; they count more. {rank}
                       in their values becomes the ranks of the process, as "tp0-pp0", and {dp} the
                       data parallel one, because such a store belongs to one process
      revision         of the model, and whatever else decides KV: part of the keys; needed where
                       the store has a catalog, other hosts or other processes
      store_seconds    how long a page waits for room before it is declined; 30
      load_seconds     how long a load waits for devices; no bound
      threads          of the queue that loads; 2
      tenant, class_id, lifetime, recompute_seconds  of entries, as of Store.put
    """

    def __init__(self, storage_config, kwargs=None):
        extra = storage_config.extra_config or {}
        given = Parameters(extra.get("kvterrace", {}), "kvterrace.sglang")
        self._config, self._ranks = storage_config, _ranks(storage_config)
        self._revision = given.take("revision", str)
        self._seconds = {PUT: given.take("store_seconds", (int, float), 30.0, 0),
                         GET: given.take("load_seconds", (int, float), None, 0)}
        threads = given.take("threads", int, 0, 1)
        self._numbers = {
            "recompute_seconds": given.take("recompute_seconds", (int, float), 0.0, 0),
            "tenant": given.take("tenant", int, 0, 0),
            "class_id": given.take("class_id", int, 0, 0),
            "lifetime_seconds": given.take("lifetime", (int, float), 0.0, 0)}
        make_like(**self._numbers)
        self._store = given.open_store(self._revision, rank=self._ranks,
                                       dp=storage_config.dp_rank or 0)
        try:
            self._check_writer()
            self._queues = {PUT: Tasks(self._store, threads=1),
                            GET: Tasks(self._store, threads=threads)}
        except BaseException:
            self._store.close()
            raise
        self._locks = {PUT: threading.Lock(), GET: threading.Lock()}
        self._direct = bool(extra.get("interface_v1", 0))
        self._pools, self._spaces, self._every = {}, {}, {}
        self._said = Said(_log)
        self._flat = self._make_space({"pool": "flat pages"}, None)

    def _check_writer(self):
        """Refuses ranks that could never find what another one writes for all."""
        config, store = self._config, self._store
        if config.is_mla_model and config.tp_size > 1 and not store.connected and \
                store.remote_stats() is None:
            raise failure(lib.KVT_E_CONFIG, "kvterrace.sglang: SGLang lets one of "
                          f"{config.tp_size} tensor ranks write MLA's pages for all, and the "
                          "others would find nothing in stores of their own: share one by "
                          "`kvterrace serve` and connect")

    # ---- pools and keys ----

    def register_mem_pool_host(self, mem_pool_host):
        super().register_mem_pool_host(mem_pool_host)
        self._register(mem_pool_host, PoolName.KV)

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(host_pool, host_pool_name)

    def _register(self, pool, name):
        made = _Pool(pool, name)
        self._pools[made.name] = made
        self._spaces[made.name] = self._make_space(made.describe(), made.layout)

    def _make_space(self, facts, layout):
        """A space of all that decides a page's bytes. MLA's pages are the same on each rank of a
        tensor group, but for those of context parallelism."""
        config, numbers = self._config, {}
        shared = config.is_mla_model and facts["pool"] != "mamba"
        facts = dict(facts, cp=[config.attn_cp_rank, config.attn_cp_size],
                     dcp=[config.dcp_rank, config.dcp_size], split=config.should_split_heads)
        if layout is not None:
            numbers = {"layers": layout.layers, "kv_heads": layout.kv_heads, "dtype": layout.dtype,
                       "head_dim": layout.head_dim, "sides": layout.sides,
                       "block_tokens": layout.tokens}
        made = Space(model=config.model_name or "", revision=self._revision or "",
                     tensor_rank=0 if shared else config.tp_rank,
                     tensor_ranks=1 if shared else config.tp_size, pipeline_rank=config.pp_rank,
                     pipeline_ranks=config.pp_size,
                     extra=b"sglang " + json.dumps(facts, sort_keys=True).encode(), **numbers)
        self._every[made.id] = made
        return made

    def _keys(self, name, keys):
        return names_to_keys(self._spaces[name], [key.encode() for key in keys])

    # ---- version 1: the pool of KV ----

    def batch_exists(self, keys, extra_info=None):
        if not keys:
            return 0
        return self._leading(keys) if self._direct else self._match(self._flat_keys(keys))

    def _leading(self, keys):
        """How many leading pages of KV are stored."""
        if PoolName.KV.value not in self._spaces or not keys:
            return 0
        return self._match(self._keys(PoolName.KV.value, keys))

    def _match(self, joined):
        """SGLang asks on threads of its own, which may wait for other hosts; without these the
        store's table answers."""
        matched, what = ffi.new("size_t *"), new("kvt_match")
        what.hosts, what.deadline_ns = True, instant(None)
        self._store._need(lib.guarded_kvt_store_match(
            self._store._handle, joined, len(joined) // 32, what, matched))
        return matched[0]

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._move(GET, PoolName.KV, keys, host_indices, extra_info)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._move(PUT, PoolName.KV, keys, host_indices, extra_info)

    def _move(self, kind, name, keys, indices, extra_info):
        """Whether each page was read or written."""
        count, name = len(keys), str(getattr(name, "value", name))
        if kind == PUT and not self._config.is_storage_writer and name != "mamba":
            return [True] * count  # another rank writes the same bytes
        try:
            pool = self._pools[name]
            if indices is None or len(indices) != count * pool.step:
                raise ValueError(f"{name}: {count} pages of {pool.step} and "
                                 f"{0 if indices is None else len(indices)} indices")
            if count == 0:
                return []
            starts = [int(start) for start in indices[::pool.step].tolist()]
            places = pool.places(starts) or pool.ranges(indices, count)
            if places is None:
                return self._copy(kind, pool, _split(self._keys(name, keys)), starts)
            return self._run(kind, name, keys, places, extra_info, pool.step)
        except (Error, ValueError, KeyError) as error:
            self._said.once("kvterrace: pages of %s are neither read nor written: %s", name, error,
                            of=name)
            return [False] * count

    def _run(self, kind, name, keys, places, extra_info, step):
        joined, like = self._keys(name, keys), make_like(**self._numbers)
        before = getattr(extra_info, "prefix_keys", None)
        if kind == PUT and before is not None and name == PoolName.KV.value:
            first = len(before) * step
            above = self._keys(name, before[-1:]) if before else None
            places.follow([above, *_split(joined)[:-1]],
                          range(first, first + len(keys) * step, step))
        with self._locks[kind]:
            queue = self._queues[kind]
            whole, statuses = queue.run(queue.make(kind, joined, len(keys), places, like=like,
                                                   deadline=self._seconds[kind]))
        if whole == len(keys):
            return [True] * whole
        each = ffi.unpack(statuses, len(keys))
        if lib.KVT_REFUSED in each:
            self._said.declined(self._store, _split(joined)[each.index(lib.KVT_REFUSED)], "pages")
        return [self._went(kind, status) for status in each]

    def _went(self, kind, status):
        if status == OK or (kind == PUT and status == EXISTED):
            return True
        if status not in (lib.KVT_MISS, *DECLINED):
            self._said.once("kvterrace: a page %s: %s",
                            "is not written" if kind == PUT else "is a miss",
                            ffi.string(lib.kvt_status_name(status)).decode(), of=(kind, status))
        return False

    def _copy(self, kind, pool, keys, starts):
        """Pages of a pool that gives no addresses: by its own copies."""
        self._said.once("kvterrace: pages of the pool %s are copied, because it gives no addresses",
                        pool.name, of=pool.name)
        if kind == PUT:
            return self._flat_run(PUT, keys, [pool.pool.get_data_page(start).contiguous()
                                              for start in starts])
        pages = [pool.pool.get_dummy_flat_data_page() for _ in starts]
        went = self._flat_run(GET, keys, pages)
        for start, page, there in zip(starts, pages, went):
            if there:
                pool.pool.set_from_flat_data_page(start, page)
        return went

    # ---- version 2: further pools ----

    def batch_get_v2(self, transfers, extra_info=None):
        return self._move_all(GET, transfers, extra_info)

    def batch_set_v2(self, transfers, extra_info=None):
        return self._move_all(PUT, transfers, extra_info)

    def _move_all(self, kind, transfers, extra_info):
        return {one.name: self._move(kind, one.name, one.keys or [], one.host_indices, extra_info)
                for one in transfers}

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        whole = self._leading(keys)
        hits, usable = {PoolName.KV: whole} if whole else {}, list(range(1, whole + 1))
        for transfer in pool_transfers or []:
            if not usable:
                break
            found = self._stored(transfer.name, keys[:whole])
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                pages = found.index(False) if False in found else whole
                fits = set(range(1, pages + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(transfer.keys or ()))
                fits = {end for end in range(1, whole + 1)
                        if all(found[max(0, end - window):end])}
                pages = max(fits, default=0)
            else:
                raise ValueError(f"kvterrace has no hit policy {transfer.hit_policy}")
            if pages:
                hits[transfer.name] = pages
            usable = [end for end in usable if end in fits]
        return PoolTransferResult(usable[-1] if usable else 0, hits, usable)

    def _stored(self, name, keys):
        name = str(getattr(name, "value", name))
        if name not in self._spaces:
            return [False] * len(keys)
        return [seconds is not None
                for seconds in self._store.predict_loads(_split(self._keys(name, keys)))]

    # ---- without interface_v1: flat pages, by copies ----

    def _flat_keys(self, keys):
        """Keys of flat pages: the pool's type and form count, its memory's order does not."""
        pool = self._pools.get(PoolName.KV.value)
        facts = "" if pool is None else json.dumps(pool.describe(), sort_keys=True)
        return names_to_keys(self._flat, [f"{facts} {key}".encode() for key in keys])

    def _flat_run(self, kind, keys, pages):
        """Reads or writes contiguous tensors in one batch: whether each went. One that is not
        contiguous memory of the host, or None, does not."""
        sound = [index for index, page in enumerate(pages)
                 if page is not None and self._is_flat(page)]
        went = [False] * len(pages)
        if not sound:
            return went
        try:
            these = [pages[index] for index in sound]
            places = Places([Layout.opaque(page.numel() * page.element_size()) for page in these],
                            alike=False, addresses=[page.data_ptr() for page in these], keep=these)
            with self._locks[kind]:
                queue = self._queues[kind]
                _, statuses = queue.run(queue.make(
                    kind, b"".join(keys[index] for index in sound), len(sound), places,
                    like=make_like(**self._numbers), deadline=self._seconds[kind]))
            for index, status in zip(sound, ffi.unpack(statuses, len(sound))):
                went[index] = self._went(kind, status)
        except (Error, ValueError, AttributeError) as error:
            self._said.once("kvterrace: pages are neither read nor written: %s", error)
        return went

    def _is_flat(self, page):
        flat = (hasattr(page, "data_ptr") and page.is_contiguous() and
                getattr(page, "is_cpu", True))
        if not flat:
            self._said.once("kvterrace: pages that are no contiguous memory of the host are "
                            "neither read nor written")
        return flat

    def get(self, key, target_location=None, target_sizes=None):
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        targets = list(target_locations or [None] * len(keys))[:len(keys)]
        went = self._flat_run(GET, _split(self._flat_keys(keys)), targets)
        return [target if there else None for target, there in zip(targets, went)]

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value])

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        if values is None:
            return False
        pages = [None if value is None else value.contiguous() for value in values][:len(keys)]
        return all(self._flat_run(PUT, _split(self._flat_keys(keys)), pages))

    def exists(self, key):
        return self.batch_exists([key]) == 1

    # ---- state and end ----

    def clear(self):
        """Removes the pages of this process's spaces, of pools that others took the place of, too;
        those that leases hold stay."""
        for space in self._every.values():
            try:
                self._store.clear(space=space)
            except Error as error:
                _log.warning("kvterrace: not all pages are removed: %s", error)

    def get_stats(self):
        return None

    def close(self):
        """Ends what is under way and closes the store. A second close does nothing."""
        for queue in self._queues.values():
            queue.close()
        self._store.close()


def _split(joined):
    return [joined[at:at + 32] for at in range(0, len(joined), 32)]


def _ranks(config):
    """The ranks that make a process the only one of its kind, as a part of a path."""
    parts = [f"tp{config.tp_rank}", f"pp{config.pp_rank}"]
    if config.attn_cp_size > 1:
        parts.append(f"cp{config.attn_cp_rank}")
    if config.dp_rank:
        parts.append(f"dp{config.dp_rank}")
    return "-".join(parts)


_engine.check(KvterraceStorage, holds=[
    ("PoolName has KV", lambda: bool(PoolName.KV.value))])
