#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The engine's dual against an independent solver, HiGHS: no placement may be worth more.

    test_policy_dual_milp.py INSTANCE-WRITER [COUNT]

INSTANCE-WRITER is test_policy_dual, which writes drawn instances as JSON. Each is solved as a
mixed-integer program. The solution is rounded to whole choices, checked against the capacities and
added up here, so no tolerance of the solver decides. Skips (77) where highspy is not installed.
"""

import json
import math
import os
import subprocess
import sys
import tempfile

SKIP = 77
COUNT = 560
NODES = 2000  # of the search tree: a bound that no clock decides


def solve(highspy, instance):
    """The best choice that HiGHS finds, as a list of options, and whether it proved it."""
    options = [(i, option) for i, entry in enumerate(instance["entries"]) for option in entry]
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 1e-9)
    solver.setOptionValue("mip_max_nodes", NODES)
    columns = []
    for _, option in options:
        columns.append(solver.addVariable(0.0, 1.0, obj=-option[0],
                                          type=highspy.HighsVarType.kInteger))
    for i in range(len(instance["entries"])):
        own = [column.index for column, (entry, _) in zip(columns, options) if entry == i]
        if own:
            solver.addRow(-highspy.kHighsInf, 1.0, len(own), own, [1.0] * len(own))
    for level, capacity in enumerate(instance["capacity"]):
        used = [(column.index, float(option[1 + level]))
                for column, (_, option) in zip(columns, options) if option[1 + level] > 0]
        if used:
            solver.addRow(-highspy.kHighsInf, float(capacity), len(used),
                          [index for index, _ in used], [bytes_ for _, bytes_ in used])
    solver.run()
    proved = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    values = solver.getSolution().col_value
    chosen = [(entry, option) for value, (entry, option) in zip(values, options) if value > 0.5]
    return chosen, proved


def worth(instance, chosen):
    """The value of a choice, or None where it is no placement."""
    if len({entry for entry, _ in chosen}) != len(chosen):
        return None
    for level, capacity in enumerate(instance["capacity"]):
        if sum(option[1 + level] for _, option in chosen) > capacity:
            return None
    return math.fsum(option[0] for _, option in chosen)


def main(writer, count=COUNT):
    try:
        import highspy  # pylint: disable=import-outside-toplevel
    except ImportError:
        print("skipped: the Python package highspy is not installed")
        return SKIP
    with tempfile.TemporaryDirectory(prefix="kvterrace-dual-") as folder:
        path = os.path.join(folder, "instances.jsonl")
        subprocess.run([writer, path, str(count)], check=True)
        with open(path, encoding="utf-8") as file:
            instances = [json.loads(line) for line in file]
    below, proved, sound, largest, gaps = [], 0, 0, 0, []
    for number, instance in enumerate(instances):
        if not any(instance["entries"]):
            continue
        chosen, done = solve(highspy, instance)
        value = worth(instance, chosen)
        if value is None:
            continue
        sound += 1
        proved += done
        largest = max(largest, len(instance["entries"]))
        if instance["dual"] < value * (1.0 - 1e-15):
            below.append((number, instance["dual"], value))
        if done and not instance["points"] and instance["placed"] > value * (1.0 + 1e-8):
            sys.exit(f"instance {number}: placed {instance['placed']}, the best is {value}")
        if value > 0.0:
            gaps.append(instance["dual"] / value - 1.0)
    gaps.sort()
    print(f"{sound} instances to {largest} entries, {proved} solved to the end; dual over optimum: "
          f"median {gaps[len(gaps) // 2]:.2e}, largest {gaps[-1]:.2e}; {len(below)} below it")
    if below:
        sys.exit(f"duals below the optimum, first {below[:3]}")
    if sound < 500 or proved < 0.9 * sound or largest < 150 or gaps[len(gaps) // 2] > 0.1:
        sys.exit("the instances are not what this test is about")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *[int(argument) for argument in sys.argv[2:]]))
