# SPDX-License-Identifier: Apache-2.0
"""Books that adapters keep of a store: right in whatever order the events come that they are kept
of (python/tests/test_package_books.py lists and permutes them)."""

import contextlib
import math
import threading
import time

from ._errors import DeviceError
from ._kvt import ffi, lib
from ._store import EventReader

_WAITING = 1 << 16
_GONE = 1024
_ASK_SECONDS = 1.0


class Told:
    """What an engine has been told is stored, until it is told that it has gone.

    Ends of puts, removals and questions come in any order and from any thread: a removal may be
    read before the end of the put that it undoes. Therefore nothing is concluded from an event but
    which key to look for: what was told since the last question, and what was removed, has gone
    when the store misses it.

    `order` is the books' lock. An adapter of several threads holds it from a change of the books
    until the engine has heard of it, so that the engine hears of changes in their order."""

    def __init__(self, store, follow=False):
        """follow: `stayed` has (key, what) of entries that may have moved to another tier, found by
        the last question; its owner empties it."""
        self.order = threading.RLock()
        self._store, self._reader = store, EventReader(store, _WAITING)
        self._new, self._known, self._fresh = {}, {}, []
        self.stayed, self._follow = [], follow

    def __len__(self):
        return len(self._known)

    def note(self, key, what):
        """A key is stored, and the engine is to be told: `what` is its name for it. False: it is
        told already."""
        with self.order:
            if key in self._known or key in self._new:
                return False
            self._new[key] = what
            return True

    def told(self, keys):
        """The engine has been told of these, so that it may be told that they have gone."""
        with self.order:
            self._known.update((key, self._new.pop(key)) for key in keys)
            self._fresh += keys

    def gone(self, keys=()):
        """What the engine is to be told has gone: of all that it was told, each once. keys: to be
        looked for beside those that the store names."""
        buffer, lost, count = ffi.new("uint8_t[]", 32 * _GONE), ffi.new("uint64_t *"), _GONE
        with self.order:
            looked, self._fresh = [*keys, *self._fresh], []
        follow = self._follow
        while count == _GONE:
            count = lib.kvtpy_events_gone(self._reader._owner.raw, buffer, _GONE, lost)
            removed = bytes(ffi.buffer(buffer, 32 * count))
            looked += [removed[at:at + 32] for at in range(0, len(removed), 32)]
            if lost[0]:  # which ones went is not known any more
                with self.order:
                    looked, follow = list(self._known), False
        gone = []
        for key in looked:
            with self.order:  # a put of the same key is noted behind it, or was before
                if key not in self._known:
                    continue
                if lib.guarded_kvt_store_exists(self._store._handle, key) == lib.KVT_MISS:
                    gone.append(self._known.pop(key))
                elif follow:
                    self.stayed.append((key, self._known[key]))
        return gone

    def close(self):
        self._reader.close()


class Untold:
    """In the place of Told where a store tells no events: the engine is told nothing, since it
    could not be told what has gone."""

    order = contextlib.nullcontext()

    def __len__(self):
        return 0

    def note(self, key, what):
        return False

    def told(self, keys):
        pass

    def gone(self, keys=()):
        return []

    def close(self):
        pass


class Said:
    """Warnings, each once: of a text, and of what it is about where that is given, which is one of
    few."""

    def __init__(self, log):
        self._log, self._said, self._ask_at = log, set(), 0.0

    def first(self, text, of=None):
        """Whether this is the first time."""
        known = (text, of) in self._said
        self._said.add((text, of))
        return not known

    def once(self, text, *values, of=None):
        if self.first(text, of):
            self._log.warning(text, *values)

    def declined(self, store, key, what):
        """That the store takes none of these, and why: else no lookup ever finds one, and nothing
        says so. A server that is away is told apart from the policy, which may decline later."""
        now = time.monotonic()
        if now < self._ask_at:
            return
        self._ask_at = now + _ASK_SECONDS
        try:
            said = store.explain(key)
        except DeviceError as error:
            self.once("kvterrace: %s are not stored until the server is back: %s", what, error)
            return
        if said is None and store.connected:
            return  # the server was away, and knows nothing of this put
        self._ask_at = math.inf
        self._log.warning("kvterrace: the policy declines %s: %s", what,
                          (said or {}).get("reason") or "not worth their room")
