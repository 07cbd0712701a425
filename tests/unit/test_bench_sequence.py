#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benches of sparse sequences on drives: rows of equal error have it, nothing is lost, no stage
is busier than there is time.

    test_bench_sequence.py COMMAND

Speeds decide nothing: the drives are memory behind a throttle.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile


def check(condition, what, document):
    if not condition:
        sys.exit(f"test_bench_sequence: {what}\n{json.dumps(document, indent=1)}")


def run(command, *arguments):
    result = subprocess.run([command, *arguments, "--quick", "--json"],
                            capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"test_bench_sequence: exit {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)


def check_sequence(command):
    document = run(command, "sequence")
    check(document["schema"] == "kvterrace-bench-sequence-2", "another schema", document)
    rows = {row["case"]: row for row in document["results"]}
    ours, full = rows["ours"], rows["full load"]
    check(len(rows) == 17 and full["error"] == 0 < ours["error"], "other rows", document)
    kept = document["kept"]
    check(kept["in_place_pages"] == kept["pages"] > 0, "pages were copied", document)
    check(0 < kept["reopen_seconds"] and kept["lent_bytes"] < kept["first_lent_bytes"] / 2,
          "room of what is kept", document)
    check(rows["ours, kept"]["error"] == ours["error"], "other pages once kept", document)
    check(all(row["lost_pages"] == 0 for row in rows.values()), "lost pages", document)
    for name in ("InfLLM", "PQCache", "SWARM", "16 bits, packed", "16 bits, not packed",
                 "ours, no window", "ours, no estimate", "ours, 16 bits"):
        check(rows[name]["error"] <= ours["error"] * 1.001, f"more error of {name}", document)
        check(rows[name]["bytes_per_step"] > 0 < rows[name]["io_seconds"], name, document)
    # The same pages wherever they lie.
    plain = [rows[f"16 bits, {name}"] for name in ("round robin", "equal shares", "proportional",
                                                   "copies")]
    check(len({row["error"] for row in plain}) == 1, "a layout changes the error", document)
    check(len({row["bytes_per_step"] for row in plain}) == 1, "or the bytes", document)
    check(plain[0]["byte_seconds"] > 1.2 * plain[2]["byte_seconds"], "shares do not follow speed",
          document)
    check(all(row["byte_share"] <= 1.05 for row in rows.values()), "faster than the drives",
          document)


def check_pipeline(command):
    document = run(command, "pipeline", "--compute", "4000")
    check(document["schema"] == "kvterrace-bench-pipeline-1", "another schema", document)
    rows = document["results"]
    check(len(rows) == 12 and document["sequences"] % document["micro_batch"] == 0, "other rows",
          document)
    check(rows[0]["compute_seconds"] == 0.004 and rows[6]["compute_seconds"] == 0, "compute",
          document)
    for row in rows:
        stages = row["stage_seconds"]
        check(0 < row["overlap"] <= 1.02, f"overlap of {row['case']}", document)
        check(abs(max(stages.values()) / row["step_seconds"] - row["overlap"]) < 1e-6,
              f"stages of {row['case']}", document)
        check(abs(row["tokens_per_s"] * row["step_seconds"] - 4) < 1e-6, "tokens", document)
        if row["case"].startswith("full load"):
            check(row["error"] < 1e-4, "full load is exact", document)
        else:
            check(row["error"] <= 1.1 * document["target_error"], f"error of {row['case']}",
                  document)
    # Four sequences and two layers compute for so long, one after the other.
    check(abs(rows[4]["stage_seconds"]["compute"] - 8 * 0.004) < 1e-6, "computing", document)


def write_dump(path, tokens=1200, heads=2, dim=32, rows=48):
    """K, V and queries of two layers, the queries those of the last tokens."""
    dice, header, body = random.Random(4), {"__metadata__": {"queries": "last"}}, b""
    for layer in range(2):
        for name, shape in (("k", (tokens, heads, dim)), ("v", (tokens, heads, dim)),
                            ("q", (rows, 2 * heads, dim))):
            count = shape[0] * shape[1] * shape[2]
            values = struct.pack(f"<{count}e", *(dice.gauss(0, 1) for _ in range(count)))
            header[f"{name}.{layer}"] = {"dtype": "F16", "shape": shape,
                                         "data_offsets": [len(body), len(body) + len(values)]}
            body += values
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def check_given(command):
    missing = subprocess.run([command, "given", "--quick"], capture_output=True, check=False)
    check(missing.returncode == 77 and b"--dump" in missing.stderr, "no data", str(missing))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "made.safetensors")
        write_dump(path)
        document = run(command, "given", "--dump", path)
    rows = {row["case"]: row for row in document["results"]}
    check(len(rows) == 9 and all(row["wrong"] == 0 for row in rows.values()), "rows", document)
    for row in rows.values():
        check(row["bytes"] > 0 and 0 <= row["hit_ratio"] < 1, f"hits of {row['case']}", document)
    check(rows["ours"]["hit_ratio"] > 0 < rows["ours"]["guessed"], "no hits", document)
    check(rows["LRU, blocks of 64"]["bytes"] > 1.5 * rows["LRU, our pages"]["bytes"],
          "larger blocks read no more", document)
    check(rows["ours, computing, hints"]["bytes"] > rows["ours, computing"]["bytes"],
          "a wrong part of a guess costs nothing", document)


def main(command):
    check_sequence(command)
    check_pipeline(command)
    check_given(command)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
