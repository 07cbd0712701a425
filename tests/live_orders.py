#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a live replay judges alike in whichever order the policies run.

    live_orders.py COMMAND CONFIG [ROUNDS] [-- OPTION...]

CONFIG is a file as tools/demo.sh writes it (BUILD_DIR/demo/live.ini, with paths that exist); the
options after -- replace the demo's workload. Each round runs lru,utility and utility,lru, and
prints each policy's token hits, mean time to the first token and refused puts in either order.
Counts repeat; times do as far as the machine is quiet. The exit code is 1 when a policy's token
hits differ by more than five points between the orders.
"""

import json
import subprocess
import sys

WORKLOAD = ["--scale", "0.03125", "--set", "replay.bytes_per_token=56KiB",
            "--set", "workload.requests=150", "--set", "workload.contexts=40",
            "--set", "workload.rate=0.25"]


def run(command, config, order, options):
    result = subprocess.run([command, "replay", "--workload", "poisson", "--mode", "live", "--json",
                             "--quiet", "--policy", order, "--config", config, *options],
                            check=True, stdout=subprocess.PIPE, text=True)
    rows = json.loads(result.stdout)["results"]
    return {row["policy"]: (100 * row["hit_token_ratio"]["total"], row["ttft_s_mean"],
                            row["puts"], row["refused"]) for row in rows}


def main():
    words = sys.argv[1:]
    options = words[words.index("--") + 1:] if "--" in words else WORKLOAD
    words = words[:words.index("--")] if "--" in words else words
    command, config, rounds = words[0], words[1], int(words[2]) if len(words) > 2 else 1
    apart = 0
    print(f"{'round':5} {'policy':10} {'hits, lru first':>16} {'utility first':>14} {'TTFT':>8} "
          f"{'TTFT':>8} {'puts refused':>24}")
    for number in range(1, rounds + 1):
        first = run(command, config, "lru,utility", options)
        second = run(command, config, "utility,lru", options)
        for policy in ("lru", "utility"):
            one, two = first[policy], second[policy]
            apart = max(apart, abs(one[0] - two[0]))
            means = [f"{value:.2f} s" if value is not None else "-" for value in (one[1], two[1])]
            refused = f"{one[3]}/{one[2]} {two[3]}/{two[2]}"
            print(f"{number:<5} {policy:10} {one[0]:14.1f} % {two[0]:12.1f} % {means[0]:>8} "
                  f"{means[1]:>8} {refused:>24}")
    print(f"token hits of one policy differ by at most {apart:.1f} points between the orders")
    return 1 if apart > 5 else 0


if __name__ == "__main__":
    sys.exit(main())
