#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Recall by phase: whether a codec keeps facts alike wherever they lie in its blocks.

    PYTHONPATH=build/python lab/recall_phase.py --basis basis.db --draws 8 \\
        --variants "kivi:k4v4 kivi:k2v2 entropy:k0.5v1 transform:XXXXX,s1"

Contexts of the reference model's texts are 64 needles of 16 tokens, each a fact and a sentence of
prose, behind 16 + o tokens of prose: for each offset o of 0 to 15, so that every draw has 1,024
places. Then every fact is asked for, 32 in a row, on the KV that came back. A row of the tables is
a variant and a period: the mean share of answers that are right, the worst phase, its distance to
the mean in points, and the distance that 95 % of shuffled phases stay within, which is chance.

Needs torch, transformers and numpy.
"""
import argparse
import contextlib
import os
import random
import sqlite3
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "reference_model"))
sys.path.insert(0, HERE)

NEEDLE, PLACES, SHUFFLES = 16, 64, 200
# Tokens of a period, and of a phase in it: a block of the transform along tokens and a page; a
# group; a segment of records; the whole context.
PERIODS = ((16, 1), (64, 4), (256, 16), (1024, 64))


def sentence(text, tokens):
    """Prose of so many tokens, as parts."""
    while True:
        at = len(text.parts)
        text.prose()
        if len(text.parts) - at == tokens:
            return text.parts[at:]


def context(texts, seed, offset):
    """Token ids of the context and of its questions, [(ids, answer ids, place)]."""
    from vocabulary import BEGIN, ID
    text, facts = texts.Text(texts.Draw(seed)), []
    parts = sentence(text, 8) + sentence(text, 8)
    parts += [" the", " day", " left", " the", " old", " road", " and", " the", " king", " near",
              " the", " sea", " by", " the", " hill"][:offset]
    while len(facts) < PLACES:
        at = len(text.parts)
        text.fact()
        if len(text.parts) - at == 8:
            facts.append((text.facts[-1], 1 + len(parts)))
            parts += text.parts[at:] + sentence(text, 8)
    asked = []
    for (name, relation, value), place in facts:
        asked.append(([ID[p] for p in ["?", *texts.name_parts(name), " " + relation]],
                      [ID[p] for p in [*value, "."]], place))
    return [BEGIN] + [ID[p] for p in parts], asked


def answers(model, tokens, asked, kv):
    """By fact, whether all tokens of its answer are the most probable ones."""
    import numpy as np
    import torch
    past = [(torch.from_numpy(np.ascontiguousarray(k)), torch.from_numpy(np.ascontiguousarray(v)))
            for k, v in zip(*kv)]
    ids, spans = [], []
    for question, answer, _ in asked:
        ids += question
        spans.append((len(ids), len(ids) + len(answer)))
        ids += answer
    _, _, logits, _, _ = model.run(ids, len(tokens), past, None, 0, len(ids), None)
    said = logits.argmax(-1)
    return [all(said[i - 1] == ids[i] for i in range(*span)) for span in spans]


def by_phase(places, right, period, width):
    count, good = [0] * (period // width), [0] * (period // width)
    for place, kept in zip(places, right):
        phase = place % period // width
        count[phase] += 1
        good[phase] += kept
    return [g / c for g, c in zip(good, count) if c]


def report(name, bits, places, right, draw):
    mean = sum(right) / len(right)
    shuffles = [draw.sample(right, len(right)) for _ in range(SHUFFLES)]
    for period, width in PERIODS:
        worst = min(by_phase(places, right, period, width))
        chance = sorted(mean - min(by_phase(places, s, period, width)) for s in shuffles)
        print(f"| {name} | {bits:.2f} | {period} | {mean:.4f} | {worst:.4f} | "
              f"{100 * (mean - worst):.2f} | {100 * chance[int(0.95 * SHUFFLES)]:.2f} |",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=os.path.join(HERE, "..", "reference_model", "model"))
    parser.add_argument("--basis", help="a profile whose bases variants of transform name")
    parser.add_argument("--variants", required=True)
    parser.add_argument("--draws", type=int, default=8)
    options = parser.parse_args()
    if options.draws < 1 or not options.variants.split():
        parser.error("one draw and one variant at least")
    import kvterrace
    import texts
    from codec_rivals import Records
    from kvterrace.model_host import Model
    bases = []
    if options.basis:
        try:
            with sqlite3.connect(f"file:{options.basis}?mode=ro", uri=True) as profile:
                bases = [row[0] for row in profile.execute("SELECT object FROM basis")]
        except sqlite3.Error as error:
            sys.exit(f"recall_phase.py: {options.basis}: {error}")
    model, codec = Model(options.model), Records(bases)
    names, places = ["exact", *options.variants.split()], []
    right, bits = {name: [] for name in names}, dict.fromkeys(names, 16.0)
    # An interruption ends the draws; what was asked until then is printed.
    with contextlib.suppress(KeyboardInterrupt):
        for seed in range(options.draws):
            for offset in range(NEEDLE):
                tokens, asked = context(texts, 1000 * seed + offset, offset)
                keys, values, _, _, _ = model.run(tokens, 0, None, None, 0, 0, None)
                exact = [[x.astype("float16").astype("float32") for x in side]
                         for side in (keys, values)]
                said = {}
                for name in names:
                    kv = exact
                    if name != "exact":
                        try:
                            kv, bits[name] = codec.code(exact, name)
                        except kvterrace.Error as error:
                            sys.exit(f"recall_phase.py: {name}: {error}")
                    said[name] = answers(model, tokens, asked, kv)
                places += [place for _, _, place in asked]
                for name in names:
                    right[name] += said[name]
            print(f"{seed + 1} of {options.draws}", file=sys.stderr, flush=True)
    if not places:
        sys.exit("recall_phase.py: interrupted before anything was asked")
    print("| variant | bits | period | right | worst phase | below the mean, points | chance |\n"
          "|---|---|---|---|---|---|---|")
    for name in names:
        report(name, bits[name], places, right[name], random.Random(1))


if __name__ == "__main__":
    main()
