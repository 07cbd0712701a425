# SPDX-License-Identifier: Apache-2.0
"""
test_policy_sessions.py - on sessions of several turns the engine keeps up with plain LRU: the mean
over five seeds, paired, in virtual time, so that no machine decides it. At eight turns one seed in
five is 1 % behind: watermarks keep 0.5 to 1 % of each tier free where LRU fills all of it.
"""
import json
import subprocess
import sys

SETTINGS = [
    "workload.requests=3000", "workload.contexts=500", "workload.zipf=0.9",
    "tier.dram.capacity=100GB", "tier.ssd.capacity=400GB",
    "tier.ssd.read_bandwidth=1GB/s", "tier.ssd.write_bandwidth=1GB/s", "replay.bounds=no",
]


def mean_ttft(command, turns, seed):
    line = [command, "replay", "--quiet", "--json", "--workload", "poisson",
            "--policy", "lru,utility", "--seed", str(seed), "--set", f"workload.turns_mean={turns}"]
    for setting in SETTINGS:
        line += ["--set", setting]
    runs = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)["results"]
    return {run["policy"]: run["ttft_s_mean"] for run in runs}


def main():
    command = sys.argv[1]
    for turns, limit in ((3, 1.0), (8, 1.0)):
        ratios = []
        for seed in range(1, 6):
            found = mean_ttft(command, turns, seed)
            ratios.append(found["utility"] / found["lru"])
        print(f"{turns} turns: " + " ".join(f"{ratio:.3f}" for ratio in ratios))
        if sum(ratios) / len(ratios) > limit:
            sys.exit(f"{turns} turns: further behind lru than it was")


if __name__ == "__main__":
    main()
