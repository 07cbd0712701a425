#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every policy beside the utility engine at equal or better quality, in virtual time: each baseline
with fixed variants of a ladder, and the best uniform mix of variants. Prints mean times to the
first token with every row that the engine does not win.

    lab/compare.py --trace trace.jsonl.zst --speeds 1,3,7 --set tier.dram.capacity=125GiB \\
        --set tier.ssd.capacity=500GiB --set replay.ladder=profiles/ladder-codec-trial.json
    lab/compare.py --json ... > compare.json && kvterrace report compare.json -o compare.html

Seeds S .. S+n-1 evaluate, the t behind them tune: no figure in a row comes from a run that had a
part in a choice. A seed is one workload (sessions of the trace drawn anew, or generated), and all
contenders see the same one, so differences are paired by seed. Each run is one `kvterrace replay
--json`. For each speed of the SSD:

  1. every baseline with every variant of rungs_of, and our grid at the main spread, on the tuning
     seeds; the best mix of every level and our grid at every spread
  2. for each of these, ours with the least mean at equal or better quality on every tuning seed;
     alpha is then halved towards the neighbour that was not good enough
  3. each choice again, among all that was tried for any contender; what was chosen, on the
     evaluation seeds; rows

A mix gives each tier one variant, or two of which each entry gets one by its hash; it is run with
the engine at alpha 0, which decides by seconds alone. Mixes are swept from coarse to fine:

  1. every variant in every tier, no tier larger ones than the tier above it: a demotion cannot make
     what is lost again
  2. per level of quality, pairs of one that is good enough and a faster one that is not, ordered by
     the mean that a line between them promises at the level; the first ones with three shares
     around the one that the line gives
  3. the best of these pairs again, its share halved between good enough and not

An interruption prints the rows that have two finished seeds and exits 130.
"""
import argparse
import collections
import concurrent.futures
import functools
import json
import math
import os
import random
import signal
import sys
import time

from grid import BESIDE, Failed, Processes, print_table

SCHEMA = "kvterrace-compare-1"
OURS = "utility"
# They store one variant, but for the first, which stores none, and the last, which chooses.
BASELINES = ["none", "lru", "lru-leaf", "fifo", "lru-twice", "lfu", "gdsf", "sieve", "s3fifo",
             "w-tinylfu", "pensieve", "adaptcache"]
CHOOSING = ("adaptcache", OURS)
# The engine's own knobs: alpha in seconds for a request's quality, with any variant and with the
# losses limited to each variant's.
ALPHAS = (0.3, 1, 2, 4, 8, 16, 32, 64, 256, 1000, 4000)
LIMITED_ALPHAS = (0.3, 2)
STEPS = 3  # of halving
PAIRS = 4
AROUND = (0.7, 0.9, 1.1)  # of the share that a line gives
LOSSES = (0, 0.001, 0.003, 0.01)  # of the levels at which mixes are compared
# Entry effects of 0.2-0.3 nats that repeat with r of 0.2-0.34 on one homogeneous workload, of
# 0.5-0.7 with 0.47-0.77 on mixed ones: the codec trial of profiles/ladder-codec-trial.json.
MAIN = (0.7, 0.6)
SPREADS = ((0, 0), (0.25, 0.3), MAIN, (1.2, 0.6))
QUICK_REQUESTS = 400
DRAWS = 4000
TIERS = ("hbm", "dram", "ssd")
KINDS = ("baselines", "mixes", "footprint")

# One configuration: everything that may differ between two runs on the same workload. role:
# baseline, ours or mix; rung: of fixed policies, a place on the ladder; speed and capacity: of the
# SSD, None and 0: as they are set; mix: by tier two places and the share of the second.
Setup = collections.namedtuple("Setup", "policy role rung alpha limit spread speed capacity mix",
                               defaults=(0, 10, 1, MAIN, None, 0, None))
Sample = collections.namedtuple("Sample", "ttft_s quality rho rho_peak")  # ttft_s None: no mean
Match = collections.namedtuple("Match", "kind against ours level")
Facts = collections.namedtuple("Facts", "document ladder tiers footprint")


class Interrupted(Exception):
    """The comparison ends between two runs."""


# ---- figures ----


def mean_of(values):
    return math.fsum(values) / len(values) if values else None


@functools.lru_cache(maxsize=None)
def draws_of(count):
    """Pairs with replacement; equal counts, equal draws."""
    generator = random.Random(0x636F6D70617265)
    return [generator.choices(range(count), k=count) for _ in range(DRAWS)]


def bootstrap(theirs, ours):
    """95 % intervals of the mean difference, theirs less ours, and of the ratio of the sums."""
    if not theirs:
        return [None, None], [None, None]
    sums = [(sum(theirs[i] for i in draw), sum(ours[i] for i in draw))
            for draw in draws_of(len(theirs))]
    differences = sorted((their - our) / len(theirs) for their, our in sums)
    ratios = sorted(our / their if their > 0 else 1 for their, our in sums)
    cut = DRAWS // 40
    return [[drawn[cut], drawn[-1 - cut]] for drawn in (differences, ratios)]


def verdict_of(row):
    """Quality counts as equal within what rounding does to a sum over a million requests."""
    if row["seeds"] < 2:
        return "unstable"
    if row["our_quality_mean"] < row["quality_mean"] - 1e-9:
        return "unmatched"
    if row["ratio_95"][1] < 1:
        return "win"
    return "lose" if row["ratio_95"][0] > 1 else "tie"


def judge(theirs, ours):
    """The figures of a row, of pairs of samples by seed; None is a run that was not finished."""
    both = [(a, b) for a, b in zip(theirs, ours) if a is not None and b is not None]
    used = [(a, b) for a, b in both if a.ttft_s is not None and b.ttft_s is not None]
    times = [[pair[i].ttft_s for pair in used] for i in (0, 1)]
    quality = [[pair[i].quality for pair in used] for i in (0, 1)]
    saved, ratio = bootstrap(*times)
    gain, _ = bootstrap(quality[1], quality[0])
    mean, our_mean = map(mean_of, times)
    row = {"ttft_s_mean": mean, "our_ttft_s_mean": our_mean, "quality_mean": mean_of(quality[0]),
           "our_quality_mean": mean_of(quality[1]), "ratio": our_mean / mean if mean else None,
           "saved_s": mean - our_mean if used else None,
           "rho_peak_max": max((one.rho_peak for one in theirs if one), default=None),
           "our_rho_peak_max": max((one.rho_peak for one in ours if one), default=None),
           "seeds": len(used), "seeds_skipped": len(both) - len(used), "quality_gain_95": gain,
           "ratio_95": ratio, "saved_s_95": saved}
    return {**row, "verdict": verdict_of(row)}


# ---- the ladder ----


def rungs_of(ladder):
    """The places that fixed policies use: exact variants, the middle lossy one, the last."""
    lossy = [i for i, one in enumerate(ladder) if one["loss"] > 0]
    exact = [i for i, one in enumerate(ladder) if one["loss"] <= 0]
    return exact + ([lossy[(len(lossy) - 1) // 2]] if len(lossy) > 1 else []) + lossy[-1:]


def levels_of(quick):
    return [1 - loss for i, loss in enumerate(LOSSES) if not quick or i != 1]


def single_mixes(ladder, tiers, quick):
    """One variant in every tier, larger ones above; a quick sweep has the same one in all."""
    found = [()]
    for _ in tiers:
        found = [mix + (i,) for mix in found for i, one in enumerate(ladder)
                 if not mix or (i == mix[-1] if quick else
                                one["stored_share"] <= ladder[mix[-1]]["stored_share"])]
    return [tuple((i, i, 0) for i in mix) for mix in found]


def name_of(setup, ladder):
    def part(first, second, share):
        one, other = ladder[first]["name"], ladder[second]["name"]
        return one if share <= 0 or first == second else f"{one}/{other} {100 * share:.1f}%"

    if setup.role == "mix":
        parts = [part(*tier) for tier in setup.mix]
        return "mix " + " | ".join(parts[:1] if len(set(parts)) == 1 else parts)
    if setup.policy == "none":
        return "none"
    if setup.policy not in CHOOSING:
        return f"{setup.policy} {ladder[setup.rung]['name']}"
    if setup.limit <= 0:
        return f"{setup.policy} exact forms"
    limit = f" limit {setup.limit:.3g}" if setup.limit < 1 else ""
    return f"{setup.policy} alpha {setup.alpha:.3g}{limit}"


# ---- runs ----


class Runs(Processes):
    """What was run of each setup, by seed."""

    def __init__(self, options):
        super().__init__()
        self.options, self.facts, self.done, self.planned, self.tenths = options, None, 0, 0, 0
        self.samples = collections.defaultdict(dict)
        first = options.first_seed
        self.evaluation = range(first, first + options.seeds)
        self.tuning = range(first + options.seeds, first + options.seeds + options.tuning_seeds)

    def command(self, setup, seed):
        options = self.options
        settings = {name: value for name, value in options.settings.items()
                    if setup.policy in options.obeys.get(name, (setup.policy,))}
        settings.update({"replay.seed": seed, "replay.seeds": 1, "replay.bounds": "no",
                         "store.loss_limit": f"{setup.limit:.12g}"})
        for name in ("replay.sensitivity", "replay.repeatability"):
            settings.pop(name, None)
        if setup.spread[0] > 0:
            settings.update({"replay.sensitivity": setup.spread[0],
                             "replay.repeatability": setup.spread[1]})
        if setup.policy in CHOOSING:
            name = "store.alpha" if setup.alpha else "store.alpha_prefills"
            settings[name] = f"{setup.alpha:.12g}"
        if setup.speed is not None:
            settings["tier.ssd.read_bandwidth"] = int(setup.speed)
            settings.setdefault("tier.ssd.write_bandwidth", int(setup.speed))
        if setup.capacity:
            settings["tier.ssd.capacity"] = setup.capacity
        command = [options.kvterrace, "replay", "--json", "--quiet", "--policy", setup.policy]
        command += ["--config", options.config] if options.config else []
        if options.trace:
            command += ["--trace", options.trace, "--draw"]
            command += ["--sessions", str(options.sessions)] if options.sessions else []
        else:
            command += ["--workload", options.workload]
        if setup.policy not in CHOOSING and self.facts is not None:
            command += ["--variant", self.facts.ladder[setup.rung]["name"]]
        if setup.mix is not None:
            command += ["--mix", ",".join(
                f"{tier}={first}/{second}@{share:.12g}" for tier, (first, second, share) in
                zip(self.facts.tiers, setup.mix))]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        return command

    def run(self, setup, seed):
        document = self.execute(self.command(setup, seed))
        result = document["results"][0]
        return document, Sample(result["ttft_s_mean"], result["quality_mean"], result["rho"],
                                result["rho_peak"])

    def count(self, what):
        self.done += 1
        self.planned = max(self.planned, self.done) if self.planned else 0
        tenths = 10 * self.done // self.planned if self.planned else 0
        if tenths > self.tenths:
            self.tenths = tenths
            self.options.note(f"{tenths * 10} % of at most {self.planned} runs: {what}")

    def try_all(self, setups, seeds, what):
        """Runs what has not run yet; returns the documents of these runs. Interrupted: what was
        finished is kept."""
        wanted = [(setup, seed) for seed in seeds for setup in dict.fromkeys(setups)
                  if seed not in self.samples[setup]]
        documents, failure = {}, None
        with concurrent.futures.ThreadPoolExecutor(self.options.threads) as executor:
            waiting = {executor.submit(self.run, *one): one for one in wanted}
            for future in concurrent.futures.as_completed(waiting):
                setup, seed = waiting[future]
                try:
                    documents[seed], self.samples[setup][seed] = future.result()
                    self.count(what)
                except (Failed, concurrent.futures.CancelledError) as error:
                    failure = failure or error
                    for other in waiting:
                        other.cancel()
        if self.stopped:
            raise Interrupted()
        if failure is not None:
            raise failure
        return documents

    # ---- choice, by the tuning seeds alone ----

    def tuned(self, setup):
        """Mean time and quality; None when a seed has no mean or was not run."""
        found = [self.samples[setup].get(seed) for seed in self.tuning]
        if any(one is None or one.ttft_s is None for one in found):
            return None
        return mean_of([one.ttft_s for one in found]), mean_of([one.quality for one in found])

    def as_good(self, ours, floor):
        return all(self.samples[ours][seed].quality >= self.samples[floor][seed].quality
                   for seed in self.tuning)

    def pick(self, floor):
        """Ours with the least mean whose quality is at least the floor's on every tuning seed, at
        its speed, capacity and spread; None: there is none. A contender without loss is matched by
        exact variants: a lossy one that is as good on these seeds is so by chance."""
        mine = self.tuned(floor)
        exact = mine is not None and mine[1] >= 1
        fit = [one for one in list(self.samples) if one.role == "ours" and
               (one.speed, one.capacity, one.spread) ==
               (floor.speed, floor.capacity, floor.spread) and not (exact and one.limit > 0) and
               self.tuned(one) is not None and mine is not None and self.as_good(one, floor)]
        return min(fit, key=lambda one: self.tuned(one)[0], default=None)

    def match(self, against):
        """Ours against one contender: the best of the grid, then alpha from it downwards, to the
        next smaller one that was tried; that was too coarse, or slower than the chosen one."""
        for _ in range(STEPS):
            ours = self.pick(against)
            if ours is None or ours.limit <= 0:
                return ours
            below = max((one.alpha for one in self.samples if one.alpha < ours.alpha and
                         one._replace(alpha=ours.alpha) == ours), default=0)
            if below <= 0:
                return ours
            # Two decimals: matches of different contenders then share their trials.
            middle = float(f"{math.sqrt(ours.alpha * below):.1e}")
            if not below < middle < ours.alpha:
                return ours
            self.try_all([ours._replace(alpha=middle)], self.tuning, "utility, fine alphas")
        return self.pick(against)

    def match_all(self, kind, contenders, level=None):
        """A contender that is overloaded has nothing to match: exact variants stand in for ours,
        and the row says so."""
        matches = []
        for one in contenders:
            ours = self.match(one) if self.tuned(one) else Setup(
                OURS, "ours", limit=0, spread=one.spread, speed=one.speed, capacity=one.capacity)
            if ours is not None:
                matches.append(Match(kind, one, ours, level))
        return matches

    # ---- contenders ----

    def baselines(self, speed, capacity):
        """A policy that chooses variants itself has no variant of its own: the exact ones to choose
        from and its alphas stand in their place. With room for everything only exact variants are a
        question."""
        for policy in self.options.policies:
            one = Setup(policy, "baseline", spread=self.options.main, speed=speed,
                        capacity=capacity)
            if policy in CHOOSING:
                yield one._replace(limit=0)
                for alpha in ALPHAS[::3]:
                    yield one._replace(alpha=alpha)
                continue
            rungs = rungs_of(self.facts.ladder)
            for rung in rungs[:1] if policy == "none" else rungs:
                if not capacity or self.facts.ladder[rung]["loss"] <= 0:
                    yield one._replace(rung=rung)

    def ours(self, speed, capacity, spread):
        """The engine's grid: exact variants alone, every alpha, and unless quick the losses limited
        to each variant's but the last, which limits nothing."""
        one = Setup(OURS, "ours", spread=spread, speed=speed, capacity=capacity)
        yield one._replace(limit=0)
        for alpha in ALPHAS:
            yield one._replace(alpha=alpha)
        for rung in self.facts.ladder[:-1]:
            for alpha in LIMITED_ALPHAS:
                if rung["loss"] > 0 and not self.options.quick:
                    yield one._replace(limit=max(rung["loss"], rung["loss_upper"]), alpha=alpha)

    def match_baselines(self, kind, speed, capacity=0):
        contenders = list(self.baselines(speed, capacity))
        self.try_all(contenders, self.tuning, "baselines")
        self.try_all(list(self.ours(speed, capacity, self.options.main)), self.tuning, OURS)
        return self.match_all(kind, contenders)

    # ---- mixes ----

    def best_of(self, mixes, level):
        good = [one for one in mixes if self.tuned(one) and self.tuned(one)[1] >= level]
        return min(good, key=lambda one: self.tuned(one)[0], default=None)

    def pairs(self, singles, level):
        """Of a mix that is good enough and a faster one that is not: the promised mean, the pair,
        and the share of the coarse one, by the line between them."""
        found = []
        known = [(one, *self.tuned(one)) for one in singles if self.tuned(one)]
        for fine, fine_s, fine_quality in known:
            for coarse, coarse_s, coarse_quality in known:
                if coarse_quality < level < fine_quality and coarse_s < fine_s:
                    share = (fine_quality - level) / (fine_quality - coarse_quality)
                    found.append((fine_s + share * (coarse_s - fine_s), fine, coarse, share))
        return sorted(found, key=lambda pair: pair[0])[:PAIRS]

    @staticmethod
    def blend(fine, coarse, share):
        return fine._replace(mix=tuple(
            (a[0], b[0], 0 if a[0] == b[0] else min(share, 1))
            for a, b in zip(fine.mix, coarse.mix)))

    def sweep(self, singles, level):
        """The mix with the least mean whose quality reaches a level."""
        best = self.best_of(singles, level)
        tried = [(fine, coarse, share * part, share * after)
                 for _, fine, coarse, share in (self.pairs(singles, level) if level < 1 else ())
                 for part, after in zip(AROUND, AROUND[1:] + (math.inf,))]
        blends = [self.blend(*one[:3]) for one in tried]
        self.try_all(blends, self.tuning, "mixes, coarse shares")
        better = self.best_of(([best] if best else []) + blends, level)
        if better is None or better == best:
            return best
        fine, coarse, low, high = tried[blends.index(better)]
        high = min(high, 1)
        for _ in range(STEPS if low < 1 else 0):
            middle = self.blend(fine, coarse, (low + high) / 2)
            self.try_all([middle], self.tuning, "mixes, fine shares")
            good = self.best_of([middle], level)
            low, high = ((low + high) / 2, high) if good else (low, (low + high) / 2)
            better = self.best_of([better, middle], level)
        return better

    def match_mixes(self, speed):
        """A mix runs the same at every spread; what it loses does not, so it is run again at each.
        Without a loss there is no spread to tell apart."""
        options, matches = self.options, []
        if not options.spreads:
            return matches
        singles = [Setup(OURS, "mix", alpha=0, spread=options.main, speed=speed, mix=mix)
                   for mix in single_mixes(self.facts.ladder, self.facts.tiers, options.quick)]
        self.try_all(singles, self.tuning, "mixes, one variant per tier")
        best = {level: self.sweep(singles, level) for level in levels_of(options.quick)}
        for spread in options.spreads:
            self.try_all(list(self.ours(speed, 0, spread)), self.tuning, OURS)
            for level, mix in best.items():
                if mix is not None and (level < 1 or spread == options.main):
                    again = mix._replace(spread=spread)
                    self.try_all([again], self.tuning, "mixes at other spreads")
                    matches += self.match_all("mixes", [again], level)
        return matches

    # ---- rows ----

    def fastest(self, matches, level):
        """The baseline with the least mean, by the tuning seeds, of those that reach a level."""
        return self.best_of([one.against for one in matches if one.kind == "baselines"], level)

    def row(self, match, levels):
        against, ladder = match.against, self.facts.ladder
        read = self.facts.document["configuration"]["tiers"].get("ssd", {}).get("read_bytes_per_s")
        figures = judge(*([self.samples[one].get(seed) for seed in self.evaluation]
                          for one in (against, match.ours)))
        row = {"against": name_of(against, ladder), "ours": name_of(match.ours, ladder),
               "ssd_bytes_per_s": against.speed or read or 0, "sigma": against.spread[0],
               "repeatability": against.spread[1], **figures}
        if match.kind == "mixes":
            row["quality_level"] = match.level
        if match.kind == "baselines":
            row["fastest_at_quality"] = [level for level, one in levels.items() if one == against]
        return row

    def compare_at(self, speed, with_footprint, rows):
        """Everything at one speed of the SSD; rows get what was finished even when interrupted."""
        matches = self.match_baselines("baselines", speed) + self.match_mixes(speed)
        if with_footprint and "ssd" in self.facts.tiers:
            matches += self.match_baselines("footprint", speed, self.facts.footprint)
        # What was tried for one contender counts for all.
        matches = [one._replace(ours=self.pick(one.against) or one.ours)
                   if self.tuned(one.against) else one for one in matches]
        levels = {level: self.fastest(matches, level) for level in levels_of(self.options.quick)}
        try:
            self.try_all([side for one in matches for side in (one.against, one.ours)],
                         self.evaluation, "evaluation")
        finally:
            for one in matches:
                row = self.row(one, levels)
                if not self.stopped or row["seeds"] >= 2:
                    rows[one.kind].append(row)

    def load(self):
        """The load that all contenders face, and what is known of the workloads. Returns the least
        and the largest rho without a cache."""
        options, empty = self.options, Setup("none", "baseline", spread=self.options.main)
        documents = self.try_all([empty], [*self.evaluation, *self.tuning], "without a cache")
        first = documents[self.evaluation[0]]
        configuration, workload = first["configuration"], first["workload"]
        most = max(one["workload"]["distinct_blocks"] for one in documents.values())
        block = configuration["bytes_per_token"] * workload["block_tokens"]
        tiers = [tier for tier in TIERS if tier in configuration["tiers"]]
        self.facts = Facts(first, configuration["variants"], tiers, (most + 1) * (block + 4096))
        if not any(one["loss"] > 0 for one in self.facts.ladder):
            raise Failed("replay.ladder: a comparison needs a ladder with lossy forms", 2)
        if options.speeds and "ssd" not in tiers:
            raise Failed("--speeds has no effect here: tier.ssd.capacity is not set", 2)
        # A tier that is set takes the place of the host that is simulated when none is.
        if not options.config and not any(name.startswith("tier.") for name in options.settings):
            for tier, found in configuration["tiers"].items():
                options.settings[f"tier.{tier}.capacity"] = found["capacity_bytes"]
        rhos = [self.samples[empty][seed].rho for seed in self.evaluation]
        return [min(rhos), max(rhos)]

    def tell_budget(self):
        """An upper bound of the runs, and minutes by one run of the engine."""
        options, ladder = self.options, self.facts.ladder
        speed, spreads = options.speeds[0] if options.speeds else None, len(options.spreads)
        levels = len(levels_of(options.quick))
        theirs, grid = len(list(self.baselines(speed, 0))), len(list(self.ours(speed, 0, MAIN)))
        singles = len(single_mixes(ladder, self.facts.tiers, options.quick))
        tuning = theirs + grid * (spreads + 1) + singles + levels * (
            PAIRS * len(AROUND) + STEPS + spreads * (2 + STEPS))
        evaluation = 2 * theirs + 2 * levels * spreads
        most = tuning * len(self.tuning) + evaluation * len(self.evaluation)
        self.planned = self.done + most * (len(options.speeds or [speed]) + 1)
        begin = time.monotonic()
        self.try_all([Setup(OURS, "ours", alpha=16, spread=options.main, speed=speed)],
                     self.tuning[:1], "first run")
        seconds = time.monotonic() - begin
        options.note(f"budget: at most {self.planned} runs, about "
                     f"{self.planned * seconds / options.threads / 60:.1f} minutes on "
                     f"{options.threads} threads (one run of utility takes {seconds:.2f} s)")


# ---- the report ----


def document_of(runs, rows, rho, seconds):
    options, facts = runs.options, runs.facts
    first, found = facts.document, facts.document["configuration"]
    capacity = {tier: found["tiers"].get(tier, {}).get("capacity_bytes", 0) for tier in TIERS}
    return {
        "schema": SCHEMA, "version": first["version"], "command": " ".join(sys.argv),
        "machine": first["machine"], "date": first.get("date"),
        "workload": first["workload"]["name"], "interrupted": runs.stopped,
        "configuration": {
            **{name: found[name] for name in ("ladder", "servers", "prefill", "warmup", "holes")},
            "dram_bytes": capacity["dram"], "ssd_bytes": capacity["ssd"],
            "first_seed": options.first_seed, "seeds": options.seeds,
            "tuning_seeds": options.tuning_seeds, "quick": options.quick,
            "sessions": options.sessions, "requests": first["workload"]["requests"],
            "capacity_over_footprint": first["results"][0]["capacity_over_footprint"],
            "rho_without_cache": rho},
        **rows, "note": first["note"], "runs": runs.done, "wall_s": seconds}


def print_text(document):
    found = document["configuration"]
    print(f"{document['workload']}: {found['requests']} requests (seed {found['first_seed']}); "
          f"seeds: {found['seeds']} evaluate, {found['tuning_seeds']} tune")
    print(f"capacity {found['capacity_over_footprint'] or 0:.3f} of the raw footprint; rho without "
          "a cache {:.3f} to {:.3f}".format(*found["rho_without_cache"]))
    counts = collections.Counter()
    for kind in KINDS:
        rows = [{**row, **dict(zip(("ratio_low", "ratio_high"), row["ratio_95"]))}
                for row in document[kind]]
        counts.update(row["verdict"] for row in rows)
        if rows:
            print(f"\n{kind}")
            print_table(rows, ["against", "ssd_bytes_per_s", "sigma", "ttft_s_mean", "quality_mean",
                               "ours", "our_ttft_s_mean", "our_quality_mean", "ratio", "ratio_low",
                               "ratio_high", "verdict"])
    print("\n" + ", ".join(f"{counts[name]} {name}" for name in
                           ("win", "tie", "lose", "unmatched", "unstable")))
    print(f"{document['runs']} runs in {document['wall_s'] / 60:.1f} minutes")
    if document["note"]:
        print(document["note"])


# ---- the command ----


def pair_of(text):
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name, value


def speeds_of(text):
    try:
        speeds = [float(part) * 1e9 for part in text.split(",")]
    except ValueError:
        speeds = []
    if not 1 <= len(speeds) <= 8 or not all(0 < speed < 1e15 for speed in speeds):
        raise argparse.ArgumentTypeError("up to 8 numbers above 0 with commas, in GB/s")
    return speeds


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    workload = parser.add_mutually_exclusive_group(required=True)
    workload.add_argument("--trace", metavar="FILE", help="sessions are drawn from this trace")
    workload.add_argument("--workload", choices=["poisson"], help="each seed generates anew")
    parser.add_argument("--policy", metavar="LIST", default=",".join(BASELINES),
                        help="the baselines (all)")
    parser.add_argument("--set", metavar="NAME=VALUE", dest="settings", action="append",
                        type=pair_of, default=[], help="a setting of kvterrace replay")
    parser.add_argument("--config", metavar="FILE", help="its configuration file")
    parser.add_argument("--speeds", metavar="LIST", type=speeds_of, default=[],
                        help="at each of these bandwidths of the SSD in GB/s, such as 1,3,7; "
                        "writes follow unless tier.ssd.write_bandwidth is set")
    parser.add_argument("--seeds", type=int, help="that evaluate, 2 to 1000 (20); 4 more tune")
    parser.add_argument("--sessions", type=int, help="of one draw (as many as the trace has)")
    parser.add_argument("--quick", action="store_true",
                        help="coarse grids, one spread, 3 seeds, 400 requests")
    parser.add_argument("--threads", type=int, default=min(os.cpu_count() or 1, 64),
                        help="runs at a time, 1 to 64 (one per processor)")
    parser.add_argument("--kvterrace", default=BESIDE, help="the program (build/kvterrace)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="no notes on the progress")
    options = parser.parse_args()
    settings = options.settings = dict(options.settings)
    options.note = lambda text: None if options.quiet else print(
        f"compare.py: {text}", file=sys.stderr, flush=True)
    for name in ("store.variant", "store.alpha", "store.alpha_prefills", "store.loss_limit",
                 "store.policy"):
        if name in settings:
            parser.error(f"{name} has no effect here: a comparison tries its values itself")
    options.policies = [name for name in options.policy.split(",") if name != OURS]
    if not options.policies:
        parser.error("--policy: a comparison needs a baseline beside utility")
    if "oracle" in options.policies:
        parser.error("--policy: oracle knows what comes, and is no rival")
    if "replay.ladder" not in settings and not options.config:
        parser.error("a comparison needs a ladder: --set replay.ladder=FILE")
    options.seeds = int(options.seeds or settings.get("replay.seeds", 3 if options.quick else 20))
    options.first_seed = int(settings.get("replay.seed", 1))
    options.tuning_seeds = 3 if options.quick else 4
    if not 2 <= options.seeds <= 1000:
        parser.error("--seeds: 2 to 1000 of a comparison")
    if not 1 <= options.threads <= 64:
        parser.error(f"--threads: '{options.threads}' is not from 1 to 64")
    if options.sessions is not None and not (options.trace and options.sessions > 0):
        parser.error("--sessions has no effect on a generated workload, and is above 0")
    options.main = MAIN
    if "replay.sensitivity" in settings or "replay.repeatability" in settings:
        options.main = (float(settings.get("replay.sensitivity", 0)),
                        float(settings.get("replay.repeatability", 1)))
    options.spreads = (options.main,) if options.quick else SPREADS
    if options.quick and "replay.limit" not in settings:
        name = "replay.limit" if options.trace else "workload.requests"
        settings[name] = min(int(settings.get(name, QUICK_REQUESTS)), QUICK_REQUESTS)
    return options


def read_effects(runs):
    """Which settings only some policies obey; the others' runs go without them."""
    listed = runs.execute([runs.options.kvterrace, "settings", "--json"])["settings"]
    prefix = "store.policy="
    runs.options.obeys = {one["name"]: one["effect"][len(prefix):].split(" or ")[0].split("|")
                          for one in listed if one["effect"].startswith(prefix)}


def main():
    options = parse()
    begin, rows, rho = time.monotonic(), {kind: [] for kind in KINDS}, None
    runs = Runs(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: runs.stop())
    interrupted = False
    try:
        read_effects(runs)
        rho = runs.load()
        runs.tell_budget()
        speeds = options.speeds or [None]
        for i, speed in enumerate(speeds):
            runs.compare_at(speed, i == len(speeds) // 2, rows)
    except Interrupted:
        interrupted = True
    except Failed as error:
        if not runs.stopped:
            print(f"compare.py: {error}", file=sys.stderr)
            return error.code
        interrupted = True
    if rho is not None and (not interrupted or any(rows.values())):
        document = document_of(runs, rows, rho, time.monotonic() - begin)
        held = document["configuration"]["capacity_over_footprint"] or 0
        if held >= 1:
            options.note(f"the tiers hold {held:.2f} times the raw bytes of the workload: nothing "
                         "has to leave. Replay more of it, or set smaller tier capacities")
        if options.json:
            print(json.dumps(document, indent=2))
        else:
            print_text(document)
    if interrupted:
        count = sum(map(len, rows.values()))
        print(f"compare.py: interrupted; {count} rows have two finished seeds or more",
              file=sys.stderr)
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
