#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A context that one client of a server stores and another one loads, beside computing it again.

    kvterrace replay --mode live --model models/smollm2 --text a=TEXT --policy lru --cache DIR ...
    lab/peer_hit.py --build build --cache DIR

The exact KV and the seconds of the prefill are those that the live run has left in DIR. Prints one
JSON document; ratio is the median load's part of the prefill.
"""
import argparse
import contextlib
import glob
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

LAYERS, HEADS, DIM = 30, 3, 64  # SmolLM2-135M
TOKEN_BYTES = LAYERS * 2 * HEADS * DIM * 2


def blocks_of(kv, count):
    """The context's entries: of each layer and side the same share of its tokens."""
    matrix = len(kv) // (2 * LAYERS)
    part = matrix // count
    return [b"".join(kv[m * matrix + i * part:m * matrix + (i + 1) * part]
                     for m in range(2 * LAYERS)) for i in range(count)]


def keys_of(count):
    return [hashlib.sha256(b"peer %d" % i).digest() for i in range(count)]


def put(kvterrace, path, kv, count):
    """Runs in a process of its own, which has gone when the other one loads."""
    tokens = len(kv) // TOKEN_BYTES // count
    layout = kvterrace.Layout(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype="fp16",
                              tokens=tokens)
    with kvterrace.Store(connect=path) as store:
        for key, block in zip(keys_of(count), blocks_of(kv, count)):
            while not store.put(key, block, layout, recompute_seconds=1.0):
                store.flush()
        store.flush()


def load(kvterrace, path, kv, count, repeats):
    """Seconds of each load of the whole context, and whether the bytes are the same."""
    size = len(kv) // count
    seconds = []
    with kvterrace.Store(connect=path) as store:
        region = store.region(len(kv))
        tokens = size // TOKEN_BYTES
        layout = kvterrace.Layout(layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype="fp16",
                                  tokens=tokens)
        views = [kvterrace.View.packed(layout, region[i * size:(i + 1) * size])
                 for i in range(count)]
        for _ in range(repeats):
            region[:] = bytes(len(kv))
            begin = time.monotonic()
            if store.get_prefix(keys_of(count), views) != count:
                sys.exit("peer_hit.py: a miss")
            seconds.append(time.monotonic() - begin)
        same = bytes(region) == b"".join(blocks_of(kv, count))
    return seconds, same


@contextlib.contextmanager
def server(build, folder, kv_bytes):
    path = os.path.join(folder, "s")
    config = os.path.join(folder, "serve.ini")
    with open(config, "w", encoding="ascii") as file:
        file.write(f"[serve]\nsocket = {path}\n[tier.dram]\ncapacity = {2 * kv_bytes >> 20}MiB\n")
    process = subprocess.Popen([os.path.join(build, "kvterrace"), "serve", "--config", config],
                               stdout=subprocess.PIPE, text=True)
    try:
        if not process.stdout.readline().startswith("ready:"):
            sys.exit("peer_hit.py: the server has ended")
        yield path
    finally:
        process.terminate()
        process.communicate()


def prefill_of(cache):
    """The KV and the seconds of the one context that a live run has left."""
    files = glob.glob(os.path.join(cache, "*.kv"))
    if len(files) != 1:
        sys.exit(f"peer_hit.py: {cache} has {len(files)} contexts, not one")
    with open(os.path.join(cache, "answers.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    seconds = [line["prefill_seconds"] for line in lines if "prefill_seconds" in line]
    with open(files[0], "rb") as file:
        return file.read(), seconds[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--cache", required=True, help="of a live run")
    parser.add_argument("--block", type=int, default=256, help="tokens of an entry")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--put", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, os.path.join(options.build, "python"))
    import kvterrace  # pylint: disable=import-outside-toplevel
    kv, prefill = prefill_of(options.cache)
    count = len(kv) // TOKEN_BYTES // options.block
    if count == 0 or len(kv) != count * options.block * TOKEN_BYTES:
        sys.exit("peer_hit.py: the context is no whole number of blocks of SmolLM2")
    if options.put:
        return put(kvterrace, options.put, kv, count)
    with tempfile.TemporaryDirectory() as folder, server(options.build, folder, len(kv)) as path:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--put", path], check=True)
        seconds, same = load(kvterrace, path, kv, count, options.repeats)
    median = statistics.median(seconds)
    print(json.dumps({"tokens": count * options.block, "bytes": len(kv), "same": same,
                      "load_seconds": median, "load_seconds_most": max(seconds),
                      "prefill_seconds": prefill, "ratio": median / prefill}, indent=1))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
