#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The restart bench: after a close everything that fits comes back, and nothing is wrong.

    test_bench_restart.py COMMAND

Times decide nothing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile


def check(condition, what, document):
    if not condition:
        sys.exit(f"test_bench_restart: {what}\n{json.dumps(document, indent=1)}")


def main(command):
    folder = tempfile.mkdtemp(prefix="kvterrace-restart-")
    try:
        result = subprocess.run(
            [command, "restart", "--quick", "--json", "--directory", folder],
            capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"test_bench_restart: exit {result.returncode}: {result.stderr}")
        document = json.loads(result.stdout)
        check(document["schema"] == "kvterrace-bench-restart-1", "another schema", document)
        rows = document["restarts"]
        check([row["ended_by"] for row in rows] == ["close", "kill"] * 2, "other rows", document)
        check(all(row["wrong_bytes"] == 0 for row in rows), "wrong bytes", document)
        check(all(row["checked"] > 0 for row in rows), "nothing was read", document)
        # By entries where all are back: what is written back may be smaller than it was in memory.
        check(rows[0]["entries_back"] == rows[0]["entries_stored"]
              or rows[0]["bytes_back_ratio"] >= 0.99, "a close lost what fits", document)
        check(rows[2]["entries_back"] < rows[2]["entries_stored"],
              "one place per entry brought all back", document)
        check(os.listdir(folder) == [], "files were left behind", document)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
