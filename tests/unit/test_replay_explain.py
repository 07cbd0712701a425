#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""replay --explain: a user sees what was learned of reuse, and by what single blocks are kept.

    test_replay_explain.py COMMAND

Virtual time: nothing here depends on how long anything takes.
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase  # noqa: E402


class ExplainTest(CommandCase):
    def test_names_the_reuse_expert(self):
        command = ["replay", "--workload", "poisson", "--policy", "lru,utility", "--explain", "3",
                   "--set", "workload.requests=300", "--set", "workload.contexts=50",
                   "--set", "workload.turns_mean=4"]
        document = self.run_json(*command)
        lru, utility = document["results"]
        self.assertIsNone(lru["reuse"])
        self.assertEqual(len(lru["explained"]), 3)
        self.assertIsNone(lru["explained"][0]["reuse_expert"])
        reuse = utility["reuse"]
        self.assertGreater(reuse["uses"], 100)
        self.assertEqual(sorted(reuse), ["age_s", "count", "half_life_s", "hazard", "uses"])
        for result in document["results"]:
            self.assertEqual(sorted(result["refused_for"]),
                             ["cost", "plan", "prefix", "price", "room"])
            self.assertEqual(sum(result["refused_for"].values()), result["refused"])
        rates = [row["uses_per_s"] for row in utility["explained"]]
        self.assertEqual(rates, sorted(rates, reverse=True))
        for row in utility["explained"]:
            expert = row["reuse_expert"]
            if expert["kind"] == "count":
                place = reuse["half_life_s"].index(expert["half_life_s"])
                self.assertAlmostEqual(expert["weight"], reuse["count"][place])
            else:
                self.assertEqual((expert["kind"], expert["half_life_s"]), ("age", 0.0))
            self.assertTrue(0.0 < expert["share_of_rate"] <= 1.0)
        text = self.run_command(*command).stdout
        self.assertRegex(text, "block +variant +tier .* expert +half_life +weight")
        self.assertRegex(text, "[0-9]+ +raw +dram +[0-9.]+ [mun]?s .* s  ")
        self.fails("replay.explain: 0 to 32", "replay", "--workload", "poisson", "--explain", "33")


if __name__ == "__main__":
    unittest.main()
