# SPDX-License-Identifier: Apache-2.0
"""Batches of requests for engines that bring threads and loops of their own, or poll: a task is one
batch, and the descriptor says when a whole one has ended."""

import collections
import os
import select
import threading

from ._calls import Handle, instant
from ._convert import new
from ._errors import failure
from ._kvt import ffi, lib

GET, PUT = lib.KVT_REQUEST_GET, lib.KVT_REQUEST_PUT
EXISTS, DELETE = lib.KVT_REQUEST_EXISTS, lib.KVT_REQUEST_DELETE
OK, MISS, EXISTED = lib.KVT_OK, lib.KVT_MISS, lib.KVT_EXISTS
DECLINED = (lib.KVT_REFUSED, lib.KVT_BUSY)  # a put that the store does without: no failure
MISMATCH = lib.KVT_E_MISMATCH  # a get of an entry that is something else
_ENDED = 512
_DEPTH = 4096


class Places:
    """Where the entries of a task lie: `made` is the kvtpy_places, `keep` what it points to."""

    __slots__ = ("made", "keep")

    def __init__(self, layouts, *, group_count=1, counts=None, alike=True, addresses=None,
                 scattered=False, shorter=None, pattern=None, blocks=None, keep=None,
                 elsewhere=False, packed=False):
        """layouts: Layouts of the groups of all entries alike, or of one entry after the other;
        group_count of each, or counts. addresses: numbers, or an array of them, one for each entry,
        or for each of its groups where they are scattered. shorter: for each entry whether it may
        be stored with fewer bytes. pattern: a kvt_view, of a pool's block with the number of each
        entry's in blocks, or of one entry whose first base is its address. elsewhere: gets of what
        is not here ask other hosts, because a key says what its entry's layout is. packed: gets
        of any entry whose bytes are as many as those of the layout."""
        made = ffi.new("kvtpy_places *")
        array = ffi.new("kvt_layout[]", [one._made[0] for one in layouts])
        made.layouts, made.group_count = array, group_count
        made.alike, made.scattered, made.elsewhere = alike, scattered, elsewhere
        made.packed = packed
        self.made, self.keep = made, [array, keep]
        if counts is not None:
            self.keep.append(ffi.new("uint32_t[]", counts))
            made.counts = self.keep[-1]
        if shorter is not None:
            self.keep.append(ffi.new("uint8_t[]", shorter))
            made.shorter = self.keep[-1]
        if pattern is not None:
            self.keep.append(pattern)
            made.pattern = pattern
        if blocks is not None:
            self.keep.append(ffi.new("uint32_t[]", blocks))
            made.blocks = self.keep[-1]
        elif isinstance(addresses, ffi.CData):
            self.keep.append(addresses)
            made.addresses = addresses
        else:
            self.keep.append(ffi.new("uint64_t[]", addresses))
            made.addresses = self.keep[-1]

    def follow(self, parents, positions):
        """Says of puts which key each entry follows, or None, and where its tokens begin."""
        joined = ffi.from_buffer("uint8_t[]", b"".join(parent or bytes(32) for parent in parents))
        above = ffi.new("uint8_t *[]", [ffi.NULL if parent is None else joined + 32 * index
                                        for index, parent in enumerate(parents)])
        begins = ffi.new("uint32_t[]", list(positions))
        self.keep += [joined, above, begins]
        self.made.parents, self.made.positions = above, begins
        return self


class Task:
    """One batch until it has ended; `note` is its owner's."""

    __slots__ = ("raw", "count", "note", "keep")

    def __init__(self, raw, count, note, keep):
        self.raw, self.count, self.note, self.keep = raw, count, note, keep

    def statuses(self):
        """(how many are KVT_OK, the status of each key) of a task that has ended."""
        made = ffi.new("int[]", max(self.count, 1))
        whole = lib.kvtpy_task_statuses(self.raw, made)
        return whole, made

    def cost(self):
        """(bytes of records that were read, seconds until the last completion) of a task that has
        ended."""
        made = ffi.new("uint64_t[2]")
        lib.kvtpy_task_cost(self.raw, made, made + 1)
        return made[0], made[1] * 1e-9

    def free(self):
        raw, self.raw, self.keep = self.raw, None, None
        if raw is not None:
            lib.kvtpy_task_free(raw)

    def __del__(self):
        # A task that still runs is kept by its queue, whose close ends it.
        self.free()


class _Bell:
    """An eventfd in place of a queue's own descriptor. That of a connected queue may be readable
    before a task has ended, and nobody may read it; and an owner may have to do something first. A
    thread of its own calls `arrive`, which takes what has completed and signals."""

    def __init__(self, arrive, descriptor):
        self.fd, self._stop = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, args=(arrive, descriptor),
                                        name="kvterrace-tasks", daemon=True)
        self._thread.start()

    def _run(self, arrive, descriptor):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while self._stop not in [ready for ready, _ in poll.poll()]:
            arrive()

    def close(self):
        if self._process == os.getpid():
            os.eventfd_write(self._stop, 1)
            if self._thread is not threading.current_thread():
                self._thread.join()
        os.close(self._stop)
        os.close(self.fd)


class Tasks:
    """A queue of a store. submit and drain from any thread; fileno() is an eventfd, readable when a
    whole task has ended. clears: drain makes it still again; else the loop that watches it reads
    it, and then drains. A task that the queue has no room for waits, and goes in pieces where it is
    larger than depth."""

    def __init__(self, store, *, threads=0, depth=_DEPTH, clears=False):
        options, made = new("kvt_queue_options"), ffi.new("kvtpy_handle **")
        options.threads, options.depth, options.whole_batches = threads, depth, True
        status = lib.kvtpy_queue_open(store._handle, options, made)
        if status != OK:
            raise store._fail(status)
        self._store, self._raw, self._depth = store, made[0], depth
        self._owner = Handle(made[0], lib.kvtpy_queue_close)
        self._fd = None if store.connected else lib.guarded_kvt_queue_fd(made[0])
        self._bell = None  # once somebody asks for a descriptor that is not the queue's own
        self._lock, self._clears = threading.Lock(), clears
        self._raised = self._closed = False
        self._open, self._ended, self._waiting = {}, [], collections.deque()
        self._buffer = ffi.new("uint64_t[]", _ENDED)
        store._every_queue.add(self)

    def fileno(self, arrive=None):
        """An eventfd: readable when a task has ended. A connected store's costs a thread, and so
        does `arrive`: it is called on it when tasks have ended, drains, and signals; until then the
        descriptor is not readable. Only the first call may name it."""
        with self._lock:
            if (self._fd is None or arrive is not None) and not self._closed \
                    and self._bell is None:
                self._bell = _Bell(arrive or self._arrive, lib.guarded_kvt_queue_fd(self._raw))
                self._fd = self._bell.fd
                self._arrived()
            return self._fd

    def signal(self):
        """Makes the descriptor readable once more, for what an owner has not handed on yet."""
        with self._lock:
            self._raise()

    def _raise(self):
        """Nobody writes a descriptor that may be closed. Lock held."""
        if self._fd is not None and not self._closed and self._owner.state == 1:
            self._raised = True
            os.eventfd_write(self._fd, 1)

    def make(self, kind, keys, count, places=None, *, like=ffi.NULL, deadline=None, note=None,
             keep=None):
        """A Task of `count` keys, joined, that has not been submitted."""
        made = ffi.new("kvtpy_task **")
        status = lib.kvtpy_task_new(self._store._handle, kind, keys, count,
                                    places.made if places is not None else ffi.NULL, like,
                                    instant(deadline), made)
        if status != OK:
            raise self._store._fail(status)
        return Task(made[0], count, note, (places.keep if places is not None else None, like, keep))

    def submit(self, task):
        """Hands a task over. It borrows what its places name until drain returns it."""
        with self._lock:
            if self._closed or self._owner.state != 1:
                raise self._store._fail(lib.KVT_E_STATE, "the queue is closed")
            if self._waiting or not self._send(task):
                self._waiting.append(task)

    def _send(self, task):
        """False: the queue is full. A task that the library does not take ends with its status.
        Lock held."""
        number = int(ffi.cast("uintptr_t", task.raw))
        self._open[number] = task
        status = lib.kvtpy_task_submit(self._raw, task.raw, self._depth)
        if status == OK:
            return True
        del self._open[number]
        if status == lib.KVT_BUSY:
            return False
        self._ended.append(task)
        self._raise()
        return True

    def _arrive(self):
        """Takes what has completed for a later drain."""
        with self._lock:
            self._take()
            self._arrived()

    def _arrived(self):
        """Rings for tasks that wait to be drained. Lock held."""
        if self._ended:
            self._raise()

    def drain(self):
        """Tasks that have ended since the last drain. Their owner frees them."""
        with self._lock:
            # The library clears what the library has written.
            if self._clears and self._raised and not self._closed:
                self._raised = False
                try:
                    os.eventfd_read(self._fd)
                except BlockingIOError:
                    pass
            self._take()
            ended, self._ended = self._ended, []
        return ended

    def _take(self):
        """Takes what has completed, and submits what had no room. Lock held."""
        count = _ENDED
        while count > _ENDED // 2:
            count = lib.kvtpy_task_drain(self._raw, self._buffer, _ENDED)
            self._ended += [self._open.pop(self._buffer[index]) for index in range(count)]
        while self._waiting and self._send(self._waiting[0]):
            self._waiting.popleft()

    def wait(self):
        """Until every task has ended; drain returns them afterwards. False: the store was closed
        meanwhile, and tasks may be left."""
        while True:
            with self._lock:
                self._take()
                if not self._open and not self._waiting:
                    return True
            if lib.guarded_kvt_queue_wait(self._raw, instant(1.0)) == lib.KVT_E_STATE:
                return False

    def run(self, task, meanwhile=None):
        """Carries a task out on this thread and returns its statuses, as Task.statuses. For a queue
        whose tasks all come this way, a thread at a time. meanwhile: called when it has begun."""
        if meanwhile is not None:
            lib.kvtpy_task_submit(self._raw, task.raw, self._depth)
            meanwhile()
        status = lib.kvtpy_task_run(self._raw, task.raw, self._depth)
        if status != OK:
            raise self._store._fail(status, f"a task of {task.count} keys")
        result = task.statuses()
        task.free()
        return result

    def close(self):
        """Cancels what has not begun and waits for what is under way; from then on no memory of a
        task is touched. A second close does nothing."""
        with self._lock:
            self._closed, bell, self._bell = True, self._bell, None
        if bell is not None:
            bell.close()
        self._owner.close()
        with self._lock:
            self._open.clear()
            self._waiting.clear()
            self._ended.clear()

    def __del__(self):
        if hasattr(self, "_ended"):
            self.close()


def names_to_keys(space, names):
    """The keys of names of a Space, joined. Names that are equally long take one call."""
    length = len(names[0]) if names else 0
    made = ffi.new("uint8_t[]", max(32 * len(names), 1))
    joined = b"".join(names)
    if len(joined) == length * len(names) and all(len(name) == length for name in names):
        status = lib.kvtpy_keys_make(space._hash, joined, length, len(names), 0, made)
        if status != OK:
            raise failure(status, f"a name has 1 to {lib.KVT_NAME_MAX} bytes, not {length}")
        return bytes(ffi.buffer(made, 32 * len(names)))
    return b"".join([space.key(name) for name in names])


def make_like(**numbers):
    """What all entries of a put have in common: a kvt_entry with these numbers."""
    like = new("kvt_entry")
    for name, value in numbers.items():
        try:
            setattr(like, name, value)
        except (OverflowError, TypeError) as error:
            raise failure(lib.KVT_E_ARGUMENT, f"{name} is out of range: {error}") from error
    return like
