#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kvterrace report: what it concludes from planted figures, and the pages that it writes.

    test_tools_report.py COMMAND

Words and figures are of the page's script, which runs on a document model of the tests' own where
node is installed.
"""

import html.parser
import json
import math
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import WORKLOAD, CommandCase, command_line  # noqa: E402

NODE = shutil.which("node")
DRAW_PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support",
                         "draw_page.js")
NASTY = "</script><!--<script>alert(1)</script>' \"&\u2028"
NEVER_CLOSED = {"meta", "br", "hr", "img", "link", "input"}


class Page(html.parser.HTMLParser):
    """A page's elements, each closed by its own end tag; its words; the documents in it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.data, self.faults = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in NEVER_CLOSED:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.faults.append(f"</{tag}> in {self.open[-3:]}")
            return
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            if self.open[-1][1].get("class") == "data":
                self.data.append(json.loads(data))
        elif not self.open or self.open[-1][0] != "style":
            self.words.append(data)


def run(policy, seed, mean, quality=1.0, **more):
    """One run of a replay; the median is half of the mean, the 99th percentile four times it."""
    row = {"policy": policy, "mode": "sim", "seed": seed, "ttft_s_mean": mean,
           "ttft_s_p50": mean / 2, "ttft_s_p99": mean * 4, "quality_mean": quality,
           "rho": 0.3, "rho_peak": 0.5, "ttft_s_percentiles": [mean / 4, mean, mean * 4]}
    row.update(more)
    return row


def replay(results, requests=1000, **more):
    return {"schema": "kvterrace-replay-1", "version": "0", "workload": {"requests": requests},
            "results": results, **more}


def compare_row(against, verdict, ratio):
    return {"against": against, "ours": "utility", "verdict": verdict, "ratio": ratio,
            "ratio_95": [ratio - 0.01, ratio + 0.01], "ssd_bytes_per_s": 1e9, "quality_mean": 0.99,
            "our_quality_mean": 0.99}


def loop_run(contender, mean, rouge_l, seed=1, **more):
    form = {"form": "planes:k4v4,g64", "hits": {"total": 40, "hbm": 10, "dram": 10, "ssd": 20},
            "stored": {"total": 2, "hbm": 1, "dram": 1, "ssd": 0}, "same_answers": 30,
            "stored_share": 0.28, "rouge_l": rouge_l, "loss": 1 - rouge_l, "loss_low": 0.0,
            "loss_high": 0.3, "loss_predicted": 0.05, "loss_within": True, "load_s_p50": 0.01,
            "load_predicted_s_p50": 0.011}
    row = {"contender": contender, "seed": seed, "requests": 100, "ttft_s_mean": mean,
           "ttft_s_p50": mean / 2, "ttft_s_p99": mean * 4, "wait_s_mean": mean / 4,
           "load_s_mean": mean / 4, "prefill_s_mean": mean / 4, "question_s_mean": mean / 4,
           "rouge_l": rouge_l, "f1": rouge_l, "same_answers": 90, "load_error_p50": 0.05,
           "hits": {"total": 60, "hbm": 20, "dram": 20, "ssd": 20}, "exact_checked": 20,
           "exact_wrong": 0, "tokens_wrong": 0, "rho": 0.2, "forms": [form]}
    row.update(more)
    return row


def loop(results):
    return {"schema": "kvterrace-loop-1", "model": {"name": "m"}, "workload": {"requests": 100},
            "classes": [{"class": "qa", "contexts": 4}], "ladder": [], "results": results}


class ReportCase(CommandCase):
    def draw(self, *documents, width=400):
        if NODE is None:
            self.skipTest("node is not installed: the page's script is not looked at")
        self.page(*documents)
        result = subprocess.run([NODE, DRAW_PAGE, self.path("page.html"), str(width)], text=True,
                                stdout=subprocess.PIPE, check=True, timeout=60)
        drawn = json.loads(result.stdout)
        for part in ("NaN", "undefined", "Infinity", "[object"):
            self.assertNotIn(part, result.stdout)
        self.assertEqual(len(drawn["verdicts"]), len(documents))
        for verdict in drawn["verdicts"]:
            self.assertTrue(verdict["sentences"])
            self.assertTrue(verdict["next"])
        for figure in drawn["figures"]:
            self.assertTrue(figure["title"])
            self.assertTrue(figure["axes"], figure["title"])
            self.assertEqual(figure["outside"], [], figure["title"])
        return drawn

    def verdict(self, document):
        return self.draw(document)["verdicts"][0]

    def states(self, document):
        verdict = self.verdict(document)
        return [(row["state"], row["text"]) for row in verdict["sentences"]], verdict["next"]

    def page(self, *documents):
        names = []
        for number, document in enumerate(documents):
            names.append(f"{number}.json")
            self.put(names[-1], document if isinstance(document, str) else json.dumps(document))
        result = self.run_command("report", *names, "-o", "page.html")
        self.assertEqual(result.stdout, "")
        with open(self.path("page.html"), encoding="utf-8") as file:
            text = file.read()
        page = Page(text)
        self.assertEqual(page.faults, [])
        self.assertEqual(page.open, [])
        self.assertEqual([entry["name"] for entry in page.data], names)
        for outside in ("http:", "https:", "url(", "@import", "src="):
            self.assertNotIn(outside, text)
        identifiers = [found["id"] for _, found in page.tags if "id" in found]
        self.assertEqual(len(identifiers), len(set(identifiers)))
        return page


class VerdictTest(ReportCase):
    """What is concluded."""

    def test_ahead_in_all(self):
        rows = [run("utility", seed, 0.8 + seed / 1000) for seed in range(1, 6)]
        rows += [run("lru", seed, 1.0 + seed / 1000) for seed in range(1, 6)]
        rows += [run("gdsf", seed, 2.0) for seed in range(1, 6)]
        rows += [run("oracle", seed, 0.1) for seed in range(1, 6)]
        sentences, following = self.states(replay(rows))
        ahead = [text for state, text in sentences if state == "ahead"]
        self.assertEqual(len(ahead), 3)
        self.assertIn("utility is ahead of lru, the strongest of the others: 803.00 ms against "
                      "1.003 s, ratio 0.801 [0.80", ahead[0])
        self.assertIn("over 5 seeds; quality 1.0000 against 1.0000.", ahead[0])
        for text, start in zip(ahead, ("Mean time", "Median", "99th percentile")):
            self.assertTrue(text.startswith(start), text)
        self.assertIn(("note", "Where it is behind: nowhere that 5 seeds can tell."), sentences)
        self.assertFalse(any("Without a cache" in text for _, text in sentences))
        self.assertIn("--mode live", following)

    def test_beside_no_cache(self):
        """Whether a cache is worth it at all is said beside the strongest policy."""
        rows = [run(policy, seed, mean + seed / 1000) for seed in range(1, 6)
                for policy, mean in (("none", 2.0), ("lru", 1.0), ("utility", 0.8))]
        sentences, _ = self.states(replay(rows))
        found = [row for row in sentences if row[1].startswith("Without a cache: ")]
        self.assertEqual([state for state, _ in found], ["ahead"])
        self.assertIn("is ahead of none, 803.00 ms against 2.003 s, ratio 0.401 [0.40", found[0][1])
        self.assertIn("is ahead of lru, the strongest of the others", sentences[0][1])
        rows = [run(policy, seed, mean) for seed in (1, 2) for policy, mean in
                (("none", 1.0), ("lru", 2.0), ("utility", 1.5 + seed / 1000))]
        self.assertIn("behind", [state for state, text in self.states(replay(rows))[0]
                                 if text.startswith("Without a cache: ")])

    def test_behind(self):
        """The strongest rival is the one that decides, and it is named with what to do."""
        rows = [run("utility", seed, 1.0) for seed in range(1, 7)]
        rows += [run("lru", seed, 0.7 + seed / 1000) for seed in range(1, 7)]
        rows += [run("gdsf", seed, 3.0) for seed in range(1, 7)]
        sentences, following = self.states(replay(rows))
        self.assertEqual([state for state, _ in sentences].count("behind"), 4)
        self.assertIn(("behind", "Where it is behind: the mean, the median, the 99th percentile."),
                      sentences)
        self.assertIn("is behind lru", sentences[0][1])
        self.assertIn("store.policy = lru", following)

    def test_level_when_the_interval_holds_one(self):
        rows = [run("utility", 1, 0.5), run("utility", 2, 2.0), run("lru", 1, 1.0),
                run("lru", 2, 1.0)]
        sentences, following = self.states(replay(rows))
        self.assertEqual(sentences[0][0], "level")
        self.assertIn("ratio 1.000 [0.000, ", sentences[0][1])
        self.assertIn("--seeds 10: 2 seeds", following)

    def test_intervals_are_students(self):
        """Two seeds, ratios 0.8 and 0.9: the mean of logarithms and 12.706 standard errors."""
        rows = [run("utility", 1, 0.8), run("utility", 2, 0.9), run("lru", 1, 1.0),
                run("lru", 2, 1.0)]
        drawn, reach = self.draw(replay(rows)), math.exp(12.706 * 0.0588915)
        wanted = f"0.849 [{0.848528 / reach:.3f}, {0.848528 * reach:.3f}]"
        self.assertIn(f"ratio {wanted} over 2 seeds", drawn["verdicts"][0]["sentences"][0]["text"])
        self.assertTrue(any(wanted in figure["text"] for figure in drawn["figures"]))

    def test_one_seed_decides_nothing(self):
        sentences, following = self.states(replay([run("utility", 1, 0.5), run("lru", 1, 1.0)]))
        self.assertEqual({state for state, _ in sentences}, {"note"})
        self.assertIn("takes less than lru", sentences[0][1])
        self.assertIn("without an interval", sentences[0][1])
        self.assertIn("1 seed gives no interval", following)

    def test_faster_at_less_quality_is_not_ahead(self):
        rows = [run(policy, seed, mean, quality) for seed in range(1, 6)
                for policy, mean, quality in (("utility", 0.5, 0.99), ("lru", 1.0, 1.0))]
        sentences, _ = self.states(replay(rows))
        self.assertNotIn("ahead", [state for state, _ in sentences])
        self.assertIn("pays with quality", sentences[0][1])

    def test_overload_and_few_requests(self):
        rows = [run("utility", 1, 0.5), run("lru", 1, 9.0, ttft_s_mean=None, rho_peak=1.25)]
        sentences, following = self.states(replay(rows, requests=100))
        self.assertEqual(sentences[0][0], "warning")
        self.assertIn("No mean exists for lru: the offered load reaches 1.25", sentences[0][1])
        self.assertTrue(any("too few for a 99th" in text for _, text in sentences))
        self.assertFalse(any(text.startswith("99th") for _, text in sentences))
        self.assertIn("workload.rate", following)

    def test_live_bound_and_busy(self):
        rows = [run("utility", seed, 0.5, mode="live", wrong_bytes=seed - 1, verified_gets=10,
                    moves_match=True) for seed in (1, 2)]
        sentences, following = self.states(replay(rows, profile_busy=True))
        self.assertEqual([state for state, _ in sentences[:2]], ["warning", "warning"])
        self.assertIn("20 gets were compared with what was put, 1 gave back", sentences[1][1])
        self.assertIn("profile again", following)
        rows = [run("utility", 1, 0.5, bound_saved_s_per_request=2.0,
                    achieved_saved_s_per_request=1.5)]
        sentences, following = self.states(replay(rows))
        self.assertTrue(any("2.000 s a request; utility saves 1.500 s, 75.0 %" in text
                            for _, text in sentences), sentences)
        self.assertIn("Run again with rivals", following)

    def test_without_the_engine(self):
        sentences, following = self.states(replay([run("lru", 1, 1.0), run("gdsf", 1, 0.9)]))
        self.assertIn("gdsf has the lowest mean", sentences[0][1])
        self.assertIn("utility among the policies", following)

    def test_compare(self):
        document = {"schema": "kvterrace-compare-1", "configuration": {"seeds": 7},
                    "baselines": [compare_row("lru raw", "win", 0.8),
                                  compare_row("gdsf raw", "lose", 1.1)],
                    "mixes": [compare_row("mix planes", "tie", 1.0)], "footprint": []}
        sentences, following = self.states(document)
        self.assertIn("ahead in 1 of 3 comparisons, level in 1 and behind in 1", sentences[0][1])
        self.assertIn("over 7 seeds", sentences[0][1])
        self.assertIn("from 0.800 to 1.100; the strongest rival is gdsf raw", sentences[1][1])
        behind = [text for state, text in sentences if state == "behind"]
        self.assertEqual(len(behind), 1)
        self.assertIn("gdsf raw (baselines, SSD at 1 GB/s): utility takes 1.100 [1.090, 1.110]",
                      behind[0])
        self.assertIn("--mode live", following)
        del document["baselines"][1]
        sentences, _ = self.states(document)
        self.assertEqual(sentences[0][0], "ahead")
        self.assertIn("in none of these comparisons", sentences[-1][1])

    def test_grid(self):
        def cell(name, low, high, rival="lru"):
            return {"cell": name, "family": "sessions", "best_rival": rival, "bound": 1.0,
                    "ratio": (low + high) / 2, "ratio_low": low, "ratio_high": high}
        cells = [cell("a", 0.8, 0.9), cell("b", 0.9, 1.1, "gdsf"), cell("c", 1.1, 1.3),
                 cell("d", 0.7, 1.9), {"cell": "skipped", "skipped": True}]
        document = {"schema": "kvterrace-bench-grid-1", "repetitions": 10, "cells": cells,
                    "rows": [], "totals": {
                        "intervals_above_1_02": 1, "cells_with_room": 4,
                        "geometric_mean_with_room": 0.97,
                        "worst": [{"cell": name, "ratio": ratio, "best_rival": "lru",
                                   "why": "because"}
                                  for name, ratio in (("d", 1.3), ("c", 1.2), ("a", 0.85))]}}
        sentences, following = self.states(document)
        self.assertIn("ahead in 1 of 4 cells, level in 2 and behind in 1 (95 % intervals over 10",
                      sentences[0][1])
        self.assertEqual([state for state, _ in sentences],
                         ["note", "missed", "missed", "note", "level", "behind"])
        self.assertIn("In 1 of them", sentences[1][1])
        self.assertIn("is 0.970; at most 0.95", sentences[2][1])
        self.assertIn("Best rivals: lru, gdsf.", sentences[3][1])
        self.assertEqual(sentences[5][1], "c: 1.200 [1.100, 1.300] of lru; because.")
        self.assertIn("lab/grid.py --cell", following)

    def test_live(self):
        rows = [{"setting": "s", "policy": policy, "ratio": ratio, "live": {}, "sim": {}}
                for policy, ratio in (("lru", 1.05), ("utility", 0.8))]
        document = {"schema": "kvterrace-bench-live-1", "rows": rows, "totals": {
            "rows": 2, "within": 1, "ratio_min": 0.8, "ratio_max": 1.05, "ratio_allowed": 0.1,
            "pairs_told_apart": 1, "pairs_inverted": 0, "wrong_bytes": 0}}
        sentences, _ = self.states(document)
        self.assertEqual([state for state, _ in sentences], ["missed", "met", "met", "note"])
        self.assertIn("In 1 of 2 runs", sentences[0][1])
        self.assertIn("within 10 %", sentences[0][1])
        self.assertIn("s with utility, 0.800", sentences[3][1])

    def test_benches(self):
        cases = [
            ("bench-codecs", {"checks": [
                {"ok": True}, {"ok": False, "source": "speed", "check": "decode", "what": "kivi",
                               "value": 1.2, "asked": "at_least", "limit": 1.5}]},
             [("missed", "1 of the 2 figures"),
              ("missed", "decode (kivi) is 1.200, asked is at least 1.500")]),
            ("bench-stripe", {"results": [{"layout": "proportional", "object_bytes": 1 << 20,
                                           "ratio": 0.5}, {"layout": "equal", "ratio": 0.4}]},
             [("missed", "0.500 of the drives' sum"), ("note", "Layout equal")]),
            ("bench-policy", {"rows": [{"gap_solver": 0.01}, {"n": 7, "decision_ns_p50": 300}]},
             [("note", "1.00e-2"), ("note", "7 entries: a decision takes 300 ns")]),
            ("profile", {"devices": [{"device": "d", "tier": "ssd", "busy": True,
                                      "read": {"bytes_per_s": 1e9}}],
                         "break_even": {"devices": [{"loading_wins": "always"},
                                                    {"loading_wins": "never"}]}},
             [("note", "d (ssd) reads at 1.00 GB/s"), ("warning", "was busy"),
              ("note", "in 1 of 2 cases")]),
            ("profile-quality", {"sets": [{"model": "m", "class": "c", "variants": [
                {"variant": "a", "bits_per_element": 4, "loss_mean": 0, "loss_high": 0.005},
                {"variant": "b", "bits_per_element": 2, "loss_mean": 0.1, "loss_high": 0.2}]}]},
             [("note", "m on c: a has the fewest bits, 4.00")]),
        ]
        for kind, document, wanted in cases:
            with self.subTest(kind=kind):
                document = {"schema": f"kvterrace-{kind}-1", **document}
                sentences, _ = self.states(document)
                for state, part in wanted:
                    self.assertTrue(any(state == one and part in text for one, text in sentences),
                                    (part, sentences))

    def test_loop(self):
        """The rival is the fastest of those whose answers are as good, not the fastest of all; one
        seed, or an interval that holds 1, is no lead."""
        rivals = [loop_run(name, mean, quality, seed) for seed in (1, 2, 3) for name, mean, quality
                  in (("lru", 2.0, 1.0), ("lru+kivi-4", 1.2, 0.99), ("lru+kivi-2", 0.5, 0.8))]
        for means, quality, state, rival in (
                ((0.88, 0.92, 0.9), 0.99, "ahead", "lru+kivi-4 1.200 s (0.750 "),
                ((0.9,), 0.99, "note", "lru+kivi-4 1.200 s (0.750 "),
                ((1.0, 1.4, 1.23), 0.99, "level", "lru+kivi-4"),
                ((2.4, 2.6, 2.5), 1.0, "behind", "lru 2.000 s (1.250 ")):
            own = [loop_run("utility", mean, quality, seed + 1) for seed, mean in enumerate(means)]
            sentences, _ = self.states(loop([*rivals, *own]))
            self.assertEqual(sentences[0][0], state)
            self.assertIn(rival, sentences[0][1])
        sentences, _ = self.states(loop([loop_run("lru", 2.0, 0.5), loop_run("utility", 1, 1)]))
        self.assertEqual(sentences[0][0], "note")
        self.assertIn(("met", "Predicted losses lie within the measured intervals for 2 of 2 "
                       "variants."), sentences)
        self.assertIn(("met", "Every byte of 40 gets of exact variants was compared; 0 differ."),
                      sentences)
        bad = loop_run("utility", 1, 1, exact_wrong=1, load_error_p50=0.2)
        bad["forms"][0]["loss_within"] = False
        states = [state for state, _ in self.states(loop([loop_run("lru", 2, 1), bad]))[0]]
        self.assertEqual(states, ["note", "missed", "missed", "missed"])

    def test_other_kinds(self):
        for document, part in (({"schema": "kvterrace-new-1", "rows": [{"a": 1}]}, "kind new"),
                               ({"rows": [1, 2]}, "no schema"), ({}, "no schema"),
                               ({"schema": "kvterrace-"}, "no schema"),
                               ({"schema": "kvterrace-replay-1"}, "no finished run"),
                               ({"schema": "kvterrace-replay-1", "results": {"a": 1}},
                                "no finished run"),
                               ({"schema": 7}, "no schema")):
            with self.subTest(document=document):
                self.assertIn(part, self.verdict(document)["sentences"][0]["text"])


    def test_others_on_the_machine(self):
        for share, said in ((0.43, True), (0.05, False), (None, False)):
            document = loop([loop_run("lru", 2, 1), loop_run("utility", 1, 1)])
            document["others_share"] = share
            first = self.verdict(document)["sentences"][0]
            self.assertEqual("took 43 % of the processors" in first["text"], said)
            self.assertEqual(first["state"] == "warning", said)

    def test_words_of_the_document(self):
        verdict = self.verdict({"schema": "kvterrace-profile-calibrate-2",
                                "verdict": ["A loss limit of 0.01 leaves two.", {"x": 1}, None]})
        self.assertEqual([(said["state"], said["text"]) for said in verdict["sentences"]],
                         [("note", "A loss limit of 0.01 leaves two.")])


class PageTest(ReportCase):
    """The page around the figures."""

    def test_nothing_breaks_out(self):
        rows = [run(NASTY, 1, 1.0), run("utility", 1, 0.5), run("utility", 2, 0.5),
                run(NASTY, 2, 1.0)]
        document = replay(rows, note=NASTY, command=NASTY, **{NASTY: NASTY})
        page = self.page(document, {"schema": f"kvterrace-{NASTY}-1", "rows": [{NASTY: NASTY}]})
        self.assertEqual(page.data[0]["document"], document)
        self.assertEqual(sum(tag == "script" for tag, _ in page.tags), 3)
        self.assertNotIn("alert(1)", "".join(page.words))
        self.put("two.json", json.dumps(document))
        os.rename(self.path("two.json"), self.path("<script>.json"))
        result = self.run_command("report", "<script>.json", "-o", "page.html")
        self.assertEqual(result.stderr, "")
        with open(self.path("page.html"), encoding="utf-8") as file:
            self.assertEqual(Page(file.read()).faults, [])

    def test_several_documents(self):
        documents = [replay([run("lru", 1, 1.0)]), {"schema": "kvterrace-compare-1"},
                     {"schema": "kvterrace-profile-2"}]
        page = self.page(*documents)
        self.assertEqual([entry["document"] for entry in page.data], documents)
        drawn = self.draw(*documents)
        self.assertEqual([(row["title"], row["name"]) for row in drawn["verdicts"]],
                         [("Replay", "0.json"), ("Comparison at equal quality", "1.json"),
                          ("Profile", "2.json")])
        self.assertEqual(drawn["title"], "kvterrace: Replay and 2 more")
        for verdict, part in zip(drawn["verdicts"], ("lru has the lowest mean", "no finished run",
                                                     "No device was measured")):
            self.assertIn(part, verdict["sentences"][0]["text"])

    def test_documents_of_the_commands(self):
        """What the commands print is what the report reads."""
        outputs = {
            "replay": ["replay", *WORKLOAD, "--policy", "lru,utility", "--seeds", "2"],
            "profile": ["profile", "show", "--database", "p.db"],
            "settings": ["settings"],
            "size": ["size", *WORKLOAD, "--draws", "2"],
        }
        self.run_command("profile", "import", os.path.join(
            os.path.dirname(os.path.abspath(__file__)), "..", "..", "profiles", "devices.json"),
            "--database", "p.db")
        documents = []
        for kind, arguments in outputs.items():
            result = self.run_command(*arguments, "--json")
            documents.append(json.loads(result.stdout))
            self.assertTrue(documents[-1]["schema"].startswith(f"kvterrace-{kind}-"))
        verdicts = self.draw(*documents)["verdicts"]
        self.assertEqual([verdict["title"] for verdict in verdicts],
                         ["Replay", "Profile", "settings", "How much DRAM and SSD"])
        self.assertIn("utility", verdicts[0]["sentences"][0]["text"])

    def test_a_terminal_gets_no_page(self):
        path = self.put("one.json", json.dumps(replay([run("lru", 1, 1)])))
        master, slave = os.openpty()
        result = subprocess.run(command_line("report", path), stdout=slave,
                                stderr=subprocess.PIPE, text=True, check=False)
        os.close(slave)
        os.close(master)
        self.assertEqual(result.returncode, 2)
        self.assertIn("-o FILE", result.stderr)

    def test_standard_input(self):
        self.put("one.json", json.dumps(replay([run("lru", 1, 1.0)])))
        with open(self.path("one.json"), encoding="utf-8") as file:
            result = subprocess.run([self.command(), "report", "-"], stdin=file, text=True,
                                    stdout=subprocess.PIPE, check=True, timeout=60)
        self.assertEqual([entry["name"] for entry in Page(result.stdout).data],
                         ["standard input"])

    def command(self):
        import command_case
        return command_case.COMMAND


class FaultTest(ReportCase):
    """What cannot be read or written."""

    def test_faults(self):
        self.fails("which FILE?", "report")
        self.fails("missing.json: No such file", "report", "missing.json")
        self.fails("Is a directory", "report", ".")
        for text, part in (("", "no JSON"), ("{", "no JSON, line 1"), ("{}x", "no JSON"),
                           ("[1]", "not an object"), ('"x"', "no JSON"),
                           ('{"a":1,"a":2}', "duplicate"), (b'{"a":"\xff"}', "no JSON"),
                           ('{"a":' * 5000, "no JSON"), ('{"a":1e999}', "no JSON"),
                           ('{"a":NaN}', "no JSON")):
            with self.subTest(text=text[:20]):
                self.put("bad.json", text)
                self.fails(part, "report", "bad.json")
                self.fails("bad.json", "report", "bad.json", "-o", "page.html")
        self.assertFalse(os.path.exists(self.path("page.html")))
        self.put("good.json", json.dumps(replay([run("lru", 1, 1.0)])))
        self.fails("bad.json", "report", "good.json", "bad.json", "-o", "page.html")
        self.fails("no effect here", "report", "good.json", "--set", "replay.seed=1")

    def test_too_large(self):
        with open(self.path("large.json"), "w", encoding="utf-8") as file:
            file.write('{"a":"' + "x" * (65 << 20) + '"}')
        self.fails("at most 64 MiB", "report", "large.json", "-o", "page.html")
        os.unlink(self.path("large.json"))

    def test_targets(self):
        name = self.put("one.json", json.dumps(replay([run("lru", 1, 1.0)])))
        self.fails("missing/page.html", "report", name, "-o", "missing/page.html")
        self.fails("Is a directory", "report", name, "-o", ".")
        self.fails("left as it is", "report", name, "-o", "one.json")
        with open(name, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["schema"], "kvterrace-replay-1")
        page = self.run_command("report", name, "-o", "/dev/stdout").stdout
        self.assertTrue(page.endswith("</html>\n"))
        self.assertEqual([left for left in os.listdir(self.folder) if ".part" in left], [])
        if os.path.exists("/dev/full"):
            result = self.run_command("report", name, "-o", "/dev/full", code=1)
            self.assertIn("/dev/full", result.stderr)

class FigureTest(ReportCase):
    """What the page's script draws, as wide as a telephone and as a desk's screen."""

    def drawn_as_its_kind(self, *documents):
        for width in (400, 1280):
            drawn = self.draw(*documents, width=width)
            self.assertFalse(any("lacks parts" in note for note in drawn["notes"]))
            self.assertTrue(drawn["figures"])
        return drawn

    def test_hosts(self):
        def host(local, remote):
            return {"requests": 5, "block_refs": 100, "local_blocks": local,
                    "remote_blocks": remote, "published_bytes": 10, "fetched_bytes": 20,
                    "ttft_s_mean": 0.5}
        shared = {"count": 2, "found_block_ratio": 0.4, "local_block_ratio": 0.1,
                  "remote_block_ratio": 0.3, "written_blocks_per_use": 0.64, "deduplicated": 7777,
                  "load_error_p50": 0.1,
                  "peak_bytes": 1000, "all": host(10, 30), "rows": [host(10, 30), host(0, 40)]}
        rows = [run(policy, 1, mean, hosts=shared) for policy, mean in (("lru", 1), ("utility", 2))]
        set_to = {"tiers": {}, "hosts": 2, "route": "sticky",
                  "remote": {"capacity_bytes": 4e12, "nodes": 3}}
        drawn = self.drawn_as_its_kind(replay(rows, configuration=set_to))
        said = [text for _, text in self.states(replay(rows, configuration=set_to))[0]]
        self.assertTrue(any("finds 40.0, 30.0 of them on other hosts" in text for text in said))
        titles = [figure["title"] for figure in drawn["figures"]]
        found = next(figure for figure in drawn["figures"] if figure["title"].startswith("Blocks"))
        self.assertIn("40.0 %", found["text"])
        self.assertIn("Host by host: utility, seed 1", titles)
        self.assertIn("host 2", drawn["figures"][-1]["text"])
        # One host shares with nobody.
        alone = [run("lru", 1, 1, hosts={**shared, "rows": [host(10, 0)]})]
        drawn = self.drawn_as_its_kind(replay(alone, configuration={"tiers": {}}))
        self.assertFalse(any("Blocks" in figure["title"] for figure in drawn["figures"]))

    def test_replay(self):
        rows = [run(policy, seed, mean + seed / 100, compute_s_mean=mean / 2,
                    blocked_io_s_mean=mean / 4, wait_s_mean=mean / 4, bound_cost_s_per_request=0.1,
                    hit_token_ratio={"total": 0.5, "dram": 0.3, "ssd": 0.2})
                for seed in (1, 2) for policy, mean in (("utility", 0.5), ("lru", 1.0),
                                                        ("oracle", 0.25))]
        drawn = self.drawn_as_its_kind(replay(rows, configuration={"tiers": {}}))
        titles = [figure["title"] for figure in drawn["figures"]]
        self.assertEqual(len(titles), 4)
        self.assertIn("bound 100 ms", drawn["figures"][0]["text"])
        self.assertIn("lru, median", drawn["figures"][3]["text"])
        self.assertIn("equal", drawn["figures"][3]["text"])
        for figure in drawn["figures"]:
            for policy, colour in (("utility", "#2f6fde"), ("lru", "#e07b1a")):
                self.assertEqual(figure["colours"].get(policy, colour), colour, figure["title"])

    def test_compare(self):
        drawn = self.drawn_as_its_kind({
            "schema": "kvterrace-compare-1", "configuration": {},
            "baselines": [compare_row("lru raw", "win", 0.8)],
            "footprint": [compare_row("a very long name of a variant that no screen has room for "
                                      "beside it", "lose", 1.3)]})
        self.assertEqual(len(drawn["figures"]), 2)
        self.assertIn("0.800 [0.790, 0.810]", drawn["figures"][0]["text"])

    def test_loop(self):
        rows = [loop_run(name, mean, quality, seed) for seed in (1, 2) for name, mean, quality in
                (("lru", 2.0, 1.0), ("lru+kivi-4", 1.0, 0.9), ("lru+mix", 1.1, 0.95),
                 ("adaptcache", 0.9, 0.93), ("utility", 0.8, 0.97), ("none", 3.0, 1.0))]
        rows[-1].update(forms=[], hits={"total": 0, "hbm": 0, "dram": 0, "ssd": 0})
        drawn = self.drawn_as_its_kind(loop(rows))
        self.assertEqual([figure["title"] for figure in drawn["figures"]],
                         ["Mean time to first token, measured", "Answers beside time",
                          "Requests served from the store, by tier",
                          "Loss by variant: measured, and predicted (hollow)"])
        self.assertEqual(len(set(drawn["figures"][0]["colours"].values())), 6)

    def test_size(self):
        def cell(dram, ssd, policy, mean, **more):
            return {"cell": f"{dram} + {ssd}", "policy": policy, "dram_bytes": dram << 30,
                    "ssd_bytes": ssd, "ttft_s_mean": mean, "ttft_s_p99": 9 * mean, "steady": True,
                    "hit_token_ratio": 0.5, "gpu_hours_per_day": 20 * mean,
                    "cost_per_month": {"dram": 1, "ssd": 2, "gpu": 3, "total": 123456}, **more}
        cells = [cell(0, 0, "none", 2.0, steady=False), cell(64, 0, "utility", 1.5),
                 cell(64, 4e12, "utility", 0.5, advised=True), cell(64, 4e12, "lru", 0.6),
                 cell(128, 4e12, "utility", 0.4), cell(128, 0, "utility", 1.2)]
        document = {"schema": "kvterrace-size-1", "pays": True, "verdict": ["Buy a.", "b", "c"],
                    "saved_over": {"none": {"gpu_hours_per_day": {"low": 1}}}, "cells": cells,
                    "assumptions": [{"option": "--gpu", "assumed": "a GPU"}]}
        drawn = self.drawn_as_its_kind(document)
        self.assertEqual(len(drawn["figures"]), 2)
        self.assertIn("without a cache 2.00 s", drawn["figures"][0]["text"])
        self.assertIn("without a cache 18.0 s", drawn["figures"][1]["text"])
        self.assertIn("$123,456", drawn["tables"][0])
        self.assertIn("advised", drawn["tables"][0])
        self.assertIn("--gpu", drawn["tables"][1])
        self.assertEqual(self.states(document)[0][0], ("ahead", "Buy a."))
        for change, state in (({"pays": False}, "behind"), ({"saved_over": None}, "note")):
            self.assertEqual(self.states({**document, **change})[0][0][0], state)
        sentences, following = self.states({**document, "interrupted": True})
        self.assertEqual(sentences[-1][0], "warning")
        self.assertIn("to its end", following)

    def test_grid_and_live(self):
        cell = {"cell": "turns8-zipf0.9-cap200-ssd14", "family": "sessions", "best_rival": "lru",
                "bound": 1.0, "ratio": 0.9, "ratio_low": 0.8, "ratio_high": 1.0}
        rows = [{"cell": cell["cell"], "policy": policy, "ttft_s_mean": mean, "ratio_to_best": mean}
                for policy, mean in (("utility", 1.8), ("lru", 2.0))]
        drawn = self.drawn_as_its_kind(
            {"schema": "kvterrace-bench-grid-1", "cells": [cell], "rows": rows},
            {"schema": "kvterrace-bench-live-1", "totals": {"ratio_allowed": 0.1},
             "rows": [{"setting": "s", "policy": "lru", "ratio": 1.2, "rank_live": 1,
                       "rank_sim": 2, "live": {"ttft_s": 1}, "sim": {"ttft_s": 2}}]})
        self.assertEqual([figure["title"] for figure in drawn["figures"]],
                         ["sessions: utility beside the best rival of each cell",
                          "sessions: distance from the bound",
                          "s: the store beside the simulator"])
        self.assertIn("asked: at most 1.02", drawn["figures"][0]["text"])
        self.assertIn("1.800", drawn["figures"][1]["text"])
        self.assertIn("lru (1, 2)", drawn["figures"][2]["text"])

    def test_measurements(self):
        curve = {"name": "planes:k4v4,g64", "variant": "planes:k4v4,g64", "source": "sample",
                 "bits_per_element": 4.5, "loss_mean": 0.01, "loss_low": 0.005, "loss_high": 0.02,
                 "attention_error": 0.1}
        speed = {"variant": "raw", "scope": "record", "threads": 1, "isa": "avx2",
                 "direction": "decode", "bytes_per_s": 1e9}
        point = {"kind": "read", "request_bytes": 4096, "depth": 1, "bytes_per_s": 1e9}
        self.drawn_as_its_kind(
            {"schema": "kvterrace-bench-codecs-1", "losses": [curve], "results": [speed],
             "memcpy_bytes_per_s": 1e10},
            {"schema": "kvterrace-profile-quality-1", "sets": [{"variants": [curve]}]},
            {"schema": "kvterrace-bench-stripe-1", "results": [
                {"layout": "equal", "object_bytes": 1 << 20, "read_ratio": 0.9,
                 "write_ratio": 0.8}]},
            {"schema": "kvterrace-profile-2", "devices": [
                {"device": "d", "tier": "ssd", "read": {"bytes_per_s": 1e9},
                 "points": [point, dict(point, request_bytes=1 << 20)]}],
             "load": [{"tokens": [1, 2], "token_bytes": 1e5, "loads": [
                 {"device": "d", "seconds": [1, 2]}], "prefills": [
                     {"prefill": "p", "seconds": [2, 4]}]}],
             "codecs": [{"name": "raw", "source": "sample", "threads": 1, "best": True,
                         "stored_share": 1.0, "decode_bytes_per_s": 1e9}],
             "quality_sets": [{"model": "m", "class": "c", "curves": [curve]}]})

    def test_kinds_that_are_not_known(self):
        drawn = self.draw({"schema": "kvterrace-new-1", "rows": [
            {"name": "a", "load_s": 1.5, "load_s_low": 1, "load_s_high": 2, "flag": True},
            {"name": "b", "load_s": 3, "more": [1, 2]}], "inner": {"deep": {"x": 1}}})
        self.assertEqual([figure["title"] for figure in drawn["figures"]], ["rows: load"])
        self.assertIn("1.50 s [1.00 s, 2.00 s]", drawn["figures"][0]["text"])
        self.assertIn("1, 2", drawn["tables"][0])

    def test_what_is_not_what_it_should_be(self):
        """Parts of another type are left out, wherever they stand."""
        keys = ("results", "configuration", "workload", "baselines", "mixes", "losses", "checks",
                "sources", "drives", "rows", "devices", "break_even", "load", "codecs",
                "runs", "quality_sets", "calibrations", "learned", "prefill", "sets", "cells",
                "totals", "verdict", "saved_over", "assumptions")
        documents = [{"schema": f"kvterrace-{kind}-1", **{key: wrong for key in keys}}
                     for wrong in (None, 7, "x", [], {}, [[]], [None], [{}], [{"a": None}], True)
                     for kind in ("replay", "size", "compare", "loop", "profile", "bench-codecs",
                                  "bench-stripe", "bench-policy", "bench-grid",
                                  "bench-live", "profile-quality", "other")]
        self.draw(*documents)
        rows = [run(NASTY, 1, 1.0), run("utility", 1, 0.5)]
        self.draw(replay(rows, configuration={"tiers": {NASTY: {"devices": 1}}}))


if __name__ == "__main__":
    unittest.main()
