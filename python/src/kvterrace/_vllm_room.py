# SPDX-License-Identifier: Apache-2.0
"""Turns of requests at the places of vLLM's host memory, its primary tier.

vLLM takes a chunk that is found behind its host memory, and has no place there, for one that is not
found: it computes it and all that follow. A request asks again each step instead, until a place is
free or its patience is over.

Places that come free are not enough. A request needs all of its chunks at once, and those that have
come for it can be evicted until vLLM schedules it. If whoever asks takes a place, requests that
wait evict each other's chunks, and none gets in. They therefore have an order, that of their first
question: chunks that came for a request before one are no places for it, and those of a request
behind it are. The first one always gets on.

Patience is `seconds` without one of the requests before having got in or given up. A look adds at
most LOOK_SECONDS, however long the step before it took: places do not come free while a step
computes. When patience is over the step's questions are answered with a miss. If vLLM has no blocks
for the request either, it is not scheduled, and waits on in its turn.
"""

import itertools
import time

LOOK_SECONDS = 0.1


class Turn:
    """What is kept of a request that has asked and is not scheduled yet."""

    __slots__ = ("number", "claimed", "waited", "looked", "over", "counted")

    def __init__(self, number):
        self.number, self.claimed = number, set()  # claimed: keys that have come for it
        self.waited, self.looked = 0.0, None
        self.over, self.counted = None, False  # over: the step in which its patience was


class Turns:
    """All turns of a tier. counts has room_waits and room_misses. Not thread-safe: vLLM's scheduler
    is one thread."""

    def __init__(self, seconds, counts):
        self._seconds, self._counts = seconds, counts
        self._numbers, self._step = itertools.count(), 0
        self._turns, self._claimed = {}, 0  # by vLLM's name of a request; claims of all

    def waits(self, name, key, places):
        """Whether a request is to ask again for a chunk that is found; places: those of the host
        memory that are free or can be evicted."""
        turn = self._turns.get(name)
        if turn is None:
            turn = self._turns[name] = Turn(next(self._numbers))
        elif key in turn.claimed:  # it came, and a request before took its place
            turn.claimed.remove(key)
            self._claimed -= 1
        if places > self._claimed or places > 0 and places > self._kept(turn):
            return False
        if turn.over == self._step:
            return False
        now = time.monotonic()
        if turn.looked is None:
            self._counts["room_waits"] += 1
        else:
            turn.waited += min(now - turn.looked, LOOK_SECONDS)
        turn.looked = now
        if turn.waited < self._seconds:
            return True
        turn.over, turn.waited = self._step, 0.0
        self._claimed -= len(turn.claimed)
        turn.claimed.clear()
        self._renew(turn)
        self._counts["room_misses"] += not turn.counted
        turn.counted = True
        return False

    def _kept(self, turn):
        """Places that are none for it: of what came for it and for those before."""
        return sum(len(other.claimed) for other in self._turns.values()
                   if other.number <= turn.number)

    def came(self, name, keys):
        """Chunks of a request have come into host memory."""
        turn = self._turns.get(name)
        if turn is not None:
            self._claimed += len(turn.claimed.union(keys)) - len(turn.claimed)
            turn.claimed.update(keys)

    def scheduled(self, names):
        """A step ends; names: the requests that got in with it."""
        self._step += 1
        for name in names:
            turn = self.leave(name)
            if turn is not None:
                self._renew(turn)

    def _renew(self, turn):
        """The patience of those behind one that leaves its places to them."""
        for other in self._turns.values():
            if other.number > turn.number:
                other.waited = 0.0

    def leave(self, name):
        """A request has got in, or ended."""
        turn = self._turns.pop(name, None)
        if turn is not None:
            self._claimed -= len(turn.claimed)
        return turn
