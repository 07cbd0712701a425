# SPDX-License-Identifier: Apache-2.0
"""LMCache's own bench of second levels, `lmcache bench l2`, unmodified, with this package's plugin
and with levels of LMCache's: `mock`, which copies memory, and `fs_native` with O_DIRECT.

The two levels turn about, in one process and on one core; the heap gives large blocks back, so that
each run gets its memory as in a process of its own. A run in which not every key was stored, loaded
and verified is a failure, no sample.
"""

import contextlib
import importlib.util
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

from . import Layout, codec

SIZES = (256 << 10, 4 << 20)
ROUNDS = {256 << 10: 39, 4 << 20: 9}  # by size
KEYS, WARMUP = 16, 1
WANTED = {("dram", "load"): (0.8, 0.95), ("dram", "store"): (2.0, 2.0),
          ("ssd", "load"): (1.0, 1.0), ("ssd", "store"): (1.0, 1.0)}
HEAP = "MALLOC_MMAP_THRESHOLD_"
QUIET = {"LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


def _levels(tier, size, folder):
    """{name: what LMCache is told of a second level}, with room for all that a run stores."""
    room = 2 * size * KEYS * (ROUNDS[size] + WARMUP) + (64 << 20)
    settings = {}
    if tier == "dram":
        settings["tier.dram.capacity"] = str(room)
        rival = {"type": "mock", "max_size_gb": room / (1 << 30), "mock_bandwidth_gb": 1000}
    else:
        # A put returns when it is written, as a store of fs_native does.
        settings.update({"device.bench.tier": "ssd", "device.bench.backend": "file",
                         "device.bench.path": os.path.join(folder, "kv"),
                         "device.bench.capacity": str(room), "store.put_staging": "0"})
        rival = {"type": "fs_native", "base_path": os.path.join(folder, "fs"), "use_odirect": True}
    return {"kvterrace": {"type": "plugin", "module_path": "kvterrace.lmcache",
                          "class_name": "KvterraceL2Adapter",
                          "adapter_params": {"settings": settings}},
            rival["type"]: rival}


def _run(tier, size, name, folder):
    """{"store", "load": (quickest, median)}: milliseconds of a round in one run of the bench."""
    from lmcache.cli.main import main
    place = tempfile.mkdtemp(prefix="run-", dir=folder)
    output, said, code = os.path.join(place, "result.json"), io.StringIO(), 0
    given = ["lmcache", "bench", "l2", "--l2-adapter", json.dumps(_levels(tier, size, place)[name]),
             "--num-keys", str(KEYS), "--data-size-kb", str(size >> 10), "--rounds",
             str(ROUNDS[size]), "--warmup-rounds", str(WARMUP), "--l1-align-bytes", "4096",
             "--no-skip-verify", "--format", "json", "--output", output]
    before, sys.argv = sys.argv, given
    try:
        with contextlib.redirect_stdout(said):
            code = main() or 0
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv = before
    if code != 0 or "keys data verified OK" not in said.getvalue():
        raise SystemExit(f"bench: a run of {name} fails:\n{said.getvalue()[-2000:]}")
    with open(output, encoding="utf-8") as file:
        parts = [part for part in json.load(file)["metrics"].values() if "operation" in part]
    shutil.rmtree(place, ignore_errors=True)
    found, wanted = {part["operation"].lower(): part for part in parts}, ROUNDS[size] * KEYS
    for operation in ("store", "load"):
        part = found[operation]
        if part["total_success"] != wanted or part["rounds_timed_out"]:
            raise SystemExit(f"bench: {name}: {part['total_success']} of {wanted} keys went "
                             f"through the {operation}")
    return {operation: (found[operation]["duration_min_ms"], found[operation]["duration_p50_ms"])
            for operation in ("store", "load")}


def _verify_ms(size):
    """What the checksums of as many bytes take by themselves, the records touched long ago."""
    layout, rounds = Layout.opaque(size), max(2, (256 << 20) // (size * KEYS))
    records = [codec.encode(os.urandom(size), layout, "raw") for _ in range(KEYS * rounds)]
    taken = []
    for first in range(0, len(records), KEYS):
        begun = time.perf_counter()
        for record in records[first:first + KEYS]:
            codec.inspect(record, verify=True)
        taken.append((time.perf_counter() - begun) * 1e3)
    return min(taken)


def bench_lmcache(repeats, folder=None, core=None):
    """A row for each tier, size and operation."""
    if importlib.util.find_spec("lmcache") is None:
        raise SystemExit("bench: LMCache is not installed here (docs/ENGINES.md)")
    if HEAP not in os.environ:  # read when a process starts
        os.environ.update(QUIET, LMCACHE_LOG_LEVEL="WARNING", **{HEAP: str(128 << 10)})
        os.execv(sys.executable, [sys.executable, "-m", "kvterrace.bench", *sys.argv[1:]])
    core = max(os.sched_getaffinity(0)) if core is None else core
    if core >= 0:
        os.sched_setaffinity(0, {core})
    rows, base = [], tempfile.mkdtemp(prefix="kvt-bench-", dir=folder)
    try:
        for tier in ("dram", "ssd"):
            for index, size in enumerate(SIZES):
                names, taken = list(_levels(tier, size, base)), []
                for number in range(repeats):
                    order = names if number % 2 == 0 else names[::-1]
                    taken.append({name: _run(tier, size, name, base) for name in order})
                    print(f"bench: {tier} {size} {number + 1} of {repeats}: {taken[-1]}",
                          file=sys.stderr, flush=True)
                verify = _verify_ms(size) if tier == "dram" else None
                for operation in ("load", "store"):
                    rows.append(_row(tier, size, operation, names, taken,
                                     WANTED[tier, operation][index], verify))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return rows


def _row(tier, size, operation, names, taken, wanted, verify):
    # Other work takes the core for milliseconds, which a round of a quarter of one does not show
    # but by its own: the quickest round of a run stands for it, the median stands beside.
    ours, theirs = ([one[name][operation][0] for one in taken] for name in names)
    ratios = [rival / own for own, rival in zip(ours, theirs)]
    medians = [one[names[1]][operation][1] / one[names[0]][operation][1] for one in taken]
    row = {"tier": tier, "bytes": size, "operation": operation, "rival": names[1],
           "kvterrace_ms": statistics.median(ours), "rival_ms": statistics.median(theirs),
           "ratio": statistics.median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios),
           "ratio_of_medians": statistics.median(medians), "medians_low": min(medians),
           "medians_high": max(medians), "wanted": wanted, "repeats": len(taken), "keys": KEYS}
    if operation == "load" and verify is not None:
        row["checksum_ms"] = verify
        row["checksum_share"] = verify / row["kvterrace_ms"]
    return row


def print_lmcache(rows):
    print(f"{'tier':<5}{'bytes':>9} {'':<6}{'kvterrace':>10}  {'rival':>18} {'ratio':>6} "
          f"{'range':>13} {'wanted':>7}")
    for row in rows:
        print(f"{row['tier']:<5}{row['bytes']:>9} {row['operation']:<6}"
              f"{row['kvterrace_ms']:>7.2f} ms  {row['rival']:>9} {row['rival_ms']:>5.2f} ms "
              f"{row['ratio']:>6.2f} {row['ratio_low']:>6.2f}..{row['ratio_high']:<5.2f} "
              f"{row['wanted']:>7.2f}"
              + (f"  checksums {row['checksum_share']:.2f}" if "checksum_share" in row else ""))
