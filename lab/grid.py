#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The grid: many workloads in virtual time, the engine with its defaults beside every policy that
it would replace, all with the same variants. Says for each cell the ratio to its best rival, paired
seed by seed with its 95 % interval, and the bound that no policy can pass.

    lab/grid.py --quick
    lab/grid.py --json > grid.json && kvterrace report grid.json -o grid.html

A cell is a workload, a capacity, its devices and the variants that all policies may use. A lossy
cell is judged by service seconds and losses: alpha is such that so many percent of the answers are
worth a mean prefill. Half of
the cells of every family are hidden: nobody looks at them while the engine is being tuned. Each
replay is one `kvterrace replay --json`; a job is one seed of one cell, and jobs run side by side.
An interruption prints the cells that were finished and exits 130.
"""
import argparse
import collections
import concurrent.futures
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SCHEMA = "kvterrace-bench-grid-1"
OURS = "utility"
# The first ones store one variant and are tried with every variant of a cell; the others choose.
FIXED = ["lru", "lru-leaf", "gdsf", "s3fifo", "w-tinylfu", "pensieve"]
CHOOSING = ["none", "adaptcache", OURS]
LIMIT = 1.02  # a cell is lost when its interval lies above it
ROOM = 1.05  # a cell has room when its best rival lies so far above the bound
WORST = 5
HIDDEN_SEED = 20261122  # drawn once, before the engine was tuned on any cell; it stays
MASK = (1 << 64) - 1
BESIDE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "build",
                      "kvterrace")
LIGHT, HEAVY = 0.3, 0.8
# A fifth of the bytes is DRAM where there is an SSD: AdaptCache's host has 100 of 500 GB.
DRAM_SHARE = 0.2
# Raw entries cost nothing to code; lossless is as in profiles/ladder-codec-trial.json.
LADDER = [
    {"variant": "raw", "bits": 16, "loss": 0, "loss_upper": 0, "encode_bytes_per_s": 1e15,
     "decode_bytes_per_s": 1e15, "source": "exact"},
    {"variant": "lossless", "bits": 10.6, "loss": 0, "loss_upper": 0, "encode_bytes_per_s": 1.3e9,
     "decode_bytes_per_s": 3.0e9, "source": "exact"}]
# What policies of one variant store in a lossy cell, and the factors on alpha that the greedy
# tries.
LOSSY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "profiles",
                     "ladder-codec-trial.json")
LOSSY_FORMS = ["raw", "lossless", "planes:k8v8,g64", "planes:k6v6,g64", "planes:k4v4,g64"]
ALPHAS = {"alpha/4": 0.25, "alpha": 1.0, "4 alpha": 4.0}
# The cost of a job of each family beside one of generated sessions, measured; for the budget alone.
COST = {"long": 3.0, "toolagent": 0.5, "conversation": 2.0, "agentic": 20.0, "lossy": 3.0,
        "small": 3.0}
# File, requests and sessions of a draw: all of them and those of --quick, None: as many as there
# are. Conversations of the agentic trace begin every five minutes: they last an hour, so a dozen
# are open at a time.
TRACES = {"conversation": ("mooncake_conversation.jsonl.zst", (3000, 1000), (None, None)),
          "toolagent": ("mooncake_toolagent_first1000.jsonl.zst", (None, None), (None, None)),
          "agentic": ("agentic_coding.jsonl.zst", (None, None), (8, 3))}
CONVERSATIONS_PER_S = 1 / 300
# 97.5 % points of Student's t. Beyond the table the last one is a little too wide.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
           2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
           2.060, 2.056, 2.052, 2.048, 2.045, 2.042]

# ssd: GB/s, 0: all capacity is DRAM; capacity: percent of the bytes of all distinct blocks, raw;
# load: of the servers in the busiest tenth of the span, were everything computed; strength: trades
# a second of drift, share of the requests of a scan, sessions a second of a crowd; worth: percent
# of answers that are worth a mean prefill, 0 where no variant is lossy; dram: share of the
# capacity; source: a trace, None: generated; requests: of a generated cell, 0: as all others.
Cell = collections.namedtuple("Cell", "name family turns zipf capacity ssd lossless load quick "
                              "strength worth dram source requests",
                              defaults=(0, DRAM_SHARE, None, 0))


def name_devices(ssd):
    return f"ssd{ssd:g}" if ssd else "dram"


def session_cells():
    """A quarter of the full product of four turns, exponents, capacities and kinds of devices: with
    the levels numbered 0 to 3, devices = turns xor exponent xor capacity. Any three of the four
    factors then meet in all 64 ways, once each, so no pair is confused with another. Variants and
    load are spread in the same manner: a fifth column over the field of four elements, cut into two
    bits. The cells of --quick are a sixteenth of the product, in which any two factors meet in all
    16 ways: those where the fifth column is 0."""
    twice, thrice = (0, 2, 3, 1), (0, 3, 1, 2)  # products in that field
    for t, turns in enumerate((1, 3, 8, 16)):
        for z, zipf in enumerate((0.0, 0.6, 0.9, 1.2)):
            for c, percent in enumerate((2, 20, 80, 200)):
                ssd, fifth = (0.0, 0.5, 3.0, 14.0)[t ^ z ^ c], t ^ twice[z] ^ thrice[c]
                yield Cell(f"turns{turns}-zipf{zipf:g}-cap{percent}-{name_devices(ssd)}",
                           "sessions", turns, zipf, percent, ssd, bool(fifth & 1),
                           HEAVY if fifth & 2 else LIGHT, fifth == 0, 0.0)


def family_cells(family, *rows):
    """A row: turns, exponent, capacity, SSD, lossless, load, quick, strength."""
    for turns, zipf, percent, ssd, lossless, load, quick, strength in rows:
        workload = f"{strength:g}" if strength else ""
        workload += f"-turns{turns}-zipf{zipf:g}" if turns else ""
        yield Cell(f"{family}{workload}-cap{percent}-{name_devices(ssd)}", family, turns, zipf,
                   percent, ssd, lossless, load, quick, strength,
                   source=family if family in TRACES else None)


def lossy_cells():
    """What other families lack: lossy ladders, SSDs smaller than the DRAM, cold starts."""
    for source, turns, zipf in ((None, 3, 0.9), (None, 8, 0.6), ("conversation", 0, 0.0),
                                ("toolagent", 0, 0.0)):
        begin = source or f"turns{turns}-zipf{zipf:g}"
        for ssd in (0.0, 3.0, 14.0):
            for worth in (0.2, 1, 5):
                name = f"lossy{worth:g}-{begin}-cap20-{name_devices(ssd)}"
                yield Cell(name, "lossy", turns, zipf, 20, ssd, False, LIGHT,
                           worth == 1 and ssd == 3.0, 0.0, worth=worth, source=source)
        for worth in (0, 1):
            yield Cell(f"small{worth:g}-{begin}-cap20-ssd14", "small", turns, zipf, 20, 14.0,
                       not worth, LIGHT, not source and worth == 1, 0.0, worth=worth, dram=0.75,
                       source=source)
    for turns, zipf in ((1, 0.9), (3, 0.9), (8, 0.6), (16, 0.0)):
        yield Cell(f"cold-turns{turns}-zipf{zipf:g}-cap20-ssd3", "cold", turns, zipf, 20, 3.0, True,
                   LIGHT, turns == 3, 0.0, requests=400)


CELLS = [
    *session_cells(),
    *family_cells("long",  # contexts of 100,000 tokens
                  (1, 0.9, 20, 0.5, False, LIGHT, False, 0.0),
                  (3, 0.9, 20, 0.5, True, LIGHT, True, 0.0),
                  (8, 0.9, 20, 0.5, False, HEAVY, False, 0.0),
                  (1, 0.9, 80, 0.5, True, HEAVY, False, 0.0),
                  (3, 0.9, 80, 0.5, False, LIGHT, False, 0.0),
                  (3, 0.9, 20, 3.0, True, LIGHT, False, 0.0)),
    *family_cells("drift",  # popularity that drifts
                  (1, 0.9, 20, 0.0, False, LIGHT, False, 0.02),
                  (1, 0.9, 20, 3.0, True, LIGHT, False, 0.2),
                  (3, 0.9, 20, 0.0, False, HEAVY, True, 0.2),
                  (3, 0.9, 20, 3.0, True, HEAVY, False, 0.02),
                  (1, 1.2, 20, 0.5, False, LIGHT, False, 0.2),
                  (3, 1.2, 2, 0.0, True, LIGHT, False, 0.2)),
    *family_cells("scan",  # scans that wash through
                  (1, 0.9, 20, 0.0, False, LIGHT, True, 0.5),
                  (3, 0.9, 20, 3.0, True, LIGHT, False, 0.5),
                  (3, 0.9, 80, 0.0, False, HEAVY, False, 0.2),
                  (1, 0.9, 20, 0.5, True, HEAVY, False, 0.2)),
    *family_cells("crowd",  # flash crowds
                  (1, 0.9, 20, 0.0, False, LIGHT, False, 5.0),
                  (3, 0.6, 20, 3.0, True, LIGHT, True, 5.0),
                  (3, 0.9, 2, 0.0, False, HEAVY, False, 5.0),
                  (1, 0.6, 20, 0.5, True, HEAVY, False, 2.0)),
    *family_cells("conversation",
                  (0, 0.0, 2, 0.0, False, LIGHT, False, 0.0),
                  (0, 0.0, 20, 0.0, True, LIGHT, True, 0.0),
                  (0, 0.0, 20, 0.5, False, HEAVY, False, 0.0),
                  (0, 0.0, 20, 3.0, True, HEAVY, False, 0.0),
                  (0, 0.0, 20, 14.0, False, LIGHT, False, 0.0),
                  (0, 0.0, 80, 3.0, True, LIGHT, False, 0.0)),
    *family_cells("toolagent",
                  (0, 0.0, 20, 0.0, False, LIGHT, False, 0.0),
                  (0, 0.0, 20, 3.0, True, LIGHT, True, 0.0),
                  (0, 0.0, 2, 14.0, False, HEAVY, False, 0.0),
                  (0, 0.0, 80, 0.5, True, HEAVY, False, 0.0)),
    *family_cells("agentic",
                  (0, 0.0, 20, 0.0, False, LIGHT, False, 0.0),
                  (0, 0.0, 20, 3.0, True, LIGHT, False, 0.0),
                  (0, 0.0, 2, 14.0, False, HEAVY, True, 0.0),
                  (0, 0.0, 80, 0.5, True, HEAVY, False, 0.0)),
    *lossy_cells(),
]


def draw_number(name):
    """FNV-1a of the name and the seed, mixed as by splitmix64."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & MASK
    value = (value ^ HIDDEN_SEED) + 0x9E3779B97F4A7C15 & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def hidden_names():
    """Of every family the half with the smaller draws."""
    hidden = set()
    for family in {cell.family for cell in CELLS}:
        names = sorted((cell.name for cell in CELLS if cell.family == family), key=draw_number)
        hidden.update(names[:len(names) // 2])
    return hidden


HIDDEN = hidden_names()


def half_of(cell):
    return "hidden" if cell.name in HIDDEN else "tuning"


# ---- what a cell replays ----


def workload_settings(cell, quick):
    """The defaults of [workload], with the counts of the acceptance runs."""
    requests = cell.requests or (1000 if quick else 3000)
    contexts = cell.requests // 6 or (170 if quick else 500)
    settings = {"requests": requests, "contexts": contexts,
                "rate": 1.0, "zipf": cell.zipf, "turns_mean": cell.turns}
    if cell.family == "long":
        settings.update(rate=0.3, requests=600 if quick else 2000, contexts=30 if quick else 100,
                        tokens_median=100000, tokens_sigma=0.3)
    if cell.family == "drift":
        settings["drift"] = cell.strength
    if cell.family == "scan":
        beside = cell.strength / (1 - cell.strength) * settings["rate"]
        settings.update(scan_rate=2 * beside, scan_time="300s", scan_period="600s")
    if cell.family == "crowd":
        settings.update(crowd_rate=cell.strength, crowd_time="60s", crowd_period="600s")
    return {f"workload.{name}": value for name, value in settings.items()}


def tier_settings(cell, footprint_bytes):
    capacity = footprint_bytes * cell.capacity / 100
    dram = cell.dram * capacity if cell.ssd else capacity
    settings = {"tier.dram.capacity": int(dram)}
    if cell.ssd:
        speed = int(cell.ssd * 1e9)
        settings.update({"tier.ssd.capacity": int(capacity - dram),
                         "tier.ssd.read_bandwidth": speed, "tier.ssd.write_bandwidth": speed})
    return settings


class Failed(Exception):
    """A replay failed; the message says why."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


class Processes:
    """Runs `kvterrace` on several threads, and ends what runs when it is asked to."""

    def __init__(self):
        self.lock, self.running, self.stopped = threading.RLock(), set(), False

    def execute(self, command):
        """The JSON document that a command prints."""
        with self.lock:
            if self.stopped:
                raise Failed("interrupted")
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True)
            self.running.add(process)
        output, errors = process.communicate()
        with self.lock:
            self.running.discard(process)
        if self.stopped:
            raise Failed("interrupted")
        if process.returncode != 0:
            raise Failed(errors.strip() or f"exit {process.returncode}", process.returncode)
        return json.loads(output)

    def stop(self):
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()


class Replays(Processes):
    """The replays of cells."""

    def __init__(self, options, folder):
        super().__init__()
        self.options, self.folder = options, folder
        self.ladder = os.path.join(folder, "ladder.json")
        with open(self.ladder, "w", encoding="utf-8") as file:
            json.dump({"schema": "kvterrace-profile-export-1", "tables": {"ladder": LADDER}}, file)

    def trace(self, cell):
        """The path of the cell's trace; None: its workload is generated."""
        if cell.source is None:
            return None
        return os.path.join(self.options.data or "", "traces", TRACES[cell.source][0])

    def run(self, cell, seed, policies, settings, variant=None):
        options, quick = self.options, self.options.quick
        settings = {"replay.seed": seed, **settings}
        command = [options.kvterrace, "replay", "--json", "--quiet", "--policy", ",".join(policies)]
        if self.trace(cell):
            requests, sessions = (part[quick] for part in TRACES[cell.source][1:])
            command += ["--trace", self.trace(cell), "--draw"]
            command += ["--sessions", str(sessions)] if sessions else []
            if requests:
                settings["replay.limit"] = requests
            if cell.source == "agentic":
                settings["workload.rate"] = CONVERSATIONS_PER_S
        else:
            command += ["--workload", "poisson"]
            settings.update(workload_settings(cell, quick))
        command += ["--variant", variant] if variant else []
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        try:
            return self.execute(command)
        except Failed as error:
            raise Failed(f"{cell.name}: {error}" if not self.stopped else str(error)) from error

    def job(self, cell, seed):
        """One seed of a cell: the same requests for all policies, beside their bound."""
        empty = self.run(cell, seed, ["none"], {"replay.bounds": "no"})
        footprint = empty["results"][0]["footprint_bytes"]
        peak = empty["workload"]["computed_load_peak"]
        servers = min(max(math.ceil(peak / cell.load), 1), 65536)
        site = {**tier_settings(cell, footprint), "replay.servers": servers}
        alpha = 0.0
        if cell.worth:
            alpha = empty["results"][0]["service_ttft_s_mean"] / (cell.worth / 100)
            site.update({"replay.ladder": LOSSY, "store.loss_limit": 1, "store.alpha": alpha})
        elif cell.lossless:
            site["replay.ladder"] = self.ladder
        free = {**site, "replay.bounds": "no"}
        document = self.run(cell, seed, [OURS], free if cell.worth else site)
        ours, facts = document["results"][0], {"version": document["version"]}
        samples = {(OURS, "raw"): ours}
        told = self.run(cell, seed, ["oracle"], free)["results"][0]
        fixed = {name: value for name, value in free.items() if name != "store.alpha"}
        forms = LOSSY_FORMS if cell.worth else ["raw", "lossless"] if cell.lossless else ["raw"]
        for form in forms:
            found = self.run(cell, seed, FIXED, fixed, form if form != "raw" else None)
            samples.update({(result["policy"], form): result for result in found["results"]})
        tries = {name: {**free, "store.alpha": alpha * factor} for name, factor in ALPHAS.items()}
        for name, settings in (tries if cell.worth else {"raw": free}).items():
            found = self.run(cell, seed, ["none", "adaptcache"], settings)
            samples.update({(result["policy"], name): result for result in found["results"]})
        told_s = sample_of(told, alpha)["cost_s"]
        facts.update(told_s=told_s, footprint_bytes=footprint, servers=servers,
                     requests=ours["requests"])
        if cell.worth:
            facts.update(bound_s=told_s, kept_bound_s=told_s)
        else:
            computed = ours["recompute_s_per_request"]
            facts.update(bound_s=computed - ours["bound_moving_saved_s_per_request"],
                         kept_bound_s=computed - ours["bound_saved_s_per_request"])
        return facts, {key: sample_of(result, alpha) for key, result in samples.items()}


def sample_of(result, alpha=0.0):
    """One replay, cut down to what the report needs. cost_s is what a cell is judged by: the mean
    TTFT, or with lossy variants the service seconds and what the losses are worth."""
    requests = max(result["requests"], 1)
    tiers = ("dram", "ssd")
    lossy = result["service_ttft_s_mean"] + alpha * (1 - (result.get("quality_mean") or 1.0))
    return {"cost_s": lossy if alpha else result["ttft_s_mean"],
            "ttft_s": result["ttft_s_mean"], "wait_s": result["wait_s_mean"],
            "service_s": result["service_ttft_s_mean"], "loaded": result["used_token_ratio"],
            **{f"found_{tier}": result["hit_token_ratio"][tier] for tier in tiers},
            **{f"read_bytes_{tier}": result["bytes_read"][tier] for tier in tiers},
            **{f"written_bytes_{tier}": result["bytes_written"][tier] for tier in tiers},
            "puts": result["puts"] / requests, "refused": result["refused"] / requests,
            "puts_busy": result["puts_busy"] / requests, "evicted": result["evictions"] / requests,
            "aborted": result["moves_aborted"] / requests,
            "regret_counters_s": result.get("regret_counters_s"),
            "regret_foresight_s": result.get("regret_foresight_s")}


# ---- figures ----


def mean_of(values):
    """None where one of them is missing: the servers were asked for more than they have."""
    return None if None in values else sum(values) / len(values)


def interval_of(values):
    """Mean and 95 % interval by Student's t; one value has no interval."""
    mean, count = sum(values) / len(values), len(values)
    if count < 2:
        return mean, None, None
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)
    error = deviation * STUDENT[min(count - 1, len(STUDENT)) - 1]
    return mean, mean - error, mean + error


def order_of(row):
    """Rows in this order are better first: one that has a mean, then the smaller."""
    mean = row["mean"]["cost_s"]
    return (mean is None, mean or 0)


def judge(jobs):
    """Of the facts and samples of all seeds of a cell: rows, one for each policy in its better
    variant, the best rival, and the ratios to it, seed by seed."""
    rows = {}
    for key in jobs[0][1]:
        samples = [samples[key] for _, samples in jobs]
        row = {"policy": key[0], "form": key[1], "samples": samples,
               "mean": {name: mean_of([one[name] for one in samples]) for name in samples[0]}}
        if key[0] not in rows or order_of(row) < order_of(rows[key[0]]):
            rows[key[0]] = row
    best = min((row for name, row in rows.items() if name != OURS), key=order_of)
    for row in rows.values():
        known = row["mean"]["cost_s"] is not None and best["mean"]["cost_s"] is not None
        row["ratio"] = interval_of([mine["cost_s"] / other["cost_s"] for mine, other in
                                    zip(row["samples"], best["samples"])]) if known else (None,) * 3
    return {"rows": rows, "best": best, "ours": rows[OURS], "facts": jobs[0][0],
            "told": mean_of([facts["told_s"] for facts, _ in jobs]),
            "bound": mean_of([facts["bound_s"] for facts, _ in jobs]),
            "kept_bound": mean_of([facts["kept_bound_s"] for facts, _ in jobs])}


def has_room(judged):
    mean = judged["best"]["mean"]["cost_s"]
    return mean is not None and mean > ROOM * judged["bound"]


def share_of(judged):
    """Of what the engine gains over LRU when it is told the future, the share that it gains untold;
    None where that is less than 5 %."""
    if "lru" not in judged["rows"]:
        return None
    lru, ours = (judged["rows"][name]["mean"]["cost_s"] for name in ("lru", OURS))
    told = judged["told"]
    if None in (lru, ours, told) or lru <= ROOM * told:
        return None
    return (lru - ours) / (lru - told)


def badness_of(judged):
    """How bad a cell is for us; one in which we alone have no mean is the worst."""
    ratio = judged["ours"]["ratio"][0]
    if ratio is not None:
        return ratio
    return math.inf if judged["best"]["mean"]["cost_s"] is not None else 0


def explain(judged):
    """One sentence: where the engine's seconds go that the best rival's do not."""
    ours, best = judged["ours"]["mean"], judged["best"]["mean"]
    if ours["ttft_s"] is None:
        return "the servers are asked for more than they have"
    wait = ours["wait_s"] - (best["wait_s"] or 0)
    service = ours["service_s"] - best["service_s"]
    if best["cost_s"] is None or ours["cost_s"] <= best["cost_s"]:
        cause = "no loss"
    elif wait > service and service <= 0:
        cause = "its requests wait longer"
    elif ours["loaded"] < best["loaded"] - 0.01:
        cause = "it loads fewer tokens"
    elif ours["found_dram"] < best["found_dram"] - 0.01:
        cause = "it finds fewer tokens in DRAM"
    else:
        cause = "its loads take longer"

    def both(name, factor=1, digits=2):
        return " against ".join(f"{one[name] * factor:.{digits}f}" for one in (ours, best)
                                if one[name] is not None)

    gigabytes = 1e-9 / max(judged["facts"]["requests"], 1)
    return (f"{cause}: loaded {both('loaded', 100, 1)} % of the tokens, found in DRAM "
            f"{both('found_dram', 100, 1)} %, in SSD {both('found_ssd', 100, 1)} %; waits "
            f"{both('wait_s', 1, 3)} s; a request writes "
            f"{both('written_bytes_dram', gigabytes, 3)} GB to DRAM and "
            f"{both('written_bytes_ssd', gigabytes, 3)} GB to SSD, refuses "
            f"{both('refused')} puts, evicts {both('evicted')}; what it holds is "
            f"{ours['regret_counters_s'] or 0:.3f} s a request from the best at its own rates and "
            f"{ours['regret_foresight_s'] or 0:.3f} s from the best for the uses that came")


def sum_up(count, skipped, finished):
    """The totals over the judged cells, which are pairs of a cell and what judge says."""
    lost = sum(badness_of(one) == math.inf or (one["ours"]["ratio"][1] or 0) > LIMIT
               for _, one in finished)
    ratios = [one["ours"]["ratio"][0] for _, one in finished
              if has_room(one) and one["ours"]["ratio"][0] is not None]
    shares = sorted(share for share in (share_of(one) for _, one in finished) if share is not None)
    worst = sorted(finished, key=lambda pair: -badness_of(pair[1]))[:WORST]
    return {"cells": count, "skipped": skipped, "unfinished": count - skipped - len(finished),
            "intervals_above_1_02": lost, "cells_with_room": len(ratios),
            "geometric_mean_with_room":
                math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
            "share_of_told_median": shares[len(shares) // 2] if shares else None,
            "share_of_told_least": shares[0] if shares else None,
            "worst": [{"cell": cell.name, "best_rival": one["best"]["policy"],
                       "ratio": one["ours"]["ratio"][0], "why": explain(one)}
                      for cell, one in worst]}


# ---- the report ----


def form_of(row, cell):
    if cell.worth:
        return "none" if row["policy"] == "none" else row["form"]
    if row["policy"] == "none" or row["form"] == "lossless":
        return "none" if row["policy"] == "none" else "lossless"
    return "raw, lossless" if row["policy"] in CHOOSING and cell.lossless else "raw"


def describe(cell):
    return {"cell": cell.name, "family": cell.family, "half": half_of(cell),
            "turns_mean": cell.turns, "zipf": cell.zipf, "capacity_percent": cell.capacity,
            "ssd_gb_per_s": cell.ssd, "forms": ["raw", "lossless"] if cell.lossless else ["raw"],
            "load": cell.load, "strength": cell.strength, "worth_percent": cell.worth,
            "dram_share": cell.dram, "quick": cell.quick}


def describe_judged(cell, one):
    ratio, best, facts = one["ours"]["ratio"], one["best"], one["facts"]
    return {"best_rival": best["policy"], "best_form": form_of(best, cell),
            "rival_ttft_s": best["mean"]["ttft_s"], "utility_ttft_s": one["ours"]["mean"]["ttft_s"],
            "rival_cost_s": best["mean"]["cost_s"], "utility_cost_s": one["ours"]["mean"]["cost_s"],
            "told_cost_s": one["told"], "share_of_told": share_of(one),
            "ratio": ratio[0], "ratio_low": ratio[1], "ratio_high": ratio[2],
            "room": has_room(one), "bound": one["bound"],
            "bound_without_moves": one["kept_bound"], "footprint_bytes": facts["footprint_bytes"],
            "servers": facts["servers"], "requests": facts["requests"]}


def describe_row(cell, row, seeds, bound):
    mean, ratio = dict(row["mean"]), row["ratio"]
    names = {"ttft_s": "ttft_s_mean", "wait_s": "wait_s_mean", "service_s": "service_s_mean"}
    return {"cell": cell.name, "half": half_of(cell), "policy": row["policy"],
            "form": form_of(row, cell), "seeds": seeds,
            **{names.get(name, name): value for name, value in mean.items()},
            "ratio_to_best": ratio[0], "ratio_low": ratio[1], "ratio_high": ratio[2],
            "bound": bound}


def print_table(rows, columns):
    def text(value):
        if isinstance(value, float):
            return f"{value:.4g}"
        return "-" if value is None else str(value)

    table = [columns] + [[text(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def print_document(document, as_json):
    if as_json:
        print(json.dumps(document, indent=2))
        return
    if "totals" not in document:
        print_table(document["cells"], ["cell", "family", "half", "quick"])
        return
    print_table(document["cells"], ["cell", "half", "best_rival", "rival_cost_s", "utility_cost_s",
                                    "ratio", "ratio_low", "ratio_high", "bound", "share_of_told"])
    totals = document["totals"]
    print()
    print_table([totals], ["cells", "skipped", "unfinished", "intervals_above_1_02",
                           "cells_with_room", "geometric_mean_with_room", "share_of_told_median",
                           "share_of_told_least"])
    print()
    print_table(totals["worst"], ["cell", "ratio", "best_rival", "why"])
    print()
    print_table([document], ["repetitions", "half", "seconds"])


# ---- the run ----


def note(options, text):
    if not options.quiet:
        print(f"grid.py: {text}", file=sys.stderr, flush=True)


def skip_missing(options, cells, replays):
    """The cells whose trace is there, or that need none."""
    there = [cell for cell in cells
             if not replays.trace(cell) or options.data and os.path.exists(replays.trace(cell))]
    for family, (file, *_) in TRACES.items():
        skipped = sum(cell.source == family for cell in cells if cell not in there)
        why = "there is no" if options.data else "no folder of traces is known for"
        if skipped:
            note(options, f"{skipped} cells of {family} are skipped: {why} {file} (--data, "
                          "KVT_DATA_DIR)")
    return there


def run_jobs(options, replays, cells, seeds):
    """What the jobs of each cell gave, in order of seeds; of a cell that was not finished, None."""
    total = sum(COST.get(cell.family, 1.0) for cell in cells) * seeds
    found, done, tenths, begin, failure = {}, 0.0, 0, time.monotonic(), None
    executor = concurrent.futures.ThreadPoolExecutor(options.threads)
    waiting = {executor.submit(replays.job, cell, seed): (cell, seed)
               for cell in cells for seed in range(1, seeds + 1)}
    for future in concurrent.futures.as_completed(waiting):
        cell, seed = waiting[future]
        try:
            found[cell, seed] = future.result()
        except Failed as error:
            failure = failure or str(error)
            replays.stop()
            executor.shutdown(wait=False, cancel_futures=True)
            break
        if done == 0:
            minutes = (time.monotonic() - begin) / COST.get(cell.family, 1.0) * total / 60
            note(options, f"budget: {len(cells)} cells, about {minutes / options.threads:.1f} "
                          f"minutes on {options.threads} threads")
        done += COST.get(cell.family, 1.0)
        if int(done / total * 10) > tenths:
            tenths = int(done / total * 10)
            note(options, f"{tenths * 10} %: {cell.name}")
    executor.shutdown()
    jobs = {cell: [found.get((cell, seed)) for seed in range(1, seeds + 1)] for cell in cells}
    return {cell: judge(each) for cell, each in jobs.items() if None not in each}, failure


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true",
                        help="a quarter of the cells, smaller, with 3 seeds")
    parser.add_argument("--seeds", type=int, help="paired seeds of each cell, 1 to 100 (10)")
    parser.add_argument("--half", choices=["all", "tuning", "hidden"], default="all",
                        help="only this half of the cells; tuning must look at the half of that "
                        "name alone")
    parser.add_argument("--cell", help="only this cell")
    parser.add_argument("--list", action="store_true", help="list the cells and run none")
    parser.add_argument("--data", default=os.environ.get("KVT_DATA_DIR"),
                        help="where traces/ with the real traces is ($KVT_DATA_DIR); cells without "
                        "their trace are skipped")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 64),
                        help="replays at a time, 1 to 64 (one per processor)")
    parser.add_argument("--kvterrace", default=BESIDE, help="the program (build/kvterrace)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="no notes on the progress")
    options = parser.parse_args()
    if options.seeds is not None and not 1 <= options.seeds <= 100:
        parser.error("--seeds: 1 to 100")
    if not 1 <= options.threads <= 64:
        parser.error("--threads: 1 to 64")
    cells = [cell for cell in CELLS if options.half in ("all", half_of(cell)) and
             (cell.name == options.cell if options.cell else cell.quick or not options.quick)]
    if not cells:
        parser.error(f'no cell is named "{options.cell}" in this half: see --list')
    return options, cells


def run_grid(options, cells, folder):
    """Returns the document, and why it ended early or None."""
    seeds = options.seeds or (3 if options.quick else 10)
    begin = time.monotonic()
    replays = Replays(options, folder)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: replays.stop())
    there = skip_missing(options, cells, replays)
    judged, failure = run_jobs(options, replays, there, seeds)
    finished = [(cell, judged[cell]) for cell in cells if cell in judged]
    system = platform.uname()
    version = finished[0][1]["facts"]["version"] if finished else None
    return {
        "schema": SCHEMA, "version": version, "host": system.node, "kernel": system.release,
        "machine": system.machine,
        "cells": [{**describe(cell), "skipped": cell not in there, "finished": cell in judged,
                   **(describe_judged(cell, judged[cell]) if cell in judged else {})}
                  for cell in cells],
        "rows": [describe_row(cell, row, seeds, one["bound"])
                 for cell, one in finished for row in one["rows"].values()],
        "repetitions": seeds, "half": options.half, "quick": options.quick,
        "interrupted": len(finished) < len(there),
        "seconds": time.monotonic() - begin,
        "totals": sum_up(len(cells), len(cells) - len(there), finished)}, failure


def main():
    options, cells = parse()
    if options.list:
        print_document({"schema": "kvterrace-bench-grid-list-1",
                        "cells": [describe(cell) for cell in cells]}, options.json)
        return 0
    folder = tempfile.mkdtemp(prefix="kvterrace-grid-")
    try:
        document, failure = run_grid(options, cells, folder)
    finally:
        shutil.rmtree(folder)
    if failure not in (None, "interrupted"):
        print(f"grid.py: {failure}", file=sys.stderr)
        return 1
    print_document(document, options.json)
    if failure:
        print("grid.py: interrupted", file=sys.stderr)
    return 130 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
