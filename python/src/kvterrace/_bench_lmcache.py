# SPDX-License-Identifier: Apache-2.0
"""LMCache's own bench of second levels, `lmcache bench l2`, unmodified, with this package's plugin
and with levels of LMCache's: `mock`, which copies memory, and `fs_native` with O_DIRECT.

Each figure is of a process of its own, the two levels turn about, on one core. A run in which not
every key was stored, loaded and verified is a failure, no sample.
"""

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from . import Layout, codec

SIZES = (256 << 10, 4 << 20)
KEYS, ROUNDS, WARMUP = 16, 9, 1
WANTED = {("dram", "load"): (0.8, 0.95), ("dram", "store"): (2.0, 2.0),
          ("ssd", "load"): (1.0, 1.0), ("ssd", "store"): (1.0, 1.0)}
TIMEOUT = 600
QUIET = {"LMCACHE_TRACK_USAGE": "false", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


def _levels(tier, size, folder):
    """{name: what LMCache is told of a second level}, with room for all that a run stores."""
    room = 2 * size * KEYS * (ROUNDS + WARMUP) + (64 << 20)
    settings = {"store.lossless": "no"}
    if tier == "dram":
        settings["tier.dram.capacity"] = str(room)
        rival = {"type": "mock", "max_size_gb": room / (1 << 30), "mock_bandwidth_gb": 1000}
    else:
        # A put returns when it is written, as a store of fs_native does.
        settings.update({"device.bench.tier": "ssd", "device.bench.backend": "file",
                         "device.bench.path": os.path.join(folder, "kv"),
                         "device.bench.capacity": str(room), "device.bench.prewrite": "no",
                         "store.put_staging": "0"})
        rival = {"type": "fs_native", "base_path": os.path.join(folder, "fs"), "use_odirect": True}
    return {"kvterrace": {"type": "plugin", "module_path": "kvterrace.lmcache",
                          "class_name": "KvterraceL2Adapter",
                          "adapter_params": {"settings": settings}},
            rival["type"]: rival}


def _run(tier, size, name, folder, core):
    """{"store": ms, "load": ms}: the median round of one run of LMCache's bench."""
    place = tempfile.mkdtemp(prefix="run-", dir=folder)
    output = os.path.join(place, "result.json")
    environment = dict(os.environ, **QUIET)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment["PYTHONPATH"] = os.pathsep.join(
        path for path in (ours, environment.get("PYTHONPATH")) if path)
    command = [sys.executable, "-c", "import sys; from lmcache.cli.main import main; "
               "sys.exit(main())", "bench", "l2", "--l2-adapter",
               json.dumps(_levels(tier, size, place)[name]), "--num-keys", str(KEYS),
               "--data-size-kb", str(size >> 10), "--rounds", str(ROUNDS), "--warmup-rounds",
               str(WARMUP), "--l1-align-bytes", "4096", "--no-skip-verify", "--format", "json",
               "--output", output]
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT, check=False,
                              preexec_fn=lambda: core < 0 or os.sched_setaffinity(0, {core}))
        if done.returncode != 0 or "keys data verified OK" not in done.stdout:
            raise SystemExit(f"bench: a run of {name} fails:\n{done.stdout[-2000:]}")
        with open(output, encoding="utf-8") as file:
            parts = [part for part in json.load(file)["metrics"].values() if "operation" in part]
    except subprocess.TimeoutExpired:
        raise SystemExit(f"bench: a run of {name} does not end") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    found = {part["operation"].lower(): part for part in parts}
    for operation in ("store", "load"):
        part = found[operation]
        if part["total_success"] != ROUNDS * KEYS or part["rounds_timed_out"]:
            raise SystemExit(f"bench: {name}: {part['total_success']} of {ROUNDS * KEYS} keys "
                             f"went through the {operation}")
    return {operation: found[operation]["duration_p50_ms"] for operation in ("store", "load")}


def _verify_ms(size, core):
    """What the checksums of as many bytes take by themselves, the records touched long ago."""
    before = os.sched_getaffinity(0)
    if core >= 0:
        os.sched_setaffinity(0, {core})
    try:
        layout, rounds = Layout.opaque(size), max(2, (256 << 20) // (size * KEYS))
        records = [codec.encode(os.urandom(size), layout, "raw") for _ in range(KEYS * rounds)]
        taken = []
        for first in range(0, len(records), KEYS):
            begun = time.perf_counter()
            for record in records[first:first + KEYS]:
                codec.inspect(record, verify=True)
            taken.append((time.perf_counter() - begun) * 1e3)
        return statistics.median(taken)
    finally:
        os.sched_setaffinity(0, before)


def bench_lmcache(repeats, folder=None, core=None):
    """A row for each tier, size and operation."""
    if importlib.util.find_spec("lmcache") is None:
        raise SystemExit("bench: LMCache is not installed here (docs/ENGINES.md)")
    core = max(os.sched_getaffinity(0)) if core is None else core
    rows, base = [], tempfile.mkdtemp(prefix="kvt-bench-", dir=folder)
    try:
        for tier in ("dram", "ssd"):
            for index, size in enumerate(SIZES):
                names, taken = list(_levels(tier, size, base)), []
                for number in range(repeats):
                    order = names if number % 2 == 0 else names[::-1]
                    taken.append({name: _run(tier, size, name, base, core) for name in order})
                    print(f"bench: {tier} {size} {number + 1} of {repeats}: {taken[-1]}",
                          file=sys.stderr, flush=True)
                verify = _verify_ms(size, core) if tier == "dram" else None
                for operation in ("load", "store"):
                    rows.append(_row(tier, size, operation, names, taken,
                                     WANTED[tier, operation][index], verify))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return rows


def _row(tier, size, operation, names, taken, wanted, verify):
    ours, theirs = ([one[name][operation] for one in taken] for name in names)
    ratios = [rival / own for own, rival in zip(ours, theirs)]
    row = {"tier": tier, "bytes": size, "operation": operation, "rival": names[1],
           "kvterrace_ms": statistics.median(ours), "rival_ms": statistics.median(theirs),
           "ratio": statistics.median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios),
           "wanted": wanted, "repeats": len(taken), "keys": KEYS}
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
