#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The drift bench on emulated drives: nothing wrong, nothing lost, moves within their budget.

    test_bench_drift.py COMMAND DRIVES-SCRIPT BUILD-FOLDER

Skips (77) where the drives cannot be: without root, /dev/fuse or libfuse. Speeds decide nothing.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

SKIP = 77


def check(condition, what, document):
    if not condition:
        sys.exit(f"test_bench_drift: {what}\n{json.dumps(document, indent=1)}")


def main(command, script, build):
    folder = tempfile.mkdtemp(prefix="kvterrace-drift-")
    drives = [script, "--build", build, "--at", os.path.join(folder, "drives")]
    try:
        up = subprocess.run(drives + ["up", "--ram", "0", "--size", "256Mi", "--for", "550",
                                      "100", "100", "200"], stdout=subprocess.DEVNULL, check=False)
        if up.returncode != 0:
            print("test_bench_drift: no emulated drives here")
            return SKIP if up.returncode == SKIP else 1
        # Drives vanish here, but none hangs, however busy the machine is.
        with open(os.path.join(folder, "drives", "drives.ini"), encoding="utf-8") as file:
            text = file.read().replace("emulated = yes\n", "emulated = yes\ntimeout = 0\n")
        with open(os.path.join(folder, "drives", "drives.ini"), "w", encoding="utf-8") as file:
            file.write(text)
        result = subprocess.run(
            [command, "bench", "drift", "--quick", "--json", "--directory", folder, "--config",
             os.path.join(folder, "drives", "drives.ini")],
            capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"test_bench_drift: exit {result.returncode}: {result.stderr}")
        document = json.loads(result.stdout)
        slows, gone = document["slows"], document["vanishes"]
        check(slows["wrong"] == 0 and gone["wrong"] == 0, "wrong bytes", document)
        check(slows["moved_bytes"] <= slows["move_budget_bytes"], "over the budget", document)
        check(gone["unreadable_elsewhere"] == 0, "lost on drives that stayed", document)
        check(gone["quarantined"] >= 12, "the large ones lie on every drive", document)
        back = gone["quarantined"] - gone["replaced"]
        check(gone["readmitted"] == back, "some are lost", document)
        check(gone["readable_after_return"] == gone["objects"], "not all came back", document)
        check(gone["reads"] == gone["hits"] + gone["misses"], "neither data nor a miss", document)
    finally:
        subprocess.run(drives + ["down"], stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*[os.path.abspath(argument) for argument in sys.argv[1:4]]))
