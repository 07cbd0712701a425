# SPDX-License-Identifier: Apache-2.0
"""The store: put, get, lookups, leases, what it does and why."""

import atexit
import contextlib
import enum
import os
import time
import typing
import weakref

from . import _queue
from ._calls import (Handle, Held, Source, describe, has_passed, instant, make_entry, out_of_range,
                     packed_view)
from ._convert import TIERS, new, plain, variant_of
from ._errors import Error, StateError, encoded, failure, numbers, wrong
from ._kvt import ffi, lib
from ._many import Many
from ._memory import memory_of
from ._regions import Regions
from ._tuning import Tuning
from ._types import Space, View, check_key, join_keys

_HINTS = {"retain": lib.KVT_HINT_RETAIN, "next_use": lib.KVT_HINT_NEXT_USE,
          "demote": lib.KVT_HINT_DEMOTE, "session_end": lib.KVT_HINT_SESSION_END}
_EVENTS = {lib.KVT_EVENT_STORED: "stored", lib.KVT_EVENT_REMOVED: "removed",
           lib.KVT_EVENT_MOVED: "moved"}
_REASONS = {lib.KVT_REMOVED_EVICTED: "evicted", lib.KVT_REMOVED_DELETED: "deleted",
            lib.KVT_REMOVED_EXPIRED: "expired", lib.KVT_REMOVED_LOST: "lost"}
_SECTIONS = ("store_", "prefill_", "tier_hbm_", "tier_dram_", "tier_ssd_")
_OPEN = weakref.WeakSet()


class Outcome(str, enum.Enum):
    """What became of a put: true when the entry can be read."""

    STORED = "stored"
    EXISTS = "exists"
    REFUSED = "refused"
    BUSY = "busy"

    def __bool__(self):
        return self in (Outcome.STORED, Outcome.EXISTS)


OUTCOMES = {lib.KVT_OK: Outcome.STORED, lib.KVT_EXISTS: Outcome.EXISTS,
            lib.KVT_REFUSED: Outcome.REFUSED, lib.KVT_BUSY: Outcome.BUSY}


class Worth(typing.NamedTuple):
    """What loading a stored run is worth: keys that are stored, how many of these to load, and the
    seconds of loading these, of recomputing these, and the difference; of the stored ones, those
    that other hosts are known to have and this one has not."""

    stored: int
    to_load: int
    load_seconds: float
    recompute_seconds: float
    saved_seconds: float
    guessed: int


def setting_of(keyword):
    """The setting that a keyword of Store names."""
    for section in _SECTIONS:
        if keyword.startswith(section):
            return section[:-1].replace("_", ".") + "." + keyword[len(section):]
    return "store." + keyword


def _assignments(settings, keywords):
    if not isinstance(settings, (dict, type(None))):
        raise wrong(f"settings is a dict of names and values, not {type(settings).__name__}")
    for name, value in [*(settings or {}).items(),
                        *((setting_of(name), value) for name, value in keywords.items())]:
        if value is None:
            continue
        if isinstance(value, (dict, list, tuple, set)):
            raise wrong(f"{name} is a {type(value).__name__}: a setting has one value, and a "
                        "device's is called device.NAME.KEY")
        if isinstance(value, bool):
            value = "yes" if value else "no"
        text = f"{name}={os.fspath(value) if isinstance(value, os.PathLike) else value}"
        if "\0" in text:
            raise wrong(f"{name}: a zero in a setting")
        try:
            yield os.fsencode(text)
        except UnicodeEncodeError as error:
            raise wrong(f"{name} has a lone surrogate: {value!r}") from error


@contextlib.contextmanager
def _options(config, settings, keywords):
    """The kvt_store_options that the settings describe, their kvt_config, room for a message, and
    what raises with it."""
    message, made = ffi.new("char[512]"), ffi.new("kvt_config **")

    def check(status):
        if status != lib.KVT_OK:
            raise failure(status, ffi.string(message).decode(errors="replace"))

    owner = ffi.new("void **")
    try:
        check(lib.kvt_config_new(made))
        if config is not None:
            status = lib.kvt_config_read(made[0], os.fsencode(config), message, 512)
            check(lib.KVT_E_CONFIG if status == lib.KVT_E_GONE else status)
        for assignment in _assignments(settings, keywords):
            status = lib.kvt_config_set(made[0], assignment, message, 512)
            said = ffi.string(message)
            if status != lib.KVT_OK and said.endswith(b": unknown setting") and \
                    assignment.startswith(b"store."):
                raise failure(status, said.decode(errors="replace") + " (a keyword that names no "
                              "section is of [store]: tier_dram_capacity is the DRAM's size)")
            check(status)
        options = new("kvt_store_options")
        check(lib.kvt_store_options_read(made[0], options, owner, message, 512))
        yield options, made[0], message, check
    finally:
        lib.kvt_store_options_free(owner[0])
        lib.kvt_config_free(made[0])


def _size_of(text):
    """Bytes, as a number or as a setting has them."""
    try:
        with _options(None, {"store.put_staging": text}, {}) as (options, _, _, _):
            return options.limits.put_staging_bytes
    except Error as error:
        raise failure(error.code, error.message.replace("store.put_staging",
                                                        "connect_staging")) from error


def _connect(address, name, staging, patience, given):
    """The kvt_store that a server lends at an address. given: what else Store was given."""
    if given:
        raise failure(lib.KVT_E_CONFIG, f"connect takes no {', '.join(given)}: the settings of a "
                      "connected store are its server's")
    options, message = new("kvt_connect_options"), ffi.new("char[512]")
    store, keep = ffi.new("kvt_store **"), ffi.new("char[]", encoded(name or "", "connect_name"))
    if name:
        options.name = keep
    if staging is not None:
        options.staging_bytes = _size_of(staging)
    try:
        options.patience_seconds = patience or 0.0
    except TypeError as error:
        raise wrong(f"connect_patience is a number of seconds, not {patience!r}") from error
    status = lib.kvt_connect(address.encode(errors="surrogateescape"), options, store, message, 512)
    if status != lib.KVT_OK:
        said = ffi.string(message).decode(errors="replace")
        raise failure(status, said if address in said else f"{address}: {said}")
    return store[0]


def _open(config, settings, keywords):
    """The kvt_store that the settings describe."""
    variant = keywords.get("variant")
    if variant is not None and variant not in ("raw", "lossless"):
        keywords = dict(keywords, variant="raw")  # stands for one of the ladder, which none names
    else:
        variant = None
    store = ffi.new("kvt_store **")
    with _options(config, settings, keywords) as (options, made, message, check):
        if variant is not None:
            options.variant = variant_of(variant)[0]
        status = lib.kvt_store_open(options, store, message, 512)
        if status == lib.KVT_E_LOCKED:
            raise failure(status, ffi.string(message).decode(errors="replace") + "; processes that "
                          "share a store connect to `kvterrace serve` (connect=)")
        check(status)
        unused = lib.kvt_config_unused_get(made, 0)
        if unused != ffi.NULL:
            lib.kvt_store_close(store[0])
            raise failure(lib.KVT_E_CONFIG,
                          f"the setting {ffi.string(unused).decode()} has no effect")
    return store[0]


def readers_to_come(config, settings, connect=None):
    """The setting by which entries have readers beside this process: those after a restart, of the
    same host by a connection, or other hosts. None: the store ends with its process, and nobody
    else reads it."""
    if connect is not None:
        return "connect"
    with _options(config, settings, {}) as (options, _, _, _):
        if options.durability.catalog_path != ffi.NULL:
            return "store.catalog"
        return "tier.remote.namespace" if options.remote != ffi.NULL else None


class Store(Tuning, Regions, Many):
    """A store of KV entries in HBM, DRAM and SSDs.

    Store("kvt.ini")                                   settings from a file
    Store(tier_dram_capacity="4GiB", policy="lru")     or from keywords, or both
    Store(settings={"device.nvme0.path": "/data/kvt"}) or by their names
    Store(connect="/run/kvterrace.sock")               or one that another process lends

    A keyword is a setting of docs/CONFIGURATION.md with `_` for `.`; one that begins with none of
    store_, prefill_, tier_hbm_, tier_dram_, tier_ssd_ is of [store]. Settings of devices go into
    `settings`. Keywords count more than `settings`, and those more than the file. A setting that is
    unknown or has no effect is a ConfigError.

    connect: the socket of `kvterrace serve`, alone: settings are the server's. connect_name: for
    the server's log. connect_staging: bytes, or "64MiB", of memory shared with the server for
    buffers outside of regions, for each queue and for the blocking calls together. Without a
    connection lookups and gets are misses, puts are refused, and calls connect again; all else is a
    DeviceError. connect_patience: seconds that calls wait before that for a server that is gone
    (0), so that its restart is a pause.

    Any thread may make any call. close() waits for the calls of other threads.
    """

    def __init__(self, config=None, *, settings=None, connect=None, connect_name=None,
                 connect_staging=None, connect_patience=None, **keywords):
        self._queues, self._every_queue, self._added = {}, weakref.WeakSet(), {}
        Many.__init__(self)
        given = {"config": config, "settings": settings, **keywords}
        self._address = None if connect is None else os.fsdecode(connect)
        if self._address is not None:
            encoded(self._address, "connect")
            store = _connect(self._address, connect_name, connect_staging, connect_patience,
                             [one for one, value in given.items() if value is not None])
        elif (connect_name, connect_staging, connect_patience) != (None, None, None):
            raise failure(lib.KVT_E_CONFIG, "connect_name, connect_staging and connect_patience "
                          "go with connect")
        else:
            store = _open(config, settings, keywords)
        raw = lib.kvtpy_new(store)
        if raw == ffi.NULL:
            lib.kvt_store_close(store)
            raise failure(lib.KVT_E_MEMORY)
        self._owner = Handle(raw, lib.kvtpy_store_close)
        self._handle = raw
        self._process = os.getpid()
        _OPEN.add(self)

    def __repr__(self):
        try:
            stats = self.stats()
        except StateError:
            return "<kvterrace.Store, closed>"
        except Error:
            return f"<kvterrace.Store: no connection to {self._address}>"
        tiers = [f"{name} {tier['used_bytes']} of {tier['capacity_bytes']} bytes, "
                 f"{tier['entries']} entries" for name, tier in stats["tiers"].items()
                 if tier["capacity_bytes"]]
        tiers.append(f"{stats['hits']} hits of {stats['gets']} gets")
        where = "" if self._address is None else f", connected to {self._address}"
        return f"<kvterrace.Store{where}: {'; '.join(tiers)}>"

    # ---- life ----

    def close(self):
        """Ends the store's queues, waits for calls of other threads, writes entries of HBM and DRAM
        back to SSD where the settings say so (store.close_deadline seconds at most), and closes
        everything. A second close, and one in a child of fork, does nothing."""
        self._queues.clear()
        for queue in list(self._every_queue):
            queue.close()
        self._owner.close()
        self._end_added()
        _OPEN.discard(self)

    @property
    def connected(self):
        """Whether another process has the store; also while there is no connection."""
        return self._address is not None

    @property
    def closed(self):
        """Whether calls find no store: it was closed, or belongs to the parent of this process."""
        return self._owner.state != 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _fail(self, status, message=""):
        state = self._owner.state
        if status == lib.KVT_E_STATE and state == 0:
            message = "the store is closed"
        elif status == lib.KVT_E_STATE and state < 0:
            message = f"the store belongs to process {self._process}: open one in this process"
        elif self._address is not None:
            message = self._why(status, message)
        return failure(status, message)

    def _why(self, status, message):
        """What a status says of a connected store; message: what the call says of it."""
        if status == lib.KVT_E_GONE:
            return f"no connection to {self._address}"
        if status == lib.KVT_E_READ_ONLY:
            return "this changes what other clients have: serve.operators of the server say who may"
        if status == lib.KVT_E_UNSUPPORTED and not message:
            return "a connected store does not have this, or its server's settings leave it out"
        return message

    def _need(self, status, message=""):
        """True for KVT_OK, False for a miss, an exception for all else."""
        if status == lib.KVT_OK:
            return True
        if status == lib.KVT_MISS:
            return False
        raise self._fail(status, message)

    # ---- put, get, delete ----

    def put(self, key, data, layout=None, *, parent=None, recompute_seconds=0.0, first_position=0,
            request_tokens=0, class_id=0, tenant=0, lifetime=0.0, token_scores=None,
            deadline=None):
        """Offers an entry and returns an Outcome, which is true when the entry can be read.

        data: a contiguous buffer or DLPack tensor of layout.bytes, read until the return; a View;
        or a list of Views, one for each group of layers. layout: None takes a buffer as opaque
        bytes and a View's own; a list of Layouts makes an entry of groups. parent: the key of the
        entry of the preceding tokens. recompute_seconds: 0 predicts them; an opaque entry needs
        them to be worth storing under the policy utility. lifetime: seconds, 0 for no end.
        deadline: while the store cannot keep up the call waits, so many seconds from now at most
        (0: not at all), and is Outcome.BUSY after it. Durable only after flush().
        """
        until = instant(deadline)
        source = Source(data, layout)
        numbers = {"recompute_seconds": recompute_seconds, "first_position": first_position,
                   "request_tokens": request_tokens, "class_id": class_id, "tenant": tenant,
                   "lifetime_seconds": lifetime}
        entry, keep = make_entry(key, source.layout, parent, numbers, source.groups, token_scores)
        if source.memory is not None:
            view = packed_view(source.memory.address, source.memory.bytes)
            status = self._put_until(until, entry, view)
        else:
            with Held(source.views, False) as held:
                status = self._put_until(until, entry, held.view)
        del keep
        if status in OUTCOMES:
            return OUTCOMES[status]
        raise self._fail(status, out_of_range(numbers) if status == lib.KVT_E_ARGUMENT else "")

    def _put_until(self, until, entry, view):
        """The status of a put that is made again while it is KVT_BUSY and its time is not over."""
        pause = 0.0002
        while True:
            status = lib.guarded_kvt_store_put(self._handle, entry, view)
            left = until - time.monotonic_ns()
            if status != lib.KVT_BUSY or left <= 0:
                return status
            time.sleep(min(pause, left * 1e-9))
            pause = min(2 * pause, 0.01)

    def get(self, key, *, deadline=None):
        """The entry's bytes as a new bytearray, or None on a miss. get_into saves the allocation.
        deadline: seconds from now; an entry that a device has not brought by then is a miss. With 0
        or less what lies in memory is served, and nothing is waited for."""
        check_key(key)
        for _ in range(8):  # an entry that is put anew meanwhile may have another size
            status, what, _ = describe(self._handle, key)
            if not self._need(status):
                self._count_miss(key)
                return None
            data = bytearray(what.bytes)
            view = packed_view(ffi.from_buffer(data), len(data))
            status = lib.guarded_kvt_store_get(self._handle, key, view, instant(deadline), ffi.NULL)
            if status != lib.KVT_E_ARGUMENT:
                return data if self._need(status) else None
        return None

    def _count_miss(self, key):
        """Makes a get of what is not here one for the counters and the policy. Where other hosts
        would be asked, whose entries have a size that nobody here knows, it stays unseen; a
        connected store's may."""
        if self._address is not None or lib.guarded_kvt_remote_stats_get(
                self._handle, new("kvt_remote_stats")) != lib.KVT_E_UNSUPPORTED:
            return
        byte = bytearray(1)
        lib.guarded_kvt_store_get(self._handle, key, packed_view(ffi.from_buffer(byte), 1), 0,
                                  ffi.NULL)

    def get_into(self, key, target, *, deadline=None, info=None):
        """Reads an entry into `target`; True, or False on a miss, after which the target's content
        is undefined.

        target: a writable contiguous buffer or DLPack tensor of exactly the entry's size, a View,
        or a list of Views, one for each group. deadline: seconds from now; None takes
        store.get_deadline for buffers and waits for Views. info: a dict that is filled with how the
        get was served (tier, variant, stored_bytes; times in ns; timed_out).
        """
        served = ffi.NULL if info is None else new("kvt_get_info")
        if isinstance(target, (View, list, tuple)):
            views = [target] if isinstance(target, View) else target
            if not views or not all(isinstance(view, View) for view in views):
                raise wrong("the target is a buffer, a View, or a list of Views")
            with Held(views, True) as held:
                status = lib.guarded_kvt_store_get(self._handle, check_key(key), held.view,
                                                   instant(deadline), served)
            reason = "the views do not fit the entry"
        else:
            memory = memory_of(target, writable=True)
            if memory.kind is not None:
                self._check_kind(key, memory)
            until = lib.KVT_STORE_DEADLINE if deadline is None else instant(deadline)
            view = packed_view(memory.address, memory.bytes)
            status = lib.guarded_kvt_store_get(self._handle, check_key(key), view, until, served)
            reason = f"the entry has another size than the buffer's {memory.bytes} bytes"
        if info is not None:
            info.update(plain(served[0]))
        return self._need(status, reason if status == lib.KVT_E_ARGUMENT else "")

    def get_prefix(self, keys, views, *, deadline=None):
        """Reads the stored run of a prefix into Views, all of it at once. Returns how many leading
        entries are whole; the memory of the Views behind them is undefined."""
        joined, count = join_keys(keys)
        if len(views) != count:
            raise wrong(f"{count} keys and {len(views)} views")
        loaded = ffi.new("size_t *")
        with Held(views, True) as held:
            status = lib.guarded_kvt_prefix_get(self._handle, joined, held.array, count,
                                                instant(deadline), loaded)
        if status != lib.KVT_OK:
            raise self._fail(status, f"view {loaded[0]} does not fit its entry")
        return loaded[0]

    def _check_kind(self, key, memory):
        status, _, layouts = describe(self._handle, check_key(key))
        for layout in layouts if self._need(status) else []:
            memory.check_kind(layout.dtype)

    def exists(self, key):
        """Whether an entry can be read now. Not a use. `key in store` is the same."""
        return self._need(lib.guarded_kvt_store_exists(self._handle, check_key(key)))

    __contains__ = exists

    def delete(self, key):
        """Removes an entry: True, or False when there is none. BusyError: a lease holds it."""
        return self._need(lib.guarded_kvt_store_delete(self._handle, check_key(key)),
                          "a lease holds the entry")

    # ---- lookups ----

    def match(self, keys, *, hosts=False, deadline=None):
        """How many leading keys are stored. hosts: counts what other hosts have published, too, and
        asks them where nothing is known lately, for `deadline` seconds at most (None: as long as
        remote.deadline says; 0: asks nobody); a later get may miss all the same."""
        joined, count = join_keys(keys)
        matched = ffi.new("size_t *")
        what = new("kvt_match")
        what.hosts, what.deadline_ns = hosts, instant(deadline)
        self._need(lib.guarded_kvt_store_match(self._handle, joined, count, what, matched))
        return matched[0]

    def match_worth(self, keys):
        """How much of a stored prefix loads sooner than it is recomputed: a Worth, in keys and
        seconds."""
        joined, count = join_keys(keys)
        worth, what = new("kvt_worth"), new("kvt_match")
        what.worth = worth
        self._need(lib.guarded_kvt_store_match(self._handle, joined, count, what, ffi.NULL))
        return Worth(*(getattr(worth, name) for name in Worth._fields))

    def predict_loads(self, keys):
        """Seconds that a get of each key would take now; None where nothing is stored."""
        joined, count = join_keys(keys)
        seconds, what = ffi.new("double[]", max(count, 1)), new("kvt_match")
        what.load_seconds = seconds
        self._need(lib.guarded_kvt_store_match(self._handle, joined, count, what, ffi.NULL))
        return [None if one != one else one for one in list(seconds)[:count]]

    def describe(self, key):
        """What is stored under a key, as a dict (bytes, stored_bytes, tier, variant, parent, ages
        in seconds; layouts: a list of Layouts, one for each group), or None."""
        status, what, layouts = describe(self._handle, check_key(key))
        if not self._need(status):
            return None
        result = plain(what[0])
        for name in ("layout", "groups", "groups_capacity"):
            del result[name]
        if not result.pop("has_parent"):
            result["parent"] = None
        return dict(result, layouts=layouts)

    def touch(self, keys):
        """Counts a use of each key that is stored, and returns how many are."""
        joined, count = join_keys(keys)
        touched = ffi.new("size_t *")
        self._need(lib.guarded_kvt_store_touch(self._handle, joined, count, touched))
        return touched[0]

    def hint(self, keys, kind, seconds=0.0):
        """Says what is expected of the keys' next use: kind is "retain" or "next_use" (within, in
        about so many seconds), "demote" or "session_end" (none within so many; 0: the kind's own).
        Evidence, no order. Returns how many keys are stored and got it."""
        if kind not in _HINTS:
            raise wrong(f"a hint is one of {', '.join(_HINTS)}, not {kind!r}")
        joined, count = join_keys(keys)
        expected, hinted = new("kvt_expectation"), ffi.new("size_t *")
        expected.kind, expected.seconds = _HINTS[kind], seconds
        self._need(lib.guarded_kvt_store_hint(self._handle, joined, count, expected, hinted))
        return hinted[0]

    def prefetch(self, key, tier="dram"):
        """Offers to move an entry up to a tier now. True: it is there, or on its way; False: it is
        not stored, or the policy leaves it where it is."""
        if tier not in TIERS:
            raise wrong(f"a tier is one of {', '.join(TIERS)}, not {tier!r}")
        status = lib.guarded_kvt_store_prefetch(self._handle, check_key(key), TIERS[tier])
        return False if status == lib.KVT_REFUSED else self._need(status)

    def lease(self, keys, seconds):
        """Keeps the stored ones of the keys where they are for so many seconds: a Lease, or None
        when none is held, or when the time was over before it began."""
        joined, count = join_keys(keys)
        held, number = ffi.new("bool[]", max(count, 1)), ffi.new("uint64_t *")
        until = instant(seconds)
        status = lib.kvtpy_lease(self._handle, joined, count, until, held, number)
        if status == lib.KVT_E_ARGUMENT and has_passed(until):
            return None
        if not self._need(status, "a lease takes up to 2^20 keys and an instant that is to come"):
            return None
        return Lease(self, number[0], list(held)[:count])

    # ---- spaces, persistence ----

    @numbers
    def clear(self, *, space=None, tenant=None, everything=False):
        """Removes all entries of a space (a Space or its id), of a tenant, of both, or everything,
        and returns how many. BusyError: all but those that leases hold. Copies for other hosts go
        with them (docs/REMOTE.md, Epochs); remote_flush waits until the engine knows."""
        which = new("kvt_clear_filter")
        if space is not None:
            which.by_space, which.space = True, space.id if isinstance(space, Space) else space
        if tenant is not None:
            try:
                which.by_tenant, which.tenant = True, tenant
            except (OverflowError, TypeError) as error:
                raise wrong(f"no such tenant: {tenant!r}") from error
        which.everything = bool(everything)
        removed = ffi.new("uint64_t *")
        self._need(lib.guarded_kvt_store_clear(self._handle, which, removed),
                   "clear takes a space, a tenant or both, or everything; or leases hold entries")
        return removed[0]

    @numbers
    def space_stats(self, space):
        """Entries and bytes of a space (a Space or its id), by tier, as a dict."""
        stats = new("kvt_space_stats")
        number = space.id if isinstance(space, Space) else space
        self._need(lib.guarded_kvt_space_stats_get(self._handle, number, stats))
        return plain(stats[0])

    def flush(self):
        """Waits until every put that has returned has ended, and makes durable what is on SSD.
        Without a catalog it does the first alone: nothing outlives the store."""
        self._need(lib.guarded_kvt_store_flush(self._handle))

    def persist(self, *, deadline=None):
        """Writes what is in HBM and DRAM alone to SSD, as far as `deadline` seconds and room allow,
        and makes it durable. A dict of entries and bytes: written, displaced, without_room, left;
        `left` is above 0 when the deadline passed first."""
        done = new("kvt_persist_info")
        status = lib.guarded_kvt_store_persist(self._handle, instant(deadline), done)
        if status != lib.KVT_E_TIMEOUT:
            self._need(status, "the store has no catalog, no SSD, or copies are off: nothing "
                       "outlives it" if status == lib.KVT_E_UNSUPPORTED else "")
        return plain(done[0])

    def remote_flush(self, *, deadline=None):
        """Waits until what was to be published for other hosts, deleted or cleared there, is done
        or dropped; False when `deadline` seconds have passed first."""
        status = lib.guarded_kvt_remote_flush(self._handle, instant(deadline))
        if status == lib.KVT_E_TIMEOUT:
            return False
        self._need(status)
        return True

    def remote_stats(self):
        """What came from other hosts and went to them since the open, as a dict with `node_list`, a
        dict of each node; None for a store without other hosts (docs/REMOTE.md)."""
        made = new("kvt_remote_stats")
        status = lib.guarded_kvt_remote_stats_get(self._handle, made)
        if status == lib.KVT_E_UNSUPPORTED and self._address is None:
            return None
        self._need(status)
        said, nodes = plain(made[0]), []
        while True:
            node = new("kvt_remote_node")
            status = lib.guarded_kvt_remote_node_get(self._handle, len(nodes), node)
            if status == lib.KVT_END:
                return {**said, "node_list": nodes}
            self._need(status)
            nodes.append(plain(node[0]))

    def maintain(self):
        """One round of background work on this thread: moves made, or None when a round is running
        already. For stores with tick=0."""
        moves = ffi.new("uint32_t *")
        status = lib.guarded_kvt_store_maintain(self._handle, moves)
        return None if status == lib.KVT_BUSY else (self._need(status), moves[0])[1]

    # ---- what it does and why ----

    def stats(self):
        """Counters since the open and gauges of now, as nested dicts by tier; names and units as in
        kvterrace.h (kvt_store_stats). Beside those: hits, the gets that were served, and hit_rate,
        their share of all gets, which each tier has too; None before the first get."""
        stats = new("kvt_store_stats")
        self._need(lib.guarded_kvt_store_stats_get(self._handle, stats))
        result = plain(stats[0])
        gets = result["gets"]
        result["hits"] = gets - result["misses"]
        for part in (result, *result["tiers"].values()):
            part["hit_rate"] = part["hits"] / gets if gets else None
        return result

    def explain(self, key):
        """Why an entry is where it is: a dict with the reason and each option's terms in seconds
        per second. Of an entry that is not stored: the reason why its last put was refused, or
        None."""
        said = new("kvt_explanation")
        status = lib.guarded_kvt_store_explain(self._handle, check_key(key), said)
        if not self._need(status):
            reason = plain(said.reason)
            return None if reason is None else {"reason": reason, "options": []}
        result = plain(said[0])
        result["options"] = result["options"][:result.pop("option_count")]
        return result

    def metrics(self):
        """The metrics as Prometheus text."""
        size = lib.guarded_kvt_metrics_write(self._handle, ffi.NULL, 0)
        while True:
            text = ffi.new("char[]", size + 256)
            wanted = lib.guarded_kvt_metrics_write(self._handle, text, size + 256)
            if wanted == 0:
                lost = self.connected and self._owner.state == 1
                raise self._fail(lib.KVT_E_GONE if lost else lib.KVT_E_STATE)
            if wanted <= size + 256:
                return ffi.string(text).decode()
            size = wanted

    def devices(self):
        """One dict for each device: facts, use, speeds in bytes per second as achieved."""
        found = []
        while True:
            stats = new("kvt_device_stats")
            status = lib.guarded_kvt_device_stats_get(self._handle, len(found), stats)
            if status == lib.KVT_END:
                return found
            self._need(status)
            found.append(plain(stats[0]))

    def health(self):
        """What is out of order now, the gravest first: dicts with status, name, seconds, text. An
        empty list: all is well."""
        items, count = ffi.new("kvt_health_item[]", 64), ffi.new("size_t *")
        items[0].struct_size = ffi.sizeof("kvt_health_item")
        self._need(lib.guarded_kvt_health_get(self._handle, items, 64, count, ffi.NULL))
        return [plain(items[index]) for index in range(min(count[0], 64))]

    def events(self, capacity=8192):
        """An EventReader of what is stored, moved and removed from now on; `capacity` events wait
        for it at most."""
        return EventReader(self, capacity)

    # ---- asyncio ----

    def queue(self, *, threads=0, depth=0):
        """A Queue of its own for the running event loop: `threads` of the library for gets (0: 2),
        `depth` requests accepted at once (0: 4096). aget and its kin share one queue per loop."""
        return _queue.Queue(self, threads=threads, depth=depth)

    def _loop_queue(self):
        return _queue.of_loop(self, self._queues)

    async def aput(self, key, data, layout=None, **options):
        """put, on the store's threads; `data` is borrowed until the return."""
        return await self._loop_queue().put(key, data, layout, **options)

    async def aget(self, key, **options):
        """get, on the store's threads."""
        return await self._loop_queue().get(key, **options)

    async def aget_into(self, key, target, **options):
        """get_into, on the store's threads; `target` is borrowed until the return."""
        return await self._loop_queue().get_into(key, target, **options)

    async def aexists(self, key, *, info=None):
        """exists, on the store's threads; with other hosts also what is known of them, and then
        info, a dict, says guess."""
        return await self._loop_queue().exists(key, info=info)

    async def adelete(self, key):
        """delete, on the store's threads."""
        return await self._loop_queue().delete(key)

    async def aprefetch(self, key, tier="dram"):
        """prefetch, on the store's threads."""
        return await self._loop_queue().prefetch(key, tier)

    async def atouch(self, key):
        """Counts a use of one key: whether it is stored."""
        return await self._loop_queue().touch(key)


class Lease:
    """Entries that stay where they are until an instant; `held` says which of the keys. In a with
    statement the lease ends behind it."""

    def __init__(self, store, number, held):
        self._store, self.number, self.held = store, number, held

    def extend(self, seconds):
        """Moves the end to so many seconds from now. False: the lease has ended."""
        until = instant(seconds)
        status = lib.guarded_kvt_lease_extend(self._store._handle, self.number, until)
        if status == lib.KVT_E_ARGUMENT and has_passed(until):
            self.end()
            return False
        return self._store._need(status)

    def end(self):
        """Ends the lease. False: it had ended."""
        return self._store._need(lib.guarded_kvt_lease_end(self._store._handle, self.number))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self._store.closed:
            self.end()


class EventReader:
    """What is stored, moved and removed, in order. fileno() is readable while events wait."""

    def __init__(self, store, capacity):
        made = ffi.new("kvt_events **")
        try:
            status = lib.guarded_kvt_events_open(store._handle, capacity, made)
        except OverflowError:
            status = lib.KVT_E_ARGUMENT
        if status != lib.KVT_OK:
            raise store._fail(status, f"no reader keeps {capacity} events"
                              if status == lib.KVT_E_ARGUMENT else "")
        self._owner = Handle(lib.kvtpy_new(made[0]), lib.kvtpy_events_close)
        self.lost = 0  # events that came too fast for this reader, ever

    def fileno(self):
        return lib.guarded_kvt_events_fd(self._owner.raw)

    def drain(self, limit=1024):
        """The oldest waiting events, at most `limit`, as dicts: number, kind, key, parent, bytes,
        load_seconds, tokens, tier, reason of a removal."""
        events, count = ffi.new("kvt_event[]", limit), ffi.new("size_t *")
        lost = ffi.new("uint64_t *")
        status = lib.guarded_kvt_events_drain(self._owner.raw, events, limit, count, lost)
        if status != lib.KVT_OK:
            raise failure(status, "the reader is closed")
        self.lost += lost[0]
        found = [plain(events[index]) for index in range(count[0])]
        for event in found:
            event["kind"] = _EVENTS[event["kind"]]
            event["reason"] = _REASONS.get(event["reason"])
        return found

    def close(self):
        """Ends the reader with what waits for it."""
        self._owner.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@atexit.register
def _close_all():
    """Before the interpreter takes its objects apart no thread of a store may write into them."""
    for store in list(_OPEN):
        store.close()


def put_chunk(store, keys, index, view, chunk, seconds):
    """Puts chunk `index` of a sequence, each of so many tokens, as the child of the one before; a
    busy store gets it once more behind a flush. Returns the outcome."""
    options = {"parent": keys[index - 1] if index else None, "first_position": index * chunk,
               "recompute_seconds": seconds}
    outcome = store.put(keys[index], view, **options)
    if outcome is Outcome.BUSY:
        store.flush()
        outcome = store.put(keys[index], view, **options)
    return outcome
