#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The store bench: every row is there, every get gave its entry's bytes, no call failed.

    test_bench_store.py COMMAND

Times decide nothing.
"""

import json
import subprocess
import sys

SIZES = (32 << 10, 256 << 10, 4 << 20, 32 << 20)


def check(condition, what, document):
    if not condition:
        sys.exit(f"test_bench_store: {what}\n{json.dumps(document, indent=1)}")


def main(command):
    result = subprocess.run(
        [command, "store", "--quick", "--json", "--size", "2000"],
        capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"test_bench_store: exit {result.returncode}: {result.stderr}")
    document = json.loads(result.stdout)
    check(document["schema"] == "kvterrace-bench-store-1", "another schema", document)
    check(document["wrong"] == 0, "wrong bytes, or calls that failed", document)
    rows = document["rows"]
    found = {(row["case"], row["bytes"], row["threads"]) for row in rows}
    for size in SIZES:
        for case in ("memcpy", "get", "put", "queue"):
            check((case, size, 1) in found, f"no row of {case} at {size} bytes", document)
    check(("get", SIZES[0], 2) in found, "no row of two threads", document)
    for case in ("queue", "prefix"):
        check(any(row["case"] == case and row["batch"] == 64 and row["memcpy_ratio"] > 0
                  for row in rows), f"no batches of {case}", document)
    check(all(row["one_thread_ratio"] > 0 for row in rows if row["threads"] == 2),
          "two threads without their ratio to one", document)
    check(any(row["case"] == "exists" for row in rows), "no lookup", document)
    for case in ("load_begin_end", "load_layers"):
        check(any(row["case"] == case and row["batch"] == 512 for row in rows),
              f"no prefix of {case}", document)
    for row in rows:
        check(row["calls"] > 0 and 0 < row["ns_p50"] <= row["ns_p99"], "a row without calls",
              document)
        check((row["case"], row["threads"]) != ("get", 1) or "parts" in row,
              "a get without its parts", document)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
