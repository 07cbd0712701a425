#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard of examples/grafana: every metric and label that its expressions name is in the
text of a real store, which is the exposition format of Prometheus.

    test_tools_grafana.py COMMAND CLIENT
"""

import json
import os
import re
import signal
import subprocess
import sys
import unittest
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from command_case import CommandCase, command_line  # noqa: E402

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    text_string_to_metric_families = None

CLIENT = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else "run_client_entries"
DASHBOARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples",
                         "grafana", "kvterrace.json")
STORE = ("[store]\ncatalog = catalog.db\npolicy = lru\n[device.d0]\ntier = ssd\nbackend = file\n"
         "path = d0.bin\ncapacity = 64MiB\n[serve]\nsocket = s.sock\n")
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
OF_PROMETHEUS = {"instance", "job"}  # labels that it adds


def parse(text):
    """The samples of a text, by name: a list of (labels, value). Anything that is not of the format
    is a ValueError: a family without its help and type in front, a sample of another family, two
    equal samples, histograms that do not count up to their sum."""
    samples, seen, family, kind = {}, set(), None, None
    if not text.endswith("\n"):
        raise ValueError("no end of line")
    for line in text[:-1].split("\n"):
        if match := re.fullmatch(rf"# HELP ({NAME}) (\S.*)", line):
            if match[1] in seen:
                raise ValueError(f"again: {line}")
            family, kind = match[1], None
            seen.add(family)
        elif match := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line):
            if match[1] != family or kind is not None:
                raise ValueError(f"not behind its help: {line}")
            kind = match[2]
            if (kind == "counter") != family.endswith("_total"):
                raise ValueError(f"counters end in _total: {line}")
        elif match := re.fullmatch(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)", line):
            name, labels = match[1], dict((key, value) for key, value in
                                          re.findall(LABEL, match[2] or ""))
            tail = name[len(family):] if family and name.startswith(family) else None
            if tail not in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",)):
                raise ValueError(f"not of {family}: {line}")
            if any(labels == other for other, _ in samples.get(name, [])):
                raise ValueError(f"twice: {line}")
            samples.setdefault(name, []).append((labels, float(match[match.lastindex])))
        else:
            raise ValueError(f"no line of the format: {line}")
    for name, rows in samples.items():
        if name.endswith("_bucket"):
            counts = [value for _, value in rows]
            bounds = [float(labels["le"]) for labels, _ in rows]
            if counts != sorted(counts) or bounds != sorted(bounds) or bounds[-1] != float("inf"):
                raise ValueError(f"no histogram: {name}")
            if samples[name[:-7] + "_count"][0][1] != counts[-1]:
                raise ValueError(f"count of {name}")
    return samples


def expressions(node):
    """Every expression of a dashboard with its legend."""
    if isinstance(node, dict):
        if "expr" in node:
            yield node["expr"], node.get("legendFormat", "")
        if isinstance(node.get("query"), str) and "label_values" in node["query"]:
            yield node["query"], ""
        for part in node.values():
            yield from expressions(part)
    elif isinstance(node, list):
        for part in node:
            yield from expressions(part)


class GrafanaTest(CommandCase):
    def metrics(self):
        """The text of a store that has been used."""
        config = self.put("store.ini", STORE)
        server = subprocess.Popen(
            command_line("serve", "--config", config, "--metrics", "127.0.0.1:0"), cwd=self.folder,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        address = re.search(r"http://\S+/metrics", server.stdout.readline())[0]

        def client(what):
            subprocess.run([CLIENT, "s.sock", what, "1", "0", "20", "8192"], cwd=self.folder,
                           check=True, stdout=subprocess.DEVNULL)

        client("put")
        self.run_command("flush", "--config", config)
        client("get")
        with urllib.request.urlopen(address, timeout=60) as answer:
            self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            text = answer.read().decode()
        server.send_signal(signal.SIGTERM)
        server.communicate()
        self.assertEqual(server.returncode, 0)
        return text

    def test_dashboard(self):
        text = self.metrics()
        samples = parse(text)
        self.assertEqual(sum(value for _, value in samples["kvterrace_hits_total"]), 20)
        with open(DASHBOARD, encoding="utf-8") as file:
            dashboard = json.load(file)
        found = list(expressions(dashboard))
        self.assertGreater(len(found), 25)
        for expression, legend in found:
            with self.subTest(expression=expression):
                bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
                names = re.findall(r"\bkvterrace_\w+", bare)
                self.assertTrue(names)
                known = set(OF_PROMETHEUS)
                for name in names:
                    self.assertIn(name, samples)
                    for labels, _ in samples[name]:
                        known |= set(labels)
                asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", bare))
                for group in re.findall(r"\bby \(([^)]*)\)", bare):
                    asked |= set(re.findall(r"\w+", group))
                shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
                self.assertLessEqual(asked | shown, known)
                self.assertEqual(bare.count("("), bare.count(")"))
                self.assertEqual(bare.count("{"), bare.count("}"))
                for name in re.findall(r"rate\((kvterrace_\w+)", bare):
                    self.assertRegex(name, "_(total|bucket)$")
        places = [panel["id"] for panel in dashboard["panels"]]
        self.assertEqual(len(places), len(set(places)))
        taken = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24)
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                     for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(taken & cells, panel["title"])
            taken |= cells
        if text_string_to_metric_families is None:
            return
        theirs = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                theirs.setdefault(sample.name, []).append((sample.labels, sample.value))
        self.assertEqual(theirs, samples)

    def test_parser(self):
        """What the parser of this test refuses."""
        head = "# HELP a_total A.\n# TYPE a_total counter\n"
        self.assertEqual(parse(head + 'a_total{x="1\\"\\n",y=""} 3\n'),
                         {"a_total": [({"x": '1\\"\\n', "y": ""}, 3.0)]})
        for text in ("", head + "a_total 1", head + "b_total 1\n", "a_total 1\n",
                     head + "a_total 1\na_total 2\n", head + "a_total x\n", head + "a_total{} 1\n",
                     head + 'a_total{x=1} 1\n', head + 'a_total{x="1"}1\n', head + head,
                     head.replace("counter", "gauge"), head.replace("counter", "thing"),
                     head + "\n", "# TYPE a_total counter\na_total 1\n"):
            with self.assertRaises(ValueError, msg=text):
                parse(text)


if __name__ == "__main__":
    unittest.main()
