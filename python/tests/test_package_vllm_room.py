#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns at the places of vLLM's host memory, against a model of that memory: no engine."""

import collections
import unittest
from unittest import mock

import package_case  # noqa: F401  (the package's path)
from kvterrace import _vllm_room as room


class Host:
    """vLLM's host memory: places with chunks, the oldest goes first; chunks that are read on are
    pinned. A promotion takes a step. vLLM runs `slots` requests at a time, each for `length` steps,
    and takes the others in their order."""

    def __init__(self, places, seconds, chunks, slots=2, length=3):
        self.counts = {"room_waits": 0, "room_misses": 0}
        self.turns = room.Turns(seconds, self.counts)
        self.places, self.slots, self.length = places, slots, length
        self.held = collections.OrderedDict()  # chunk: None or the request that it comes for
        self.coming, self.running = {}, {}
        self.waiting = collections.OrderedDict((f"r{number}", count)
                                               for number, count in enumerate(chunks))
        self.promoted, self.computed, self.order, self.now = 0, [], [], 0.0

    def keys(self, name):
        return [(name, index) for index in range(self.waiting[name])]

    def free(self):
        return self.places - len(self.held)

    def look(self, name):
        """What vLLM's manager does for a request: whether it hits, misses or asks again."""
        again = False
        for key in self.keys(name):
            if key in self.held:
                again = again or key in self.coming
                continue
            evictable = [held for held in self.held if held not in self.coming]
            if self.turns.waits(name, key, self.free() + len(evictable)):
                again = True
            elif self.free() == 0 and not evictable:
                return "miss"
            else:
                if self.free() == 0:
                    del self.held[evictable[0]]
                self.held[key] = self.coming[key] = name
                self.promoted, again = self.promoted + 1, True
        return "again" if again else "hit"

    def step(self, seconds=0.01):
        coming, self.coming = self.coming, {}
        for key, name in coming.items():
            self.turns.came(name, [key])
        for name in [name for name, left in self.running.items() if left == 0]:
            del self.running[name]
            self.turns.leave(name)
        self.running = {name: left - 1 for name, left in self.running.items()}
        new = []
        for name in list(self.waiting):
            with mock.patch.object(room.time, "monotonic", return_value=self.now):
                said = self.look(name)
            if said != "again" and len(self.running) < self.slots:
                self.running[name] = self.length
                self.order.append(name)
                if said == "miss":
                    self.computed.append(name)
                new.append(name)
                del self.waiting[name]
        self.turns.scheduled(new)
        self.now += seconds

    def run(self, most=2000):
        for number in range(most):
            if not self.waiting and not self.running:
                return number
            self.step()
        raise AssertionError(f"{list(self.waiting)} wait after {most} steps")


class TurnsCase(unittest.TestCase):
    def test_all_get_in_and_nothing_is_promoted_twice(self):
        for places, chunks, slots in ((21, [4] * 16, 2), (5, [4] * 6, 1), (8, [8, 1, 8, 1], 2),
                                      (9, [3, 5, 2, 9, 1, 4], 3), (16, [16] * 4, 4)):
            with self.subTest(places=places, chunks=chunks):
                host = Host(places, 1.0, chunks, slots)
                host.run()
                self.assertEqual(host.computed, [])
                self.assertEqual(host.promoted, sum(chunks))
                self.assertEqual((host.turns._turns, host.turns._claimed), ({}, 0))

    def test_without_an_order_they_evict_each_other(self):
        """The model shows the fault: claims that count for nobody."""
        with mock.patch.object(room.Turns, "came", lambda *_: None):
            host = Host(21, 1.0, [4] * 16)
            host.run()
        self.assertGreater(host.promoted, 2 * 16 * 4)

    def test_one_that_needs_more_than_there_is_computes_and_the_rest_get_in(self):
        host = Host(8, 0.5, [4, 20, 4])
        host.run()
        self.assertEqual(host.computed, ["r1"])
        self.assertEqual(host.counts["room_misses"], 1)

    def test_patience_counts_from_the_last_that_got_in_before(self):
        """16 requests behind one another wait longer than their patience, and none computes; if
        nobody gets in it ends."""
        host = Host(4, 0.1, [4] * 16, slots=1, length=5)
        self.assertGreater(host.run() * 0.01, 0.5)
        self.assertEqual(host.computed, [])
        turns = room.Turns(0.25, {"room_waits": 0, "room_misses": 0})
        with mock.patch.object(room.time, "monotonic") as clock:
            said = []
            for number in range(6):
                clock.return_value = number * 0.09
                said.append(turns.waits("r", "key", 0))
                turns.scheduled(["another"])
        self.assertEqual(said, [True, True, True, False, True, True])
        self.assertEqual(turns._counts, {"room_waits": 1, "room_misses": 1})

    def test_a_long_step_is_one_look(self):
        turns = room.Turns(1.0, {"room_waits": 0, "room_misses": 0})
        with mock.patch.object(room.time, "monotonic") as clock:
            for number in range(9):
                clock.return_value = number * 30.0
                self.assertTrue(turns.waits("r", "key", 0))
                turns.scheduled([])
            clock.return_value = -5.0  # a clock that goes back takes nothing away for good
            self.assertTrue(turns.waits("r", "key", 0))

    def test_a_request_that_ends_gives_its_claims_back(self):
        turns = room.Turns(1.0, {"room_waits": 0, "room_misses": 0})
        self.assertFalse(turns.waits("first", 1, 2))
        self.assertFalse(turns.waits("first", 2, 1))
        turns.came("first", [1, 2])
        turns.came("first", [2])
        turns.came("nobody", [3])
        self.assertTrue(turns.waits("second", 4, 2))
        self.assertFalse(turns.waits("second", 4, 3))
        turns.leave("first")
        turns.leave("first")
        self.assertFalse(turns.waits("second", 4, 1))
        self.assertEqual(turns._claimed, 0)


if __name__ == "__main__":
    unittest.main()
