# SPDX-License-Identifier: Apache-2.0
"""What the package costs, beside the same loop in C.

    python -m kvterrace.bench store [--json] [--repeats 5]
    python -m kvterrace.bench policy [--json] [--trace FILE] [--blocks 2000,20000]
    python -m kvterrace.bench lmcache [--json] [--repeats 5] [--folder DIR] [--core N]
    python -m kvterrace.bench vllm [--json] [--repeats 5] [--folder DIR] [--model DIR]
    python -m kvterrace.bench returning [--json] [--repeats 5] [--folder DIR] [--model DIR]

`store`: gets of raw entries in DRAM into buffers of the caller's, through Python and in one loop of
C in the same process, turn about. A repeat in which a get was not served or an entry's bytes are
wrong is a failure, no sample.

`policy`: token hits of caches of equal blocks on a trace of requests, decided by kvterrace and by
LRU and ARC: those of vLLM and LMCache where they are installed, beside plain ones.

`lmcache`: LMCache's own bench of second levels, with this package's plugin and with levels of
LMCache's: mock in DRAM, fs_native with O_DIRECT in the same folder. It needs LMCache.

`vllm`: seconds from a request to its first token when its prefix lies on the disk, with this
package's tier and with vLLM's own tier of files in the same folder, each in fresh processes: after
a restart, once more in the same process, and with a store that has room for half. It needs vLLM for
the processor.

`returning`: the same for 16 users who come back to an engine whose host memory has room for a
third of their prompts.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time

from . import (Layout, Space, Store, _bench_lmcache, _bench_policy, _bench_returning,
               _bench_vllm)
from ._kvt import ffi, lib

SLICE_BYTES = 2 << 20  # of one slice of a repeat, or one entry
SLICES = 48  # of one repeat, each way

CASES = [  # bytes of an entry, entries, keys of one call
    (1 << 20, 32, 1),
    (32 << 20, 4, 1),
    (32 << 10, 256, 64),
]


def _pattern(size, seed):
    unit = bytes((seed * 31 + 7 * index + (index >> 5)) & 0xff for index in range(4099))
    return (unit * (size // len(unit) + 1))[:size]


class _Case:
    """Entries of one size in a store, their keys, and a buffer for each."""

    def __init__(self, store, size, count, batch):
        space = Space(model="bench", block_tokens=size)
        self.store, self.bytes, self.batch = store, size, batch
        self.keys = [space.key(str(index)) for index in range(count)]
        self.targets = [bytearray(size) for _ in range(count)]
        self.sources = [_pattern(size, index) for index in range(count)]
        for key, source in zip(self.keys, self.sources):
            if not store.put(key, source, Layout.opaque(size), recompute_seconds=1.0):
                raise SystemExit(f"bench: an entry of {size} bytes was not stored")
            store.flush()
        self.joined = b"".join(self.keys)
        self.memory = [ffi.from_buffer(target) for target in self.targets]
        self.addresses = ffi.new("void *[]", self.memory)
        self.sizes = ffi.new("uint64_t[]", [size] * count)

    def by_python(self, first, count):
        """Gets of `count` entries from `first` on; how many were served."""
        if self.batch > 1:
            return sum(self.store.get_many(self.keys[first:first + count],
                                           self.targets[first:first + count]))
        get_into, served = self.store.get_into, 0
        for index in range(first, first + count):
            served += get_into(self.keys[index], self.targets[index])
        return served

    def by_c(self, first, count):
        return lib.kvtpy_bench_gets(self.store._handle, self.joined[32 * first:],
                                    self.addresses + first, self.sizes + first, count, 1)

    def repeat(self, slices):
        """Bytes per second through Python and in C. Both get each slice of the entries, turn about;
        the median slice counts, so that a moment in which others have the processor does not."""
        count = max(self.batch, min(len(self.keys), SLICE_BYTES // self.bytes), 1)
        seconds = {self.by_python: [], self.by_c: []}
        for number in range(slices):
            first = number * count % len(self.keys)
            for run in ((self.by_python, self.by_c), (self.by_c, self.by_python))[number % 2]:
                for index in range(first, first + count):
                    self.targets[index][:16] = bytes(16)
                begun = time.perf_counter()
                served = run(first, count)
                seconds[run].append(time.perf_counter() - begun)
                if served != count:
                    raise SystemExit(f"bench: {count - served} gets were not served")
        if any(target != source for target, source in zip(self.targets, self.sources)):
            raise SystemExit("bench: an entry has other bytes than were put")
        return [count * self.bytes / statistics.median(seconds[run])
                for run in (self.by_python, self.by_c)]


def _counting(stop, counted):
    """A thread of Python that counts while others get: (counts, seconds that it had a core)."""
    number, begun = 0, time.thread_time()
    while not stop.is_set():
        for _ in range(1000):
            number += 1
    counted.append((number, time.thread_time() - begun))


def _beside(run, seconds=0.5):
    """(counts a second, share of the time that it had a core) of a counting thread beside `run`."""
    stop, counted = threading.Event(), []
    thread = threading.Thread(target=_counting, args=(stop, counted))
    begun = time.perf_counter()
    thread.start()
    while time.perf_counter() - begun < seconds:
        run()
    stop.set()
    thread.join()
    elapsed = time.perf_counter() - begun
    return counted[0][0] / elapsed, counted[0][1] / elapsed


def _counting_rows(case, repeats):
    """What a counting thread keeps of its speed beside gets, and beside controls that tell why it
    loses some: a core that is busy in its own cache, plain copies of as much cold memory, the same
    gets in C. The interpreter's lock is free in all of them but between two calls of Python, so
    `counts_per_core_s`, counts for each second that the thread had a core, is what the processor
    takes, and `core` what others took, the lock among them."""
    count = len(case.keys)
    source = ffi.from_buffer(b"".join(case.sources))
    small, rounds = ffi.new("char[]", 8192), (4 << 20) // 4096
    same = ffi.new("void *[]", [small] * rounds)

    def copy():
        lib.kvtpy_bench_copies(case.addresses, source, case.bytes, case.bytes, count)

    def spin():
        lib.kvtpy_bench_copies(same, small + 4096, 0, 4096, rounds)

    runs = {"alone": lambda: time.sleep(0.01), "busy": spin, "memcpy": copy,
            "c": lambda: case.by_c(0, count), "python": lambda: case.by_python(0, count)}
    taken = {name: [] for name in runs}
    for number in range(repeats + 1):
        for name in list(runs)[::1 if number % 2 else -1]:
            taken[name].append(_beside(runs[name]))
    alone = taken["alone"]
    rows = []
    for name, found in taken.items():
        kept = [one[0] / other[0] for one, other in zip(found, alone)][1:]
        rows.append({"beside": name, "kept": statistics.median(kept), "kept_low": min(kept),
                     "kept_high": max(kept),
                     "core": statistics.median(one[1] for one in found[1:]),
                     "counts_per_core_s": statistics.median(one[0] / one[1] for one in found[1:])})
    return rows


def bench_store(repeats):
    rows = []
    for size, count, batch in CASES:
        with Store(tier_dram_capacity=size * count * 4 + (64 << 20), policy="lru",
                   variant="raw") as store:
            case = _Case(store, size, count, batch)
            pairs = [case.repeat(SLICES) for _ in range(repeats + 1)][1:]  # the first warms up
            ratios = [python / c for python, c in pairs]
            row = {"bytes": size, "batch": batch,
                   "python_bytes_per_s": statistics.median(python for python, _ in pairs),
                   "c_bytes_per_s": statistics.median(c for _, c in pairs),
                   "ratio": statistics.median(ratios), "ratio_low": min(ratios),
                   "ratio_high": max(ratios), "repeats": repeats}
            if batch == 1 and size == CASES[0][0]:
                row["counting"] = _counting_rows(case, repeats)
                row["counting_share"] = row["counting"][-1]["kept"]
            rows.append(row)
    return rows


def print_store(rows):
    print(f"{'bytes':>10} {'batch':>5} {'python GB/s':>12} {'C GB/s':>8} {'ratio':>6}  range")
    for row in rows:
        print(f"{row['bytes']:>10} {row['batch']:>5} {row['python_bytes_per_s'] / 1e9:>12.2f} "
              f"{row['c_bytes_per_s'] / 1e9:>8.2f} {row['ratio']:>6.3f}  "
              f"{row['ratio_low']:.3f}..{row['ratio_high']:.3f}")
    for row in (one for row in rows for one in row.get("counting", ())):
        print(f"a counting thread beside {row['beside']:<7} keeps {row['kept']:.3f} of its speed "
              f"({row['kept_low']:.3f}..{row['kept_high']:.3f}), has a core {row['core']:.3f} of "
              f"the time, {row['counts_per_core_s'] / 1e6:.1f} M counts for each second of it")


def print_policy(rows):
    print(f"{'blocks':>7} {'policy':<15} {'token hits':>10} {'block hits':>10}  source")
    for row in rows:
        print(f"{row['blocks']:>7} {row['policy']:<15} {row['token_hits']:>10.4f} "
              f"{row['block_hits']:>10.4f}  {row['source']}")


def run_policy(options):
    trace = options.trace
    if trace is None and "KVT_DATA_DIR" in os.environ:
        trace = os.path.join(os.environ["KVT_DATA_DIR"], "traces", _bench_policy.TRACE)
    if trace is None:
        raise SystemExit("bench: name a trace by --trace, or the folder of data by KVT_DATA_DIR")
    try:
        capacities = [int(one) for one in options.blocks.split(",")]
    except ValueError:
        raise SystemExit(f"bench: --blocks are numbers, not {options.blocks!r}") from None
    if min(capacities) < 1:
        raise SystemExit("bench: a cache has at least 1 block")
    rows, lacking = _bench_policy.bench_policy(trace, capacities)
    for line in lacking:
        print(f"bench: {line}: its policies are not compared", file=sys.stderr)
    return rows


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m kvterrace.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", choices=["store", "policy", "lmcache", "vllm", "returning"])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs; 5")
    parser.add_argument("--folder", help="lmcache, vllm, returning: a folder on the disk that "
                        "is compared")
    parser.add_argument("--model", help="vllm, returning: a folder with a model; without it random "
                        "weights with 32 KiB of KV a token")
    parser.add_argument("--core", type=int, help="lmcache: the core of all runs; -1: any")
    parser.add_argument("--trace", help="policy: requests with timestamp, input_length, hash_ids; "
                        f"{_bench_policy.TRACE} of KVT_DATA_DIR")
    parser.add_argument("--blocks", default=",".join(map(str, _bench_policy.CAPACITIES)),
                        help="policy: capacities in blocks")
    options = parser.parse_args(arguments)
    repeats = max(options.repeats, 1)
    rows = {
        "policy": lambda: run_policy(options), "store": lambda: bench_store(repeats),
        "lmcache": lambda: _bench_lmcache.bench_lmcache(repeats, options.folder, options.core),
        "vllm": lambda: _bench_vllm.bench_vllm(repeats, options.folder, options.model),
        "returning": lambda: _bench_returning.bench_returning(repeats, options.folder,
                                                              options.model),
    }[options.bench]()
    if options.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return
    {"policy": print_policy, "store": print_store, "lmcache": _bench_lmcache.print_lmcache,
     "vllm": _bench_vllm.print_vllm,
     "returning": _bench_returning.print_returning}[options.bench](rows)


if __name__ == "__main__":
    main()
