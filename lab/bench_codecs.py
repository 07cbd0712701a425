#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the transform codec saves and costs, on two models: `make bench-codecs`.

    points 1 to 3   `profile calibrate --basis`: distortion beside entropy's at even bits
    point 4         `kvlab transform`: GB/s of a core on this machine
    point 5         `replay`: a policy with and without the rungs, at equal loss limits

The reference model lies in the repository. SmolLM2 joins where --model names its folder and --texts
the folder of its texts (docs/REFERENCE_MODEL.md, Real models). Bases, judged rows and speeds are
kept in a profile, so that a run that was stopped goes on: --minutes bounds one call.
"""
import argparse
import json
import os
import subprocess
import sys

LIMITS = (0.05, 0.02, 0.04, 0.03, 0.015, 0.0125, 0.01, 0.0075, 0.005)
LADDER, BASES = 10, 4  # variants of a ladder, and those of them that bases have room for
# A server whose prefill is slow, and one with a GPU, each with tiers that are short beside the
# contexts; prefill of the first is SmolLM2's on one core.
PREFILL = {"name": "smollm2:core", "linear_seconds_per_token": 1.544e-3,
           "square_seconds_per_token2": 2.655e-7, "source": "docs/BENCHMARKS.md"}
COMMON = ["--workload", "poisson", "--policy", "utility", "-s", "replay.bounds=no", "-s",
          "replay.warmup=0.2", "-s", "workload.contexts=200", "-s", "workload.zipf=0.8", "-s",
          "store.alpha=10"]
WHOLE = ["--seeds", "3", "-s", "workload.requests=2000"]
QUICK = ["--seeds", "1", "-s", "workload.requests=200"]
SETTINGS = {
    "core": ["-s", "prefill.profile=smollm2:core", "-s", "replay.bytes_per_token=23040", "-s",
             "workload.rate=0.15", "-s", "workload.tokens_median=2048", "-s",
             "workload.tokens_max=7168", "-s", "workload.tokens_sigma=0.6", "-s",
             "tier.dram.capacity=256MB", "-s", "tier.ssd.capacity=1GB", "-s",
             "tier.ssd.read_bandwidth=200MB/s", "-s", "tier.ssd.write_bandwidth=200MB/s"],
    "gpu": ["-s", "replay.bytes_per_token=128KiB", "-s", "workload.rate=1", "-s",
            "tier.dram.capacity=8GB", "-s", "tier.ssd.capacity=32GB", "-s",
            "tier.ssd.read_bandwidth=3GB/s", "-s", "tier.ssd.write_bandwidth=3GB/s"]}
CAPACITY_GB = {"core": 1.256, "gpu": 40.0}


def run(command, arguments, missing=None):
    """The document that a command prints; None when it stopped for its minutes."""
    result = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return json.loads(result.stdout) if result.stdout.lstrip().startswith("{") else {}
    if missing is not None and missing in result.stderr:
        return None
    sys.exit(f"bench_codecs.py: {' '.join(arguments[:3])}: {result.stderr.strip()}")


def calibrate(options, name, model, classes, learn):
    """A calibration that learns bases and asks about them, and seconds by span, instruction set and
    threads; kept. None when it stopped for its minutes."""
    path = os.path.join(options.work, name + ".db")
    texts = [item for pair in classes for item in ("--text", f"{pair[0]}={pair[1]}")]
    entries = "2" if options.quick else str(options.judge)
    document = run(options.command,
                   ["profile", "calibrate", "--model", model, "--name", name, *texts, "--basis",
                    learn, "--teach", "4" if options.quick else "32", "--contexts", entries,
                    "--question-contexts", "6",
                    "--minutes", str(options.minutes), "--database", path, "--json", "--quiet"],
                   missing="stopped")
    if document is None:
        return None
    prefill = os.path.join(options.work, "prefill.json")
    write_rows(prefill, "prefill", [PREFILL])
    shown = run(options.command, ["profile", "show", "--database", path, "--json"])
    if not shown["codecs"]:
        run(options.command, ["profile", "import", prefill, "--database", path, "--quiet"])
        run(options.command, ["profile", "codecs", "--quick", "--database", path, "--quiet"])
        shown = run(options.command, ["profile", "show", "--database", path, "--json"])
    return {"choices": document["choices"], "ladders": document["ladders"],
            "codecs": shown["codecs"], "bases": shown["bases"]}


def write_rows(path, table, rows):
    """A document of one table, as `profile import` and replay.ladder read it."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"schema": "kvterrace-profile-export-1", "tables": {table: rows}}, file)


def nearest_speed(rows, form, bits, threads):
    """Encode and decode of the timed variant of the same codec or basis; threads 0: the most."""
    start = form.split(",")[0] if form.startswith("transform") else form.split(":")[0]
    alike = [row for row in rows if row["name"].startswith(start)]
    threads = threads or max(row["threads"] for row in alike)
    return min((row for row in alike if row["threads"] == threads),
               key=lambda row: abs(16 * row["stored_share"] - bits))


def ladder(path, calibrated, limit, with_bases, threads):
    """The accepted rungs of the first class within a limit, as replay.ladder reads them: those that
    need no basis, and, of bases, as many as there is room for."""
    rows = []
    plain, bases = [("raw", 16.0, 0.0)], []
    for rung in calibrated["ladders"][0]["rungs"]:
        form = (rung["variant"], rung["bits_per_element"], rung["loss"])
        if not rung["accepted"] or rung["loss"] > limit or form[0].startswith("drop"):
            continue
        (bases if form[0].startswith("transform") else plain).append(form)
    forms = thin(plain, LADDER - (BASES if with_bases else 0))
    if with_bases:
        forms += thin(bases, LADDER - len(forms))
    for form, bits, loss in sorted(forms, key=lambda form: -form[1]):
        speed = nearest_speed(calibrated["codecs"], form, bits, threads)
        rows.append({"variant": form, "bits": round(bits, 4), "loss": round(loss, 6),
                     "loss_upper": round(loss, 6),
                     "encode_bytes_per_s": float(f"{speed['encode_bytes_per_s']:.6g}"),
                     "decode_bytes_per_s": float(f"{speed['decode_bytes_per_s']:.6g}"),
                     "source": "calibrated"})
    write_rows(path, "ladder", rows)


def thin(forms, most):
    """Drops the forms whose sizes lie closest together, never the first or the last."""
    forms = list(forms)
    while len(forms) > most:
        gaps = [forms[i - 1][1] / forms[i + 1][1] for i in range(1, len(forms) - 1)]
        del forms[1 + gaps.index(min(gaps))]
    return forms


def replay_once(options, name, calibrated, setting, limit, with_bases):
    """One limit, over the seeds: means of what counts."""
    path = os.path.join(options.work, name + "-ladder.json")
    ladder(path, calibrated, limit, with_bases, options.threads)
    document = run(options.command,
                   ["replay", *COMMON, *(QUICK if options.quick else WHOLE), *SETTINGS[setting],
                    "-s", f"replay.ladder={path}", "-s",
                    f"store.profile={os.path.join(options.work, name + '.db')}", "--json"])
    rows = document["results"]
    mean = {key: sum(row[key] for row in rows) / len(rows)
            for key in ("ttft_s_p50", "ttft_s_mean", "quality_mean")}
    for key in ("total", "dram", "ssd"):
        mean["hits_" + key] = sum(row["hit_token_ratio"][key] for row in rows) / len(rows)
    return {"setting": setting, "rungs": "with" if with_bases else "without", "limit": limit,
            "hits_per_gb": mean["hits_total"] / CAPACITY_GB[setting],
            "ttft_s_p50_seeds": [row["ttft_s_p50"] for row in rows], **mean}


def replay(options, name, calibrated):
    """Point 5: at each limit the policy without the rungs, and with them at the largest limit that
    keeps the same mean quality."""
    result = []
    limits = LIMITS[:2] if options.quick else LIMITS
    for setting in SETTINGS:
        tried = [replay_once(options, name, calibrated, setting, limit, True) for limit in limits]
        for limit in LIMITS[:2]:
            without = replay_once(options, name, calibrated, setting, limit, False)
            equal = [row for row in tried if row["quality_mean"] >= without["quality_mean"] - 2e-4]
            result.append(without)
            best = min(equal, key=lambda row: row["ttft_s_p50"]) if equal else tried[-1]
            result.append({**best, "tried": [{key: row[key] for key in (
                "limit", "quality_mean", "hits_total", "ttft_s_p50")} for row in tried]})
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--model", help="folder of SmolLM2")
    parser.add_argument("--texts", help="folder of its texts as token ids")
    parser.add_argument("--work", help="what is kept (BUILD/bench-codecs)")
    parser.add_argument("--minutes", type=int, default=600, help="at most, of judging a model")
    parser.add_argument("--judge", type=int, default=8, help="contexts of a class that judge (8)")
    parser.add_argument("--threads", type=int, default=0,
                        help="point 5 decodes on so many: one thread's speed is processor time, "
                             "which other programs do not change (the most that were measured)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true",
                        help="the reference model alone, all steps as small as they go")
    options = parser.parse_args()
    options.command = os.path.join(options.build, "kvterrace")
    options.lab = os.path.join(options.build, "kvlab")
    options.work = options.work or os.path.join(options.build, "bench-codecs")
    os.makedirs(options.work, exist_ok=True)
    text = "reference_model/texts/recall-%d.jsonl.zst"
    models = [("reference", "reference_model/model", [("a", text % 512), ("b", text % 768)], "a")]
    if options.model and not options.quick:
        folder = options.texts or "texts"
        models.append(("smollm2", options.model,
                       [(name, os.path.join(folder, name + ".jsonl"))
                        for name in ("summarisation", "qa", "agent")], "summarisation,qa"))
    document = {"schema": "kvterrace-bench-codecs-1", "models": {}}
    for name, model, classes, learn in models:
        calibrated = calibrate(options, name, model, classes, learn)
        if calibrated is None:
            print(f"{name}: stopped after --minutes; the same command goes on", file=sys.stderr)
            return 1
        document["models"][name] = {"calibrated": calibrated,
                                    "replay": replay(options, name, calibrated)}
    document["transform"] = run(options.lab, ["transform", "--json"]
                                + ["--quick"] * options.quick)
    if options.json:
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        show(document)
    return 0


def show(document):
    for name, one in document["models"].items():
        for choice in one["calibrated"]["choices"]:
            if choice["question"] == "entropy: basis":
                print(f"{name}: {choice['chosen']}: {choice['evidence']}")
        for row in one["replay"]:
            print(f"  {row['setting']}, {row['rungs']} the rungs, limit {row['limit']}: tokens hit "
                  f"{row['hits_total']:.3f} ({row['hits_per_gb']:.4f} a GB; dram "
                  f"{row['hits_dram']:.3f}, ssd {row['hits_ssd']:.3f}), TTFT p50 "
                  f"{row['ttft_s_p50']:.3f} s, mean {row['ttft_s_mean']:.3f}, quality "
                  f"{row['quality_mean']:.4f}")
    for row in document["transform"].get("segments", []):
        print(f"  {json.dumps(row)}")


if __name__ == "__main__":
    sys.exit(main())
