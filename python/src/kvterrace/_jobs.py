# SPDX-License-Identifier: Apache-2.0
"""A queue for engines that poll: a job is a number of gets or puts that end together.

The adapter of vLLM uses it; those whose engines wait for whole batches have _tasks.py. Jobs go to
the store at once; what the queue has no room for waits here, in order. Any thread may call.
"""

import collections
import threading
import typing

from ._calls import Handle, instant
from ._convert import new
from ._errors import wrong
from ._kvt import ffi, lib
from ._types import check_key

_DRAINED = 256
_DEPTH = 1 << 16


class Place(typing.NamedTuple):
    """The memory of one entry: where it begins, how many bytes may be touched from there on, and
    what keeps it. view: a kvt_view whose first address is set to `address`; None: the entry is
    packed there."""

    address: object
    bytes: int
    view: object = None


class Ended(typing.NamedTuple):
    """A job that has ended. statuses: one kvt_status for each of its keys, in order."""

    job: object
    kind: int
    statuses: list
    stored_bytes: int
    seconds: float


class _Job:
    __slots__ = ("name", "kind", "requests", "count", "left", "statuses", "stored", "longest",
                 "keep")

    def __init__(self, name, kind, count):
        self.name, self.kind, self.count, self.left = name, kind, count, count
        self.requests = ffi.new("kvt_request[]", max(count, 1))
        self.statuses = [lib.KVT_E_STATE] * count
        self.stored, self.longest, self.keep = 0, 0, []


class Jobs:
    """A queue of a store. threads and depth as kvt_queue_options has them."""

    def __init__(self, store, *, threads=0, depth=_DEPTH):
        options, made = new("kvt_queue_options"), ffi.new("kvtpy_handle **")
        options.threads, options.depth = threads, depth
        status = lib.kvtpy_queue_open(store._handle, options, made)
        if status != lib.KVT_OK:
            raise store._fail(status)
        self._owner, self._store, self._depth = Handle(made[0], lib.kvtpy_queue_close), store, depth
        self._raw, self._fd = made[0], lib.guarded_kvt_queue_fd(made[0])
        self._jobs, self._waiting, self._done = {}, collections.deque(), []
        self._number, self._inside = 0, 0
        self._lock = threading.RLock()
        self._completions = ffi.new("kvt_completion[]", _DRAINED)
        self._completions[0].struct_size = ffi.sizeof("kvt_completion")
        store._every_queue.add(self)

    def fileno(self):
        """A descriptor that is readable while finished() has something to say."""
        return self._fd

    @property
    def pending(self):
        """Jobs that have been given and not been returned by finished()."""
        with self._lock:
            return len(self._jobs) + len(self._done)

    # ---- jobs ----

    def get(self, job, keys, layouts, places, *, deadline=None, loss_max=0.0,
            urgency=lib.KVT_CLASS_WAITED):
        """Reads entries into places: their memory is borrowed until the job ends. layouts: a Layout
        for each key."""
        made = _Job(job, lib.KVT_REQUEST_GET, len(keys))
        until = instant(deadline)
        for index, (key, layout, place) in enumerate(zip(keys, layouts, places, strict=True)):
            request = self._fill(made, index, layout, place, until, urgency)
            request.loss_max = loss_max
            ffi.memmove(request.key.bytes, check_key(key), 32)
        self._give(made)

    def put(self, job, keys, layouts, places, *, parents=None, numbers=None, deadline=None,
            urgency=lib.KVT_CLASS_WAITED):
        """Offers entries. parents: a key or None for each; numbers: a dict of further members of
        kvt_entry for each."""
        made = _Job(job, lib.KVT_REQUEST_PUT, len(keys))
        until, count = instant(deadline), len(keys)
        entries, above = ffi.new("kvt_entry[]", max(count, 1)), ffi.new("kvt_key[]", max(count, 1))
        made.keep += [entries, above]
        for index, (key, layout, place) in enumerate(zip(keys, layouts, places, strict=True)):
            request, entry = self._fill(made, index, layout, place, until, urgency), entries[index]
            entry.struct_size = ffi.sizeof("kvt_entry")
            ffi.memmove(entry.key.bytes, check_key(key), 32)
            entry.layout = layout._made[0]
            if parents is not None and parents[index] is not None:
                ffi.memmove(above[index].bytes, check_key(parents[index]), 32)
                entry.parent = ffi.addressof(above, index)
            for name, value in (numbers[index] if numbers else {}).items():
                setattr(entry, name, value)
            request.entry = ffi.addressof(entries, index)
        self._give(made)

    def _fill(self, made, index, layout, place, until, urgency):
        request = made.requests[index]
        request.struct_size = ffi.sizeof("kvt_request")
        request.kind, request.urgency, request.deadline_ns = made.kind, urgency, until
        if place.view is None:
            if place.bytes < layout.bytes:
                raise wrong(f"an entry of {layout.bytes} bytes has a place of {place.bytes}")
            view = ffi.new("kvt_view *", lib.kvt_view_packed(layout._made, place.address))
        else:
            view = ffi.new("kvt_view *", place.view[0])
            view.base[0], view.base_bytes[0] = place.address, place.bytes
        made.keep.append(view)
        request.view = view
        return request

    def _give(self, job):
        with self._lock:
            if self._owner.state != 1:
                raise self._store._fail(lib.KVT_E_STATE)
            self._number += 1
            for index in range(job.count):
                job.requests[index].user = self._number << 32 | index
            self._jobs[self._number] = job
            if job.count == 0:
                self._end(self._number)
                return
            self._waiting.append((self._number, 0))
            self._send()

    def _send(self):
        """Hands over what the queue has room for; a job may go in several pieces."""
        while self._waiting and self._inside < self._depth:
            number, first = self._waiting[0]
            job = self._jobs[number]
            count = min(job.count - first, self._depth - self._inside)
            status = lib.guarded_kvt_submit(self._raw, job.requests + first, count, ffi.NULL)
            if status == lib.KVT_BUSY:
                return
            self._waiting.popleft()
            if status != lib.KVT_OK:  # the store closes, or memory is short: what is left has ended
                job.statuses[first:] = [status] * (job.count - first)
                job.left -= job.count - first
                if job.left == 0:
                    self._end(number)
                continue
            self._inside += count
            if first + count < job.count:
                self._waiting.appendleft((number, first + count))

    def _end(self, number):
        job = self._jobs.pop(number)
        self._done.append(Ended(job.name, job.kind, job.statuses, job.stored, job.longest * 1e-9))

    def finished(self):
        """The jobs that have ended since the last call, as a list of Ended. Never waits."""
        with self._lock:
            self._drain()
            done, self._done = self._done, []
        return done

    def _drain(self):
        count = _DRAINED
        while count == _DRAINED:
            count = lib.guarded_kvt_drain(self._raw, self._completions, _DRAINED)
            self._inside -= count
            for index in range(count):
                one = self._completions[index]
                number = one.user >> 32
                job = self._jobs[number]
                job.statuses[one.user & 0xffffffff] = one.status
                job.stored += one.stored_bytes
                job.longest = max(job.longest, one.elapsed_ns)
                job.left -= 1
                if job.left == 0:
                    self._end(number)
            self._send()

    def wait(self):
        """Until every job has ended; finished() returns them afterwards. False: the store closed
        meanwhile, and jobs may be left."""
        while True:
            with self._lock:
                self._drain()
                if not self._jobs:
                    return True
            status = lib.guarded_kvt_queue_wait(self._raw, instant(1.0))
            if status == lib.KVT_E_STATE:
                return False

    def close(self):
        """Cancels what has not begun, waits for what is under way; no memory of a job is touched
        afterwards. Jobs that have not ended are not returned any more. A second close does
        nothing."""
        self._owner.close()
        with self._lock:
            self._jobs.clear()
            self._waiting.clear()
