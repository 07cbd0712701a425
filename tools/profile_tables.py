#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the rows of a measurement with a model to what is kept of it: the profile that is shipped,
the rows themselves, and the tables of docs/BENCHMARKS.md.

    tools/profile_tables.py --database quality.db --model FOLDER --name NAME \\
        --text CLASS=FILE... --contexts N --variants LIST \\
        [--profile NAME.json] [--rows NAME-rows.json.zst] > tables.md

quality.db is what `kvterrace profile quality` writes, finished or not, while it writes or later;
it is copied and left as it is. The copy is finished (`profile quality --finish`, `profile calibrate
--finish`), so only entries that are whole count. Curves, ladders and choices go to --profile. A
question of the calibration that these rows do not answer keeps the answer that the file had
before, and says so. --rows has every row of every entry, from which the same figures follow again:

    kvterrace profile import NAME-rows.json.zst --database quality.db

and then this tool, or `profile quality` with more --variants. Paths of this machine are left out
of sources: a folder is called by its own name alone. Only the standard library and the command
`zstd` are used.
"""

import argparse
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile

PASSAGES = "/recall"
POOLED = "pooled"
UNANSWERED = ("none of the candidates was measured", "the only one that was measured")
EARLIER = "; of an earlier measurement of these texts"
LOSSES, USES = ("top1", "kl"), ("answers", "recall", "worse")


def figure(value):
    """Three digits, of small values two behind the point."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def short(value):
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


class Measurement:
    """A copy of the database, and what the command says of it."""

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.database = self.copy("main.db")

    def copy(self, name):
        path = os.path.join(self.folder, name)
        source = sqlite3.connect(f"file:{self.options.database}?mode=ro", uri=True)
        target = sqlite3.connect(path)
        source.backup(target)
        source.close()
        # A measurement that has ended is finished once more.
        target.execute("UPDATE run SET complete = 0 WHERE kind = 'quality'")
        target.commit()
        target.close()
        return path

    def run(self, *words):
        result = subprocess.run([self.options.command, "profile", *words], stdout=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, check=False)
        if result.returncode != 0:
            sys.exit(f"profile {words[0]}: exit code {result.returncode}")
        return result.stdout.decode()

    def shape(self):
        words = ["--model", self.options.model, "--name", self.options.name, "--contexts",
                 str(self.options.contexts)]
        for text in self.options.text:
            words += ["--text", text]
        return words

    def quality(self):
        return json.loads(self.run("quality", *self.shape(), "--variants", self.options.variants,
                                   "--finish", "--json", "--database", self.database))

    def calibrate(self, database, *words):
        return json.loads(self.run("calibrate", *self.shape(), *words, "--finish", "--json",
                                   "--database", database))

    def trials(self):
        """(loss, use) to the calibration that was tried by them, of a copy of its own."""
        found = {}
        for loss in LOSSES:
            for use in USES:
                database = self.copy(f"{loss}-{use}.db")
                found[loss, use] = self.calibrate(database, "--loss", loss, "--use", use)
                os.unlink(database)
        return found


# ---- markdown ----

def print_table(heads):
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))


def print_row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def read_lines(path):
    """Of a file, or of its packed form beside where it would be."""
    if not os.path.exists(path):
        path += ".zst"
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE,
                              check=True).stdout.decode().splitlines()
    with open(path, encoding="utf-8") as file:
        return file.read().splitlines()


def print_texts(options, sets):
    """Lengths of the entries that count, which are the first of each text, where texts are token
    ids."""
    contexts, behind, passages = [], [], []
    for text in options.text:
        name, path = text.split("=", 1)
        lines = [json.loads(line) for line in read_lines(path)][:sets[name]["entries"]]
        if not all("tokens" in line for line in lines):
            return
        contexts += [line["context"] for line in lines]
        behind.append(sum(len(line["tokens"]) - line["context"] for line in lines) / len(lines))
        passages += [line["recall"]["scored"] for line in lines if "recall" in line]
        documents = {line.get("document", number) for number, line in enumerate(lines)}
        print(f"{name}: {len(lines)} entries of {len(documents)} documents")
    scored = sum(passages) / max(len(passages), 1)
    print(f"contexts of {min(contexts)} to {max(contexts)} tokens, continuations of "
          f"{min(behind):.0f} to {max(behind):.0f} in the mean, passages of "
          f"{scored:.0f}\n")


def print_forms(options, sets):
    print_table(["task, variant", "bits", "loss % [95 %], p90", "KL of answers e-3 [95 %]",
                 "top-1 %", "ROUGE-L, F1", "KL of recall e-3", "recall top-1 %", "cv, rep"])
    for text in options.text:
        name = text.split("=", 1)[0]
        passages = {row["variant"]: row
                    for row in sets.get(name + PASSAGES, {"variants": []})["variants"]}
        print(f"| **{name}**, {sets[name]['entries']} entries | | | | | | | | |")
        for row in sorted(sets[name]["variants"], key=lambda row: -row["bits_per_element"]):
            passage = passages.get(row["variant"])
            loss = [figure(100 * row["loss_" + part]) for part in ("mean", "low", "high", "p90")]
            kl = [figure(1e3 * row[part]) for part in ("kl", "kl_low", "kl_high")]
            print_row(row["variant"], f"{row['bits_per_element']:.2f}",
                      f"{loss[0]} [{loss[1]}, {loss[2]}], {loss[3]}",
                      f"{kl[0]} [{kl[1]}, {kl[2]}]", f"{100 * row['top1']:.1f}",
                      f"{figure(row['rouge_l'])}, {figure(row['f1'])}",
                      figure(1e3 * passage["kl"]) if passage else "-",
                      f"{100 * passage['top1']:.1f}" if passage else "-",
                      f"{row['loss_cv'] or 0:.1f}, {row['repeatability'] or 0:.2f}")
    print()
    for text in options.text:
        name = text.split("=", 1)[0]
        whole, passage = sets[name], sets.get(name + PASSAGES, {"repeatability": None})
        print(f"{name}: entries differ by exp({figure(whole['sensitivity_sd'])}); it repeats on "
              f"the other half of the continuation with r = {figure(whole['repeatability'])}, on "
              f"the other half of the passage with {figure(passage['repeatability'])}")
    print()


def beaten_by(evidence):
    """"199 times the KL of planes:k6v4,g64 [179, 222]" of what a refused rung says."""
    match = re.search(r"worse than (\S+) at [\d.]+ bits: (\S+) times its KL (\[.*?\])", evidence)
    return f"{match.group(2)} times the KL of {match.group(1)} {match.group(3)}" if match else ""


def print_ladders(ladders):
    names = [ladder["class"] for ladder in ladders]
    print_table(["variant", "bits", *names[:-1], "other classes", ""])
    pooled = ladders[-1]
    for index, rung in enumerate(pooled["rungs"]):
        cells, refused = [], ""
        for ladder in ladders:
            own = next(row for row in ladder["rungs"] if row["variant"] == rung["variant"])
            parts = [short(100 * own[part]) for part in ("loss", "loss_upper", "loss_entry")]
            cells.append(", ".join(parts) if own["accepted"] else "refused")
            refused = refused if own["accepted"] else beaten_by(own["evidence"])
        print_row(rung["variant"], f"{pooled['rungs'][index]['bits_per_element']:.2f}", *cells,
                  refused)
    print(f"\nwidening for a class that was not measured: {pooled['widening']:.2f}\n")


def print_trials(trials):
    print_table(["loss, use", "limit", "classes left out: mean", "90 % of entries",
                 "entries within", "documents left out: mean", "90 % of entries",
                 "entries within"])
    sums = {}
    for (loss, use), calibration in trials.items():
        for number, limit in enumerate(calibration["left_out"]):
            cells = []
            for part in ("left_out", "documents_left_out"):
                trial = calibration[part][number]
                for kept, offered in (("mean_kept", "mean_offered"),
                                      ("entry_kept", "entry_offered"),
                                      ("entries_within", "entries_offered")):
                    cells.append(f"{trial[kept]} of {trial[offered]}" if trial[offered] else "-")
                    before = sums.get((part, kept), (0, 0))
                    sums[part, kept] = (before[0] + trial[kept], before[1] + trial[offered])
            print_row(f"{loss}, {use}", limit["limit"], *cells)
    print()
    for (part, kept), (inside, offered) in sums.items():
        share = f" ({100 * inside / offered:.1f} %)" if offered else ""
        print(f"{part}, {kept}: {inside} of {offered}{share}")


# ---- files ----

def write_document(tables, names, notes=()):
    """As `profile export` has it, one row on a line, without fields that are not known."""
    def plain(row):
        return json.dumps({key: cell for key, cell in row.items() if cell is not None},
                          ensure_ascii=False)

    def lines(rows):
        return "[\n" + ",\n".join(" " + row for row in rows) + "\n]"

    note = f'"note": {lines(json.dumps(line, ensure_ascii=False) for line in notes)},\n'
    return ('{\n"schema": "kvterrace-profile-export-1",\n' + (note if notes else "") +
            '"tables": {\n' +
            ",\n".join(f'"{name}": {lines(map(plain, tables[name]))}' for name in names) +
            "\n}\n}\n")


def clean_source(text, options):
    """Who measured, when and with which command; without the paths and the name of the machine."""
    text = re.sub(r"^run \d+, measured (\d{4}-\d\d-\d\d)\S* on \S+ \(([^,]*), (\S+) \S+ (\S+)\)",
                  r"measured \1 (\2, \3 \4)", text)
    text = re.sub(r" --(database|minutes) [^ ,]+| --(finish|json|quiet)\b", "", text)
    for path in [options.model] + [text.split("=", 1)[1] for text in options.text]:
        parts = os.path.normpath(os.path.abspath(path)).split(os.sep)
        for given in {path, os.path.abspath(path)}:
            text = text.replace(given, "/".join(parts[-2:]))
    return text + (f"; {options.origin}" if options.origin else "")


def keep_choices(rows, before):
    """Answers of questions that these rows leave open stay as they were, and say so. Their source
    is the calibration's: an import makes one calibration of each source."""
    old = {(row["class"], row["question"]): row for row in before}
    for number, row in enumerate(rows):
        was = old.get((row["class"], row["question"]))
        open_still = row["evidence"].endswith(UNANSWERED)
        if was and open_still and not was["evidence"].endswith(UNANSWERED):
            rows[number] = {**was, "source": row["source"],
                            "evidence": was["evidence"].removesuffix(EARLIER) + EARLIER}


def take_newest(rows, options):
    """Rows of the newest run; what it took from imports is among them."""
    if "source" not in rows[0]:
        return rows
    runs = [int(re.match(r"run (\d+), |", row["source"]).group(1) or 0) for row in rows]
    return [{**row, "source": clean_source(row["source"], options)}
            for row, run in zip(rows, runs) if run == max(runs)]


def write_files(measurement, options):
    tables = json.loads(measurement.run("export", "--database", measurement.database))["tables"]
    tables = {name: take_newest(rows, options) for name, rows in tables.items()}
    if options.rows:
        text = write_document(tables, ["model", "quality", "quality_entry"])
        packed = subprocess.run(["zstd", "-19", "-q", "-c"], input=text.encode(),
                                stdout=subprocess.PIPE, check=True).stdout
        with open(options.rows, "wb") as file:
            file.write(packed)
        print(f"{options.rows}: {len(tables['quality_entry'])} rows, {len(packed)} bytes",
              file=sys.stderr)
    if not options.profile:
        return
    notes = []
    if os.path.exists(options.profile):
        with open(options.profile, encoding="utf-8") as file:
            before = json.load(file)
        notes = before.get("note", [])
        keep_choices(tables["calibration_choice"], before["tables"].get("calibration_choice", []))
    for name in ("quality", "calibration", "calibration_choice"):
        tables[name] = [{key: float(f"{cell:.9g}") if isinstance(cell, float) else cell
                         for key, cell in row.items()} for row in tables[name]]
    with open(options.profile, "w", encoding="utf-8") as file:
        file.write(write_document(tables, ["model", "quality", "calibration",
                                           "calibration_choice"], notes))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--command", default="build/kvterrace")
    parser.add_argument("--database", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--text", action="append", required=True, metavar="CLASS=FILE")
    parser.add_argument("--contexts", type=int, required=True)
    parser.add_argument("--variants", required=True)
    parser.add_argument("--origin", default="", help="where the weights are from, for the sources")
    parser.add_argument("--profile", help="the profile; its note stays")
    parser.add_argument("--rows", help="the rows of all entries, packed with zstd")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="kvterrace-tables-")
    try:
        measurement = Measurement(options, folder)
        sets = {one["class"]: one for one in measurement.quality()["sets"]}
        ladders = measurement.calibrate(measurement.database)["ladders"]
        write_files(measurement, options)
        print_texts(options, sets)
        print_forms(options, sets)
        print_ladders(ladders)
        print_trials(measurement.trials())
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
