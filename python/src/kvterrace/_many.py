# SPDX-License-Identifier: Apache-2.0
"""Many entries in one call, and a walk over all of them."""

import contextlib
import threading
import typing

from . import _native
from ._calls import Source, instant, out_of_range
from ._convert import TIER_NAMES
from ._errors import Error, wrong
from ._kvt import ffi, lib
from ._memory import memory_of
from ._tasks import DELETE, GET, PUT, Places, Tasks, make_like
from ._types import Key, Layout, check_key, join_keys

_LISTED = 256
_LARGE_BYTES = 1 << 20  # of an entry in memory: threads beside this one are worth it from here on


class Listed(typing.NamedTuple):
    """An entry as a walk finds it: where it is, bytes as stored and decoded, seconds since its
    put."""

    key: Key
    tier: str
    stored_bytes: int
    bytes: int
    age: float


class Many:
    """The part of Store that is about many entries; _handle, _fail, _need and _check_kind are
    Store's."""

    def __init__(self):
        self._batches, self._batch_lock = {}, threading.Lock()

    def put_many(self, keys, data, layout=None, *, parents=None, first_positions=None,
                 deadline=None, recompute_seconds=0.0, request_tokens=0, class_id=0, tenant=0,
                 lifetime=0.0):
        """put for each key and buffer in one call: a list of Outcomes. The entries are encoded and
        written side by side, and those that find no room wait for it, until `deadline`.

        layout: of all entries alike; None takes each as opaque bytes. parents: for each entry the
        key of the preceding tokens, or None; first_positions: where its tokens begin. The other
        numbers are of all entries alike. An exception is of the first entry that failed; the others
        are stored all the same.
        """
        joined, count = join_keys(keys)
        for what, name in ((data, "buffers"), (parents, "parents"),
                           (first_positions, "first positions")):
            if what is not None and len(what) != count:
                raise wrong(f"{count} keys and {len(what)} {name}")
        if layout is not None and not isinstance(layout, Layout):
            raise wrong("put_many takes one Layout for all")
        sources = [Source(one, layout) for one in data]
        if any(source.memory is None for source in sources):
            raise wrong("put_many takes buffers; put takes Views, too")
        if count == 0:
            return []
        numbers = {"recompute_seconds": recompute_seconds, "request_tokens": request_tokens,
                   "class_id": class_id, "tenant": tenant, "lifetime_seconds": lifetime}
        layouts = [source.layout for source in sources] if layout is None else [layout]
        places = Places(layouts, alike=layout is not None, keep=sources, addresses=[
            int(ffi.cast("uintptr_t", source.memory.address)) for source in sources])
        if parents is not None or first_positions is not None:
            above = [None if one is None else check_key(one) for one in parents or [None] * count]
            if any(one == joined[32 * index:32 * index + 32] for index, one in enumerate(above)):
                raise wrong("an entry is not its own parent")
            try:
                places.follow(above, first_positions or [0] * count)
            except (OverflowError, TypeError) as error:
                raise wrong(f"first_positions: {error}") from error
        from ._store import OUTCOMES
        statuses = self._run_batch(PUT, joined, count, places, make_like(**numbers), deadline)
        for status in statuses:
            if status not in OUTCOMES:
                raise self._fail(status, out_of_range(numbers)
                                 if status == lib.KVT_E_ARGUMENT else "")
        return [OUTCOMES[status] for status in statuses]

    def get_many(self, keys, targets, *, deadline=None):
        """get_into for each key and buffer in one call: a list of True and False. Entries on
        devices are read all at once, and large ones are copied by several threads. ArgumentError:
        two of the buffers share memory, and nothing was read."""
        joined, count = join_keys(keys)
        if len(targets) != count:
            raise wrong(f"{count} keys and {len(targets)} buffers")
        if count == 0:
            return []
        owner, addresses, sizes = _native.export(targets) or self._export(joined, targets)
        overlap = lib.kvtpy_overlap(addresses, sizes, count)
        if overlap:
            raise wrong("two of the buffers share memory") if overlap > 0 else MemoryError()
        far = ffi.new("uint8_t[]", count)
        many = lib.kvtpy_find_far(self._handle, joined, sizes, count, _LARGE_BYTES, far)
        statuses = ffi.new("int[]", count)
        if many == 0 or count == 1:
            lib.kvtpy_get_many(self._handle, joined, addresses, sizes, count, instant(deadline),
                               ffi.NULL, statuses)
        else:
            self._get_far(joined, count, addresses, sizes, deadline, (owner, far, statuses))
        del owner
        return [self._need(status) for status in statuses]

    def _get_far(self, joined, count, addresses, sizes, deadline, about):
        """Entries on devices are under way, and large ones with the threads of a queue, while this
        thread copies the others."""
        _, far, statuses = about
        places = ffi.cast("uint64_t *", addresses), ffi.cast("uint64_t *", sizes)
        index = [one for one in range(count) if far[one]]
        task_keys = b"".join([joined[32 * one:32 * one + 32] for one in index])
        where = Places([Layout.opaque(places[1][one] or 1) for one in index], alike=False,
                       addresses=[places[0][one] for one in index], keep=about, packed=True)

        def meanwhile():
            if len(index) < count:
                lib.kvtpy_get_many(self._handle, joined, addresses, sizes, count,
                                   instant(deadline), far, statuses)

        found = self._run_batch(GET, task_keys, len(index), where, ffi.NULL, deadline, meanwhile)
        for one, status in zip(index, found):
            statuses[one] = status

    def _delete_all(self, joined):
        """Removes the entries of keys, one behind the other, in one batch. Those that leases hold
        stay, and all of them without a store."""
        with contextlib.suppress(Error):
            if joined:
                self._run_batch(DELETE, joined, len(joined) // 32, None, ffi.NULL, None)

    def _run_batch(self, kind, joined, count, places, like, deadline, meanwhile=None):
        """Carries one task out, calls `meanwhile` when it has begun, and returns the status of each
        key."""
        with self._batch_lock:
            queue = self._batches.get(kind)
            if queue is None:
                queue = self._batches[kind] = Tasks(self)
            _, statuses = queue.run(queue.make(kind, joined, count, places, like=like,
                                               deadline=deadline), meanwhile)
        return ffi.unpack(statuses, count)

    def _export(self, joined, targets):
        """The memory of targets that are not all plain bytes, as _native.export gives it."""
        memories = [memory_of(target, writable=True) for target in targets]
        for index, memory in enumerate(memories):
            if memory.kind is not None:
                self._check_kind(joined[32 * index:32 * index + 32], memory)
        addresses = ffi.new("void *[]", [memory.address for memory in memories])
        sizes = ffi.new("uint64_t[]", [memory.bytes for memory in memories])
        return ((memories, addresses, sizes), int(ffi.cast("uintptr_t", addresses)),
                int(ffi.cast("uintptr_t", sizes)))

    # ---- all entries ----

    def entries(self):
        """Each readable entry as a Listed, in no order. What comes or goes meanwhile may be missing
        or come twice."""
        cursor, count = ffi.new("uint64_t *"), ffi.new("size_t *")
        items = ffi.new("kvt_list_item[]", _LISTED)
        while True:
            items[0].struct_size = ffi.sizeof("kvt_list_item")
            status = lib.guarded_kvt_store_list(self._handle, ffi.NULL, cursor, items, _LISTED,
                                                count)
            if status == lib.KVT_END:
                return
            if status != lib.KVT_OK:
                raise self._fail(status)
            for one in items[0:count[0]]:
                yield Listed(Key(bytes(ffi.buffer(one.key.bytes))), TIER_NAMES[one.tier],
                             one.stored_bytes, one.bytes, one.age_seconds)

    def __iter__(self):
        """The keys of all readable entries."""
        return (one.key for one in self.entries())

    def __len__(self):
        """Entries that can be read, of all tiers."""
        return sum(tier["entries"] for tier in self.stats()["tiers"].values())

    def __bool__(self):
        return True  # a store without entries is one all the same
