# SPDX-License-Identifier: Apache-2.0
"""LMCache's second level on a kvterrace store, by configuration alone (docs/ENGINES.md).

    {"type": "plugin", "module_path": "kvterrace.lmcache", "class_name": "KvterraceL2Adapter",
     "adapter_params": {"config": "/etc/kvterrace.ini", "revision": "sha256:9f2c", "head_dim": 128}}

    {"type": "native_plugin", "module_path": "kvterrace.lmcache",
     "class_name": "KvterraceConnector",
     "adapter_params": {"config": "/etc/kvterrace.ini", "revision": "sha256:9f2c"}}

`plugin` gets objects with shape and dtype, so that entries have layouts and may be stored in any
variant of the store's ladder. `native_plugin` gets bytes: variants that give every byte back.
"""

import itertools
import logging
import os
import struct
import threading

from . import _native, lmcache_serde  # the serde is registered, and the version checked
from ._books import Said, Told, Untold
from ._calls import instant
from ._engines import Parameters
from ._errors import DeviceError, Error, failure
from ._kvt import ffi, lib
from ._lmcache_objects import Keys, ModelLayouts
from ._memory import memory_of
from ._shapes import AUTO, wants_shape
from ._tasks import (DECLINED, DELETE, EXISTED, EXISTS, GET, MISMATCH, OK, PUT, Places, Tasks,
                     make_like)
from ._types import Layout

with lmcache_serde.engine:
    from lmcache.lmcache_native import Bitmap
    from lmcache.v1.distributed.internal_api import L2StoreResult
    from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

TESTED = lmcache_serde.TESTED
_log = logging.getLogger(__name__)


def _split(joined):
    return [joined[at:at + 32] for at in range(0, len(joined), 32)]


class _Record:
    """A task of LMCache: its keys, and what has become of each."""

    __slots__ = ("number", "keys", "joined", "sizes", "statuses")

    def __init__(self, number, keys, joined, sizes):
        self.number, self.keys, self.joined, self.sizes = number, keys, joined, sizes
        self.statuses = None  # all of them KVT_OK

    def note(self, whole, statuses):
        """Takes in what has become of the task."""
        if whole != len(self.keys):
            self.statuses = list(ffi.unpack(statuses, len(self.keys)))

    def indices(self, status=OK):
        """The keys with a status."""
        if self.statuses is None:
            return range(len(self.keys)) if status == OK else ()
        return [index for index, one in enumerate(self.statuses) if one == status]


class _Stream:
    """Tasks of one kind, with the records of those that have ended until they are asked for. say:
    called once with each record of those that have ended, before anybody gets it."""

    def __init__(self, tasks, say=None):
        self.tasks, self.done, self._lock, self._say = tasks, {}, threading.Lock(), say

    def _gather(self):
        """The records of tasks that have ended since the last call. Lock held."""
        fresh = []
        for task in self.tasks.drain():
            record = task.note
            record.note(*task.statuses())
            task.free()
            self.done[record.number] = record
            fresh.append(record)
            if self._say is not None:
                self._say(record)
        return fresh

    def arrive(self):
        """Takes what has ended, and then makes the descriptor readable."""
        with self._lock:
            fresh = self._gather()
        if fresh:
            self.tasks.signal()

    def take(self, number=None):
        """The record of one task, or None; without a number all that have ended."""
        with self._lock:
            others = any([record.number != number for record in self._gather()])
            if number is None:
                found, self.done = list(self.done.values()), {}
                return found
            found = self.done.pop(number, None)
        if others:  # the drain has cleared the descriptor for them, too
            self.tasks.signal()
        return found

    def end(self, record):
        """A task that ends without a request."""
        with self._lock:
            self.done[record.number] = record
        self.tasks.signal()

    def fail(self, record):
        """A task that could not be begun."""
        record.statuses = [lib.KVT_E_ARGUMENT] * len(record.keys)
        self.end(record)


class _Locks:
    """Leases of keys. A lease ends by itself, so that an unlock that never comes holds nothing for
    ever."""

    def __init__(self, store, seconds):
        self._store, self._seconds, self._lock = store, seconds, threading.Lock()
        self._held, self._until = {}, []

    def __len__(self):
        with self._lock:
            self._forget(instant(0.000001))
            return len(self._held)

    def take(self, joined, count):
        """Which of the keys are stored; those are leased, as far as the store holds more."""
        found, leases = ffi.new("bool[]", max(count, 1)), ffi.new("uint64_t[]", max(count, 1))
        until = instant(self._seconds)
        whole = lib.kvtpy_lease_each(self._store._handle, joined, count, until, found, leases)
        with self._lock:
            self._forget(instant(0.000001))
            taken = []
            for index in range(count if whole else 0):
                if leases[index]:
                    key = joined[32 * index:32 * index + 32]
                    self._held.setdefault(key, []).append(leases[index])
                    taken.append((key, leases[index]))
            if taken:
                self._until.append((until, taken))
        return whole, found

    def _forget(self, now):
        """Drops what has ended at its instant. Lock held."""
        while self._until and self._until[0][0] < now:
            for key, lease in self._until.pop(0)[1]:
                self._drop(key, lease)

    def _drop(self, key, lease):
        leases = self._held.get(key)
        if leases is not None and lease in leases:
            leases.remove(lease)
            if not leases:
                del self._held[key]

    def end(self, joined):
        """Ends one lease of each key."""
        ending = []
        with self._lock:
            for key in _split(joined):
                leases = self._held.get(key)
                if leases:
                    ending.append(leases[0])
                    self._drop(key, leases[0])
        if ending:
            lib.kvtpy_lease_end_each(self._store._handle, ffi.new("uint64_t[]", ending),
                                     len(ending))


class KvterraceL2Adapter(L2AdapterInterface):
    """LMCache's `plugin`: a store, a queue for stores and one for loads, whose descriptors LMCache
    watches. It has no policy: the store decides what stays. It has a thread for the descriptor of
    loads where listeners are registered before that is asked for, and one for each of the two of a
    connected store.

    adapter_params, all optional:
      connect          in place of config and settings: the socket of `kvterrace serve`. Such a
                       store tells no events, so LMCache's listeners are told of no key
      config           settings file of the store (docs/CONFIGURATION.md)
      settings         settings by name, as {"tier.dram.capacity": "8GiB"}; they count more
      head_dim         elements of a KV head: lossy variants need it. "auto" takes it from the
                       model's config.json, as does a ladder or lossy variant among `settings`
      lock_seconds     how long a lock lasts that is never ended; 60
      store_seconds    how long a store waits for room before the object is declined; 30
      load_seconds     how long a load waits for devices; no bound
      threads          of the queue that loads; 2
      recompute_seconds  of an object; 0: as the store's prefill model predicts
      tenant, class_id, lifetime  of entries, as of Store.put
      revision         of the model, and whatever else decides KV: part of the keys; needed where
                       the store has a catalog, other hosts or other processes
      max_capacity_gb  the capacity that LMCache's own eviction sees; 0: it has none, and the store
                       evicts by its policy
    """

    def __init__(self, config, l1_memory_desc=None):
        given = Parameters(config, "kvterrace.lmcache")
        automatic = given.take_word("head_dim", AUTO)
        settings = config.get("settings")
        wanted = isinstance(settings, dict) and wants_shape(settings)
        capacity = given.take("max_capacity_gb", (int, float), 0, 0)
        revision = given.take("revision", str)
        self._layouts = ModelLayouts("kvterrace.lmcache",
                                     automatic or given.take("head_dim", int, 0, 1), wanted)
        lock_seconds = given.take("lock_seconds", (int, float), 60.0, 0.001)
        self._store_seconds = given.take("store_seconds", (int, float), 30.0, 0)
        self._load_seconds = given.take("load_seconds", (int, float), None, 0)
        threads = given.take("threads", int, 0, 1)
        self._like = make_like(
            recompute_seconds=given.take("recompute_seconds", (int, float), 0.0, 0),
            tenant=given.take("tenant", int, 0, 0), class_id=given.take("class_id", int, 0, 0),
            lifetime_seconds=given.take("lifetime", (int, float), 0.0, 0))
        super().__init__(max_capacity_bytes=int(capacity * (1 << 30)))
        self._store = given.open_store(revision)
        self._keys = Keys(revision, b"lmcache", given.readers)
        try:
            if capacity and self._store.connected:
                raise failure(lib.KVT_E_CONFIG, "kvterrace.lmcache: max_capacity_gb is for a store "
                              "of this process: a connected one tells LMCache neither what is "
                              "stored nor what has gone, and evicts by itself")
            self._stores = _Stream(Tasks(self._store, threads=1))
            self._loads = _Stream(Tasks(self._store, threads=threads), self._say_loaded)
            # What is told: (LMCache's key, bytes).
            self._told = Untold() if self._store.connected else Told(self._store)
        except BaseException:
            self._store.close()
            raise
        self._lookup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._locks = _Locks(self._store, lock_seconds)
        self._found, self._numbers = {}, itertools.count(1)
        self._lock, self._closed, self._said = threading.Lock(), False, Said(_log)
        self._load_fd, self._heard = None, False

    # ---- descriptors ----

    def get_store_event_fd(self):
        return self._stores.tasks.fileno()

    def get_lookup_and_lock_event_fd(self):
        return self._lookup_fd

    def get_load_event_fd(self):
        with self._lock:
            if self._load_fd is None:
                self._load_fd = self._loads.tasks.fileno(
                    self._loads.arrive if self._heard else None)
            return self._load_fd

    def register_listener(self, listener):
        """Listeners that are there before LMCache asks for the descriptor of loads hear of a load
        before that is readable, for which a thread is needed; others when LMCache asks for the
        load's result."""
        self._heard = True
        super().register_listener(listener)

    # ---- tasks with objects ----

    def submit_store_task(self, keys, objects):
        return self._submit(self._stores, PUT, keys, objects, self._store_seconds)

    def submit_load_task(self, keys, objects):
        return self._submit(self._loads, GET, keys, objects, self._load_seconds)

    def _submit(self, stream, kind, keys, objects, seconds):
        record = _Record(next(self._numbers), list(keys), b"", ())
        try:
            if len(keys) != len(objects):
                raise ValueError(f"{len(keys)} keys and {len(objects)} objects")
            if not record.keys:
                stream.end(record)
                return record.number
            record.joined = self._keys.join(record.keys)
            layouts = self._layouts.of(record.keys[0].model_name)
            places = [self._place(item, kind, layouts) for item in objects]
            record.sizes = [place[1] for place in places]
            stream.tasks.submit(stream.tasks.make(
                kind, record.joined, len(places), _places_of(places, objects), like=self._like,
                deadline=seconds, note=record))
        except (Error, ValueError, struct.error, AttributeError) as error:
            self._said.once("kvterrace: a task of %d objects cannot be begun: %s", len(keys), error)
            stream.fail(record)
        return record.number

    def _place(self, item, kind, known):
        """(layouts, bytes, address, whether it is bytes, what keeps the memory)."""
        size = item.get_size()
        layouts, of_bytes = known.of(item, size)
        raw = item.raw_data
        if hasattr(raw, "data_ptr"):
            if not raw.is_cpu:
                raise ValueError("an object lies on a device; kvterrace takes host memory")
            return layouts, size, raw.data_ptr(), of_bytes, None
        memory = memory_of(item.byte_array, writable=kind == GET)
        if memory.bytes != size:
            raise ValueError(f"an object of {size} bytes has a buffer of {memory.bytes}")
        return layouts, size, int(ffi.cast("uintptr_t", memory.address)), of_bytes, memory

    def pop_completed_store_tasks(self):
        results, fresh = {}, {}
        with self._told.order:
            for record in self._stores.take():
                written, failed = self._note_stored(record, fresh)
                results[record.number] = L2StoreResult(not failed, written)
            if fresh:
                self._notify_keys_stored([key for key, _ in fresh.values()],
                                         [size for _, size in fresh.values()])
                self._told.told(list(fresh))
            self._note_gone()
        return results

    def _note_stored(self, record, fresh):
        """Counts what a task has stored: (bytes written, whether anything failed). An object that
        the store declines is no failure: it is not there, and no lookup finds it."""
        written, failed = 0, False
        keys32 = _split(record.joined)
        for index, key in enumerate(record.keys):
            status = OK if record.statuses is None else record.statuses[index]
            if status in (OK, EXISTED):
                size = record.sizes[index]
                written += size if status == OK else 0
                if self._told.note(keys32[index], (key, size)):
                    fresh[keys32[index]] = key, size
            elif status == lib.KVT_REFUSED:
                self._said.declined(self._store, keys32[index], "objects")
            elif status not in DECLINED:
                failed = True
                self._said.once("kvterrace: objects are not stored: %s",
                                ffi.string(lib.kvt_status_name(status)).decode())
        return written, failed

    def query_load_result(self, task_id):
        record = self._loads.take(task_id)
        if record is None:
            return None
        count = len(record.keys)
        if record.statuses is None:
            return Bitmap(count, count)
        bitmap = Bitmap(count)
        for index in record.indices():
            bitmap.set(index)
        self._forget_strangers(record)
        return bitmap

    def _say_loaded(self, record):
        loaded = [record.keys[index] for index in record.indices()]
        try:
            if loaded:
                self._notify_keys_accessed(loaded)
        except Exception:  # of a listener's: the load is as good as before
            _log.exception("kvterrace: a listener fails")

    def _forget_strangers(self, record):
        """Entries of another shape or type than LMCache takes them for, as of a run with another
        dtype: misses, and gone, so that the next store takes their place."""
        strangers = record.indices(MISMATCH)
        if strangers:
            self._said.once("kvterrace: entries of another layout are dropped")
            self.delete([record.keys[index] for index in strangers])

    # ---- lookups and locks ----

    def submit_lookup_and_lock_task(self, keys, group_layout_descs):
        number, count = next(self._numbers), len(keys)
        bitmap = Bitmap(count)
        try:
            whole, found = self._locks.take(self._keys.join(keys), count)
            if whole == count:
                bitmap = Bitmap(count, count)
            elif whole:
                for index in range(count):
                    if found[index]:
                        bitmap.set(index)
        except (Error, ValueError, struct.error, AttributeError) as error:
            self._said.once("kvterrace: a lookup fails: %s", error)
        with self._lock:
            self._found[number] = bitmap
            if not self._closed:
                os.eventfd_write(self._lookup_fd, 1)
        return number

    def query_lookup_and_lock_result(self, task_id):
        with self._lock:
            return self._found.pop(task_id, None)

    def submit_unlock(self, keys):
        self._locks.end(self._keys.join(keys))

    # ---- what goes ----

    def delete(self, keys):
        joined = self._keys.join(keys)
        self._store._delete_all(joined)  # of one that stays LMCache may ask again
        self._note_gone(_split(joined))

    def _note_gone(self, keys32=()):
        """Tells LMCache what has gone: deleted, or evicted or lost by the store itself."""
        with self._told.order:
            gone = self._told.gone(keys32)
            if gone:
                self._notify_keys_deleted([key for key, _ in gone], [size for _, size in gone])

    def get_usage(self):
        self._note_gone()
        return super().get_usage()

    # ---- state and end ----

    def report_status(self):
        if self._closed or self._store.closed:
            return {"is_healthy": False, "type": type(self).__name__}
        try:
            health = [item["text"] for item in self._store.health()]
        except DeviceError as error:  # no connection
            return {"is_healthy": False, "type": type(self).__name__, "health": [str(error)]}
        return {"is_healthy": True, "type": type(self).__name__,
                "stored_object_count": len(self._told), "locked_key_count": len(self._locks),
                "health": health}

    def close(self):
        """Ends what is under way and closes the store, which writes entries of DRAM back to SSD
        where the settings say so. A second close does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stores.tasks.close()
        self._loads.tasks.close()
        self._told.close()
        self._store.close()
        os.close(self._lookup_fd)


lmcache_serde.engine.check(KvterraceL2Adapter)


def _places_of(places, objects):
    """The places of objects as one task has them."""
    first = places[0][0]
    shorter = [place[3] for place in places]
    about = {"addresses": [place[2] for place in places], "keep": (places, objects),
             "shorter": shorter if any(shorter) else None}
    if all(place[0] is first for place in places):
        return Places(first, group_count=len(first), **about)
    return Places([one for place in places for one in place[0]], alike=False,
                  counts=[len(place[0]) for place in places], **about)


class KvterraceConnector:
    """LMCache's `native_plugin`: bytes under texts. Forms that lose nothing are the only ones.

    Parameters: connect, config, settings, store_seconds, load_seconds, threads, recompute_seconds,
    tenant, class_id, lifetime and revision, as of KvterraceL2Adapter.
    """

    def __init__(self, **parameters):
        given = Parameters(parameters, "kvterrace.lmcache")
        revision = given.take("revision", str)
        self._seconds = {PUT: given.take("store_seconds", (int, float), 30.0, 0),
                         GET: given.take("load_seconds", (int, float), None, 0)}
        threads = given.take("threads", int, 0, 1)
        self._like = make_like(
            recompute_seconds=given.take("recompute_seconds", (int, float), 0.0, 0),
            tenant=given.take("tenant", int, 0, 0), class_id=given.take("class_id", int, 0, 0),
            lifetime_seconds=given.take("lifetime", (int, float), 0.0, 0))
        self._store = given.open_store(revision)
        self._keys = Keys(revision, b"lmcache bytes", given.readers)
        try:
            self._tasks = Tasks(self._store, threads=threads, clears=True)
        except BaseException:
            self._store.close()
            raise
        self._numbers, self._layouts = itertools.count(1), {}
        self._lock, self._failed, self._said = threading.Lock(), [], Said(_log)

    def event_fd(self):
        return self._tasks.fileno()

    def submit_batch_get(self, keys, buffers):
        return self._submit(GET, keys, buffers)

    def submit_batch_set(self, keys, buffers):
        return self._submit(PUT, keys, buffers)

    def submit_batch_exists(self, keys):
        return self._submit(EXISTS, keys)

    def submit_batch_delete(self, keys):
        return self._submit(DELETE, keys)

    def _submit(self, kind, keys, buffers=None):
        number = next(self._numbers)
        try:
            places = None if buffers is None else self._places(kind, keys, buffers)
            joined = self._keys.join_texts(keys)
            self._tasks.submit(self._tasks.make(
                kind, joined, len(keys), places, like=self._like,
                deadline=self._seconds.get(kind), note=(number, kind, joined)))
        except (Error, ValueError, AttributeError) as error:
            with self._lock:
                self._failed.append((number, False, str(error), [False] * len(keys)))
            self._tasks.signal()
        return number

    def _places(self, kind, keys, buffers):
        if len(keys) != len(buffers):
            raise ValueError(f"{len(keys)} keys and {len(buffers)} buffers")
        exported = _native.export(buffers)
        if exported is not None:
            keep, addresses, sizes = exported
            sizes = list(ffi.unpack(ffi.cast("uint64_t *", sizes), len(keys)))
            addresses = ffi.cast("uint64_t *", addresses)
        else:
            keep = [memory_of(one, writable=kind == GET) for one in buffers]
            sizes = [memory.bytes for memory in keep]
            addresses = [int(ffi.cast("uintptr_t", memory.address)) for memory in keep]
        alike = all(size == sizes[0] for size in sizes)
        layouts = [self._layout(size) for size in (sizes[:1] if alike else sizes)]
        return Places(layouts, alike=alike, addresses=addresses, keep=(keep, buffers))

    def _layout(self, size):
        found = self._layouts.get(size)
        if found is None:
            if len(self._layouts) >= 4096:
                self._layouts.clear()
            found = self._layouts[size] = Layout.opaque(size)
        return found

    def drain_completions(self):
        """[(number, whether all went well, what did not, whether each did)]."""
        with self._lock:
            ended, self._failed = self._failed, []
        for task in self._tasks.drain():
            (number, kind, joined), (whole, statuses) = task.note, task.statuses()
            each = [status == OK or (kind == PUT and status == EXISTED)
                    for status in ffi.unpack(statuses, task.count)]
            wrong = next((status for status, sound in zip(statuses, each) if not sound), None)
            if kind == GET and whole != task.count:
                self._forget_strangers(joined, ffi.unpack(statuses, task.count))
            if kind == PUT and wrong == lib.KVT_REFUSED:
                key = _split(joined)[ffi.unpack(statuses, task.count).index(wrong)]
                self._said.declined(self._store, key, "objects")
            went = kind != PUT or all(each)
            text = "" if went else ffi.string(lib.kvt_status_name(wrong)).decode()
            ended.append((number, went, text, each))
            task.free()
        return ended

    def _forget_strangers(self, joined, statuses):
        """Entries of another size than their buffers, as of a run with another dtype: misses, and
        gone, so that the next store takes their place."""
        strangers = [key for key, status in zip(_split(joined), statuses) if status == MISMATCH]
        if strangers:
            self._said.once("kvterrace: entries of another size than their buffers are dropped. "
                            "Records of a serde are shorter than their buffers: behind one use "
                            "the `plugin`, which takes them")
            self._store._delete_all(b"".join(strangers))

    def close(self):
        """Ends what is under way and closes the store. A second close does nothing."""
        self._tasks.close()
        self._store.close()
