# SPDX-License-Identifier: Apache-2.0
"""Queues for asyncio: requests go to the store in batches, completions come by a descriptor that
the loop watches."""

import asyncio
import collections
import threading

from ._calls import Handle, Held, Source, describe, instant, make_entry, packed_view
from ._convert import TIER_NAMES, TIERS, new, plain, variant_name
from ._errors import failure, wrong
from ._kvt import ffi, lib
from ._memory import memory_of
from ._types import View, check_key

_URGENCIES = {"waited": lib.KVT_CLASS_WAITED, "prefetch": lib.KVT_CLASS_PREFETCH,
              "background": lib.KVT_CLASS_BACKGROUND}
_DRAINED = 256


class _Request:
    """One request until its completion: what it borrows stays alive as long as this does."""

    __slots__ = ("future", "made", "held", "keep", "sent")

    def __init__(self, made, held, keep):
        self.made, self.held, self.keep = made, held, keep
        self.future, self.sent = None, False

    def end(self):
        if self.held is not None:
            self.held.drop()
        self.keep = None


class _Packed:
    """The view of a packed buffer; of the shape of Held."""

    def __init__(self, memory):
        self.memory, self.view = memory, packed_view(memory.address, memory.bytes)

    def drop(self):
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.release()


class Queue:
    """A queue of a store for one event loop. Its coroutines run on that loop alone; other loops and
    threads make queues of their own.

    A coroutine that is cancelled ends when the library has let go of its memory: at once when the
    request has not been sent, else with its completion, for which a deadline sets a bound.
    """

    def __init__(self, store, *, threads=0, depth=0):
        self._loop = asyncio.get_running_loop()
        self._store, self._depth = store, depth or 4096
        options, made = new("kvt_queue_options"), ffi.new("kvtpy_handle **")
        try:
            options.threads, options.depth = threads, depth
        except (OverflowError, TypeError) as error:
            raise wrong(f"threads and depth are numbers: {error}") from error
        status = lib.kvtpy_queue_open(store._handle, options, made)
        if status != lib.KVT_OK:
            raise store._fail(status)
        self._owner = Handle(made[0], lib.kvtpy_queue_close)
        self._raw, self._fd = made[0], lib.guarded_kvt_queue_fd(made[0])
        self._pending, self._outbox, self._room = {}, [], collections.deque()
        self._number, self._closed = 0, False
        self._completions = ffi.new("kvt_completion[]", _DRAINED)
        self._completions[0].struct_size = ffi.sizeof("kvt_completion")
        self._loop.add_reader(self._fd, self._drain)
        store._every_queue.add(self)

    def stats(self):
        """Counts since the open and of now, as a dict; names as in queue.h (kvt_queue_stats)."""
        stats = new("kvt_queue_stats")
        status = lib.guarded_kvt_queue_stats_get(self._raw, stats)
        if status != lib.KVT_OK:
            raise self._store._fail(status)
        return plain(stats[0])

    # ---- calls ----

    async def put(self, key, data, layout=None, *, parent=None, recompute_seconds=0.0,
                  first_position=0, request_tokens=0, class_id=0, tenant=0, lifetime=0.0,
                  deadline=None, urgency="waited"):
        """Store.put; while the store cannot keep up it waits, until `deadline` seconds from now at
        most, and is Outcome.BUSY then."""
        from ._store import OUTCOMES
        source = Source(data, layout)
        numbers = {"recompute_seconds": recompute_seconds, "first_position": first_position,
                   "request_tokens": request_tokens, "class_id": class_id, "tenant": tenant,
                   "lifetime_seconds": lifetime}
        entry, keep = make_entry(key, source.layout, parent, numbers, source.groups, None)
        if source.memory is not None:
            held = _Packed(source.memory)
        else:
            held = Held(source.views, False)
        done = await self._call(lib.KVT_REQUEST_PUT, None, urgency, deadline=deadline, held=held,
                                entry=entry, keep=(keep, entry, data))
        if done[0] in OUTCOMES:
            return OUTCOMES[done[0]]
        raise self._fail(done[0])

    async def get(self, key, *, deadline=None, loss_max=0.0, urgency="waited"):
        """Store.get: a new bytearray, or None."""
        status, what, _ = describe(self._store._handle, check_key(key))
        if not self._store._need(status):
            return None
        data = bytearray(what.bytes)
        done = await self._call(lib.KVT_REQUEST_GET, key, urgency, deadline=deadline,
                                held=_Packed(memory_of(data, writable=True)),
                                loss_max=loss_max)
        return data if self._ended(done[0]) else None

    async def get_into(self, key, target, *, deadline=None, loss_max=0.0, urgency="waited",
                       info=None):
        """Store.get_into. loss_max: a miss when the stored form may lose more; 0: whatever the
        store keeps; below 0: exact variants alone. info: a dict for tier, variant, stored_bytes,
        elapsed_ns, timed_out."""
        if isinstance(target, (View, list, tuple)):
            views = [target] if isinstance(target, View) else target
            if not views or not all(isinstance(view, View) for view in views):
                raise wrong("the target is a buffer, a View, or a list of Views")
            held = Held(views, True)
        else:
            memory = memory_of(target, writable=True)
            status, what, layouts = describe(self._store._handle, check_key(key))
            if self._store._need(status):  # else another host may have it
                for layout in layouts:
                    memory.check_kind(layout.dtype)
                if memory.bytes != what.bytes:
                    raise wrong(f"the entry has {what.bytes} bytes, the buffer {memory.bytes}")
            held = _Packed(memory)
        done = await self._call(lib.KVT_REQUEST_GET, key, urgency, deadline=deadline, held=held,
                                loss_max=loss_max, keep=target)
        if info is not None:
            info.update(zip(("tier", "variant", "stored_bytes", "elapsed_ns", "timed_out"),
                            done[1:]))
        return self._ended(done[0], "the views do not fit the entry")

    async def exists(self, key, *, info=None):
        """Whether an entry can be read now, here or, as far as is known, from another host. info: a
        dict for guess: it is not here, and the answer is what is known of other hosts."""
        done = await self._call(lib.KVT_REQUEST_EXISTS, key, "waited")
        if info is not None:
            info["guess"] = done[6]
        return self._ended(done[0])

    async def delete(self, key):
        """Store.delete."""
        return self._ended((await self._call(lib.KVT_REQUEST_DELETE, key, "waited"))[0],
                           "a lease holds the entry")

    async def prefetch(self, key, tier="dram"):
        """Store.prefetch."""
        if tier not in TIERS:
            raise wrong(f"a tier is one of {', '.join(TIERS)}, not {tier!r}")
        done = await self._call(lib.KVT_REQUEST_PREFETCH, key, "prefetch", tier=TIERS[tier])
        return False if done[0] == lib.KVT_REFUSED else self._ended(done[0])

    async def touch(self, key):
        """Counts a use of one key: whether it is stored."""
        return self._ended((await self._call(lib.KVT_REQUEST_TOUCH, key, "waited"))[0])

    # ---- requests and completions ----

    def _fail(self, status, message=""):
        if self._closed or status == lib.KVT_E_CANCELLED:
            return failure(lib.KVT_E_STATE, "the queue was closed")
        return self._store._fail(status, message)

    def _ended(self, status, message=""):
        if status == lib.KVT_OK:
            return True
        if status == lib.KVT_MISS:
            return False
        raise self._fail(status, message if status in (lib.KVT_E_ARGUMENT, lib.KVT_BUSY) else "")

    async def _call(self, kind, key, urgency, *, deadline=None, held=None, entry=None, tier=0,
                    loss_max=0.0, keep=None):
        """One request: (status, tier, variant, stored bytes, ns, timed out, guess)."""
        request = None
        try:
            if asyncio.get_running_loop() is not self._loop:
                raise failure(lib.KVT_E_STATE, "the queue is of another event loop")
            if urgency not in _URGENCIES:
                raise wrong(f"urgency is one of {', '.join(_URGENCIES)}, not {urgency!r}")
            made = new("kvt_request")
            made.kind, made.urgency, made.tier = kind, _URGENCIES[urgency], tier
            made.deadline_ns, made.loss_max = instant(deadline), loss_max
            if key is not None:
                ffi.memmove(made.key.bytes, check_key(key), 32)
            if entry is not None:
                made.entry = entry
            if held is not None:
                made.view = held.view
            while len(self._pending) >= self._depth and not self._closed:
                await self._wait_for_room()
            if self._closed or self._owner.state != 1:
                raise self._fail(lib.KVT_E_STATE)
            self._number += 1
            made.user = self._number
            request = _Request(made, held, keep)
        finally:
            if request is None and held is not None:
                held.drop()
        return await self._complete(self._number, request)

    async def _complete(self, number, request):
        request.future = self._loop.create_future()
        self._pending[number] = request
        self._outbox.append(request)
        if len(self._outbox) == 1:
            self._loop.call_soon(self._send)
        try:
            return await request.future
        except asyncio.CancelledError:
            if not request.sent and number in self._pending:
                self._outbox = [one for one in self._outbox if one is not request]
                del self._pending[number]
                request.end()
                self._wake()
            while number in self._pending:
                request.future = self._loop.create_future()
                try:
                    await request.future
                except (asyncio.CancelledError, Exception):
                    continue
            raise

    async def _wait_for_room(self):
        waiter = self._loop.create_future()
        self._room.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            self._wake()
            raise

    def _wake(self):
        free = self._depth - len(self._pending)
        while self._room and free > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

    def _send(self):
        """Submits what the coroutines of one turn of the loop have asked for, as one batch."""
        if self._closed or not self._outbox:
            return
        batch, self._outbox = self._outbox, []
        made = ffi.new("kvt_request[]", len(batch))
        for index, request in enumerate(batch):
            made[index] = request.made[0]
            request.sent = True
        status = lib.guarded_kvt_queue_submit(self._raw, made, len(batch), ffi.NULL)
        if status == lib.KVT_OK:
            return
        for request in batch:
            self._take(request.made.user, error=self._fail(status))
        self._wake()

    def _take(self, number, result=None, error=None):
        request = self._pending.pop(number, None)
        if request is None:
            return
        request.end()
        if not request.future.done():
            if error is not None:
                request.future.set_exception(error)
            else:
                request.future.set_result(result)

    def _drain(self):
        count = _DRAINED
        while count == _DRAINED and not self._closed:
            count = lib.guarded_kvt_queue_drain(self._raw, self._completions, _DRAINED)
            for index in range(count):
                done = self._completions[index]
                got = done.kind == lib.KVT_REQUEST_GET and done.status == lib.KVT_OK
                self._take(done.user, (done.status, TIER_NAMES[done.tier],
                                       variant_name(done.variant) if got else None,
                                       done.stored_bytes, done.elapsed_ns, done.timed_out,
                                       done.guess))
        if self._room:
            self._wake()

    # ---- end ----

    def close(self):
        """Cancels what has not begun, waits for what is under way, and ends the queue: coroutines
        that wait raise StateError. A second close does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._owner.state == 1:
            self._leave_loop()
        self._owner.close()
        self._outbox.clear()
        numbers = list(self._pending)
        try:
            self._loop.call_soon_threadsafe(self._fail_all, numbers)
        except RuntimeError:  # the loop is closed: nobody waits
            for number in numbers:
                self._pending.pop(number).end()

    def _fail_all(self, numbers):
        for number in numbers:
            self._take(number, error=failure(lib.KVT_E_STATE, "the queue was closed"))
        while self._room:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def _leave_loop(self):
        """The loop stops watching the descriptor before the descriptor closes."""
        if self._loop.is_closed():
            return
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop or not self._loop.is_running():
            self._loop.remove_reader(self._fd)
            return
        left = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (self._loop.remove_reader(self._fd), left.set()))
        left.wait(1.0)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.close()


def of_loop(store, queues):
    """The store's queue for the running loop; queues of loops that are closed end here."""
    loop = asyncio.get_running_loop()
    queue = queues.get(loop)
    if queue is not None and not queue._closed:
        return queue
    for other in [one for one in list(queues) if one.is_closed()]:
        queues.pop(other).close()
    queues[loop] = queue = Queue(store)
    return queue
