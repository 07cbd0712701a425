#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Threads and tasks on one store for a while: right bytes, and nothing that grows.

    soak.py [--seconds 300] [--threads 16] [--tasks 10000] [--seed 1]

Threads make blocking calls of all kinds, and a loop of asyncio runs tasks beside them, of which
some are cancelled. Every entry's bytes follow from its key, so that each answer can be checked. At
the end of each round, in which every task has ended, descriptors, threads and resident memory are
noted: the last third of the rounds may have no more of them than the second third had. Exit status
1 says what was wrong.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import threading
import time

from package_case import kvterrace

ENTRIES = 400
LAYOUT = kvterrace.Layout(layers=2, kv_heads=2, head_dim=32, dtype="bf16", tokens=64)
ROOM_BYTES = 8 << 20  # that a process may grow by beside the noise of its heap


def content(index):
    unit = bytes((index * 31 + 7 * place + (place >> 5)) & 0xff for place in range(1021))
    return (unit * (LAYOUT.bytes // len(unit) + 1))[:LAYOUT.bytes]


class Soak:
    def __init__(self, store, seed):
        self.store, self.seed = store, seed
        space = kvterrace.Space(model="soak", dtype="bf16", block_tokens=64)
        self.keys = [space.key(str(index)) for index in range(ENTRIES)]
        self.contents = [content(index) for index in range(ENTRIES)]
        self.faults, self.calls, self.served, self.cancelled = [], 0, 0, 0
        self.ending = threading.Event()

    def fault(self, text):
        self.faults.append(text)
        self.ending.set()

    def check(self, index, data, how):
        self.served += 1
        if data != self.contents[index]:
            self.fault(f"entry {index} came back with other bytes by {how}")

    # ---- threads ----

    def call(self, draw, target, view, area):
        store, index = self.store, draw.randrange(ENTRIES)
        key, what = self.keys[index], draw.randrange(12)
        if what < 3:
            store.put(key, self.contents[index], LAYOUT, recompute_seconds=draw.random())
        elif what < 5:
            if store.get_into(key, target):
                self.check(index, target, "get_into")
        elif what == 5:
            data = store.get(key, deadline=draw.choice([None, 0.001]))
            if data is not None:
                self.check(index, data, "get")
        elif what == 6:
            if store.get_into(key, view):
                self.check(index, area, "a view")
        elif what == 7:
            store.delete(key)
        elif what == 8:
            store.match(self.keys[index:index + 8])
            store.describe(key)
            store.predict_loads(self.keys[index:index + 4])
        elif what == 9:
            lease = store.lease(self.keys[index:index + 4], 0.05)
            if lease is not None and draw.random() < 0.8:
                lease.end()
        elif what == 10:
            store.prefetch(key)
            store.touch([key])
            store.hint([key], "retain", 5.0)
        else:
            store.stats()
            if draw.random() < 0.05:
                store.metrics()

    def work(self, number):
        draw, target = random.Random(self.seed * 1000 + number), bytearray(LAYOUT.bytes)
        area = bytearray(LAYOUT.bytes)
        try:
            with kvterrace.View.packed(LAYOUT, area) as view:
                while not self.ending.is_set():
                    try:
                        self.call(draw, target, view, area)
                    except kvterrace.BusyError:
                        pass
                    self.calls += 1
        except Exception as error:  # all that a thread may meet is a fault here
            self.fault(f"a thread ended: {error!r}")

    # ---- tasks ----

    async def task(self, draw):
        index = draw.randrange(ENTRIES)
        key, what = self.keys[index], draw.randrange(6)
        if what < 2:
            await self.store.aput(key, self.contents[index], LAYOUT, recompute_seconds=1.0)
        elif what < 4:
            target = bytearray(LAYOUT.bytes)
            if await self.store.aget_into(key, target, deadline=draw.choice([None, 0.01])):
                self.check(index, target, "aget_into")
            target.append(0)  # it is not exported any more
        elif what == 4:
            data = await self.store.aget(key)
            if data is not None:
                self.check(index, data, "aget")
        else:
            await self.store.aexists(key)
            await self.store.atouch(key)

    async def round(self, tasks, number):
        draw = random.Random(f"{self.seed} {number}")
        made = [asyncio.ensure_future(self.task(random.Random(draw.random())))
                for _ in range(tasks)]
        await asyncio.sleep(0)
        for one in made[::7]:
            one.cancel()
        for result in await asyncio.gather(*made, return_exceptions=True):
            if isinstance(result, asyncio.CancelledError):
                self.cancelled += 1
            elif isinstance(result, Exception) and not isinstance(result, kvterrace.BusyError):
                self.fault(f"a task ended: {result!r}")

    async def rounds(self, tasks, seconds):
        notes, begun, number = [], time.monotonic(), 0
        while not self.ending.is_set() and (number < 3 or time.monotonic() - begun < seconds):
            await self.round(tasks, number)
            number += 1
            notes.append(note())
        return notes


def note():
    """(descriptors, threads, resident bytes) of this process now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")),
            pages * os.sysconf("SC_PAGE_SIZE"))


def growth(notes):
    """What has grown from the second third of the notes to the last one."""
    third = max(len(notes) // 3, 1)
    before, after = notes[-2 * third:-third] or notes, notes[-third:]
    found = []
    for place, name in enumerate(("descriptors", "threads")):
        most = max(one[place] for one in before)
        if max(one[place] for one in after) > most:
            found.append(f"{name} grow from {most} to {max(one[place] for one in after)}")
    middle = [statistics.median(one[2] for one in part) for part in (before, after)]
    if middle[1] > middle[0] + ROOM_BYTES and "KVT_SOAK_ANY_MEMORY" not in os.environ:
        found.append(f"memory grows from {middle[0]:.0f} to {middle[1]:.0f} bytes")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="at least three rounds run")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvt-soak-") as folder:
        settings = {"device.d.path": os.path.join(folder, "disk"), "device.d.tier": "ssd",
                    "device.d.backend": "file", "device.d.capacity": "64MiB"}
        outside = len(os.listdir("/proc/self/fd"))
        with kvterrace.Store(tier_dram_capacity="8MiB", policy="lru", settings=settings) as store:
            soak = Soak(store, options.seed)
            threads = [threading.Thread(target=soak.work, args=(number,))
                       for number in range(options.threads)]
            for thread in threads:
                thread.start()
            try:
                notes = asyncio.run(soak.rounds(options.tasks, options.seconds))
            finally:
                soak.ending.set()
                for thread in threads:
                    thread.join()
            stats = store.stats()
        faults = soak.faults + growth(notes or [note()])
        if len(os.listdir("/proc/self/fd")) > outside:
            faults.append("descriptors are left after the close")
    notes = notes or [note()]
    first, last = notes[0], notes[-1]
    print(f"soak: {soak.calls} calls of {options.threads} threads, {len(notes)} rounds of "
          f"{options.tasks} tasks, {soak.served} entries compared, {soak.cancelled} tasks "
          f"cancelled; {stats['gets']} gets; descriptors {first[0]} to {last[0]}, threads "
          f"{first[1]} to {last[1]}, memory {first[2] >> 20} to {last[2] >> 20} MiB")
    for text in faults:
        print(f"soak: {text}")
    if soak.served == 0 or not soak.cancelled:
        faults.append("nothing was served or cancelled")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
