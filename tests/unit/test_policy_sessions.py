# SPDX-License-Identifier: Apache-2.0
"""
test_policy_sessions.py - on sessions of several turns the engine keeps up with plain LRU: the mean
over five seeds, paired, in virtual time, so that no machine decides it. At eight turns one seed in
five is 1 % behind: watermarks keep 0.5 to 1 % of each tier free where LRU fills all of it. Turns an
hour apart are held to it as well: what is written has to pay off over the hours that it stays.
Seeds of those differ by 0.3 %, and each costs 20 times as much: two are enough for a limit of 2 %.
"""
import json
import subprocess
import sys

SETTINGS = [
    "workload.requests=3000", "workload.contexts=500", "workload.zipf=0.9",
    "tier.dram.capacity=100GB", "tier.ssd.capacity=400GB",
    "tier.ssd.read_bandwidth=1GB/s", "tier.ssd.write_bandwidth=1GB/s",
]
SLOW = [
    "workload.requests=2000", "workload.contexts=100000", "workload.zipf=0",
    "workload.tokens_sigma=0.7", "workload.think_time=3600", "workload.rate=0.01",
    "tier.dram.capacity=60GB", "tier.ssd.capacity=300GB", "tier.ssd.read_bandwidth=3GB/s",
]
CASES = (
    ("3 turns", SETTINGS + ["workload.turns_mean=3"], 5, 1.0),
    ("8 turns", SETTINGS + ["workload.turns_mean=8"], 5, 1.0),
    ("turns an hour apart", SLOW, 2, 1.02),
)


def mean_ttft(command, settings, seed):
    line = [command, "replay", "--quiet", "--json", "--workload", "poisson",
            "--policy", "lru,utility", "--seed", str(seed), "--set", "replay.bounds=no"]
    for setting in settings:
        line += ["--set", setting]
    runs = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)["results"]
    return {run["policy"]: run["ttft_s_mean"] for run in runs}


def main():
    command = sys.argv[1]
    for name, settings, seeds, limit in CASES:
        ratios = []
        for seed in range(1, seeds + 1):
            found = mean_ttft(command, settings, seed)
            ratios.append(found["utility"] / found["lru"])
        print(f"{name}: " + " ".join(f"{ratio:.3f}" for ratio in ratios))
        if sum(ratios) / len(ratios) > limit:
            sys.exit(f"{name}: further behind lru than it was")


if __name__ == "__main__":
    main()
