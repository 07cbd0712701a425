#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bits and loss of codecs on any model of transformers, all by one judge.

    PYTHONPATH=build/python lab/codec_rivals.py --model models/qwen --profile p.db \\
        --text qa=held/qa.jsonl --text code=held/code.jsonl --teach chat=texts/chat.jsonl \\
        --contexts 4 --variants "kivi:k4v4 entropy:k0.25v0.5" --rivals kvtc:1,turboquant:4

Texts are token ids (docs/PROFILE.md). The KV of a context goes through a codec and back, and the
model continues on it: answers, and the passage to be repeated. A row is one entry and contender:
bits an element of the whole record (less the first 4 tokens, which all contenders keep exact), KL
of the answers' and of the passage's tokens, and whether the most probable token stays (top-1).

The project's variants run through kvterrace.codec; bases come from the profile. Two rivals that are
not in the library are written here from their papers:

  kvtc:B       KVTC (arXiv 2511.01815): K, turned back, and V of all layers and heads of a token are
               one vector each; PCA of the texts of --teach; groups of components with 0, 2, 4 or 8
               bits by their least squared error at B bits an element together; DEFLATE behind it.
  turboquant:B TurboQuant (arXiv 2504.19874): a head's row is rotated at random, divided by its
               length, and quantised by the Lloyd-Max points of a normal distribution at B bits.

Needs torch, transformers and numpy.
"""
import argparse
import functools
import json
import math
import os
import random
import sqlite3
import sys
import time
import zlib

SINKS = 4
PART_TOKENS = 1024
DRAWS = 2000


class Refused(Exception):
    """What is asked for cannot be run; the text says why."""


# ---- texts ----

def entries_of(path, count, skip=0, longest=None):
    """The first `count` entries of a file of token ids, one of each document."""
    found, seen = [], set()
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                entry = json.loads(line)
                entry["tokens"][entry["context"]], entry["document"]
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise Refused(f"{path}: a line without token ids, a context that ends in them and "
                              f"a document: {error!r}") from error
            if entry["document"] in seen or (longest and entry["context"] > longest):
                continue
            seen.add(entry["document"])
            found.append(entry)
    return found[skip:skip + count]


# ---- rotation of keys ----

class Rotation:
    """Turns keys back to position 0, and to their position again."""

    def __init__(self, model):
        import numpy as np
        from kvterrace.model_host import NEIGHBOURS
        self.frequencies = np.asarray(model.frequencies())
        if not len(self.frequencies):
            raise Refused("the rotation of this model differs between layers: kvtc needs one")
        self.np = np
        self.halves = model.config.model_type not in NEIGHBOURS

    def turn(self, keys, positions, way):
        """keys [tokens][heads][dim]; way 1 turns to the positions, -1 back."""
        np, half = self.np, len(self.frequencies)
        angle = np.outer(positions, self.frequencies)[:, None, :] * way
        cos, sin = np.cos(angle), np.sin(angle)
        out = keys.copy()
        first = slice(0, half) if self.halves else slice(0, 2 * half, 2)
        second = slice(half, 2 * half) if self.halves else slice(1, 2 * half, 2)
        x, y = keys[..., first], keys[..., second]
        out[..., first] = x * cos - y * sin
        out[..., second] = x * sin + y * cos
        return out


# ---- contenders: (keys, values) by layer, [tokens][heads][dim] -> the same, and bits ----

class Kvtc:
    """KVTC at so many bits an element, taught on KV of other texts."""

    GROUPS = (16, 32, 64, 128, 256, 512, 1024)
    WIDTHS = (0, 2, 4, 8)

    def __init__(self, rotation, taught):
        """taught: [(keys, values)] of documents."""
        import numpy as np
        self.np, self.rotation = np, rotation
        self.sides = []
        for side in (0, 1):
            rows = np.concatenate([self.rows(kv, side) for kv in taught])
            mean = rows.mean(0)
            rows = (rows - mean).astype(np.float32)
            variance, axes = np.linalg.eigh(rows.T @ rows / len(rows))
            # Of fewer rows than elements the other directions are not known.
            known = np.argsort(-variance)[:len(rows)]
            self.sides.append((mean, np.ascontiguousarray(axes[:, known].T),
                               np.maximum(variance[known].astype(np.float64), 0.0)))
        self.plans = {}

    def rows(self, kv, side):
        np = self.np
        layers = kv[side]
        tokens = len(layers[0])
        if side == 0:
            layers = [self.rotation.turn(k, np.arange(tokens), -1) for k in layers]
        return np.concatenate([x.reshape(tokens, -1) for x in layers], 1)[SINKS:]

    def plan(self, side, bits):
        """Components in runs of GROUPS, each with a width: the least squared error at the budget,
        by dynamic programming at a price of a bit. Side information is 32 bits a token and group
        that is stored. Steps are even over the range of a group, about 3.5 deviations each way."""
        np = self.np
        _, axes, variance = self.sides[side]
        width, unit = len(variance), self.GROUPS[0]
        sums = np.concatenate([[0.0], np.cumsum(variance)])
        places = list(range(0, width, unit)) + [width]
        budget = bits * axes.shape[1]

        def choices(at):
            """(end, width, error, bits) of each group that may begin at a place."""
            for size in self.GROUPS:
                end = min(places[at] + size, width)
                zero = sums[end] - sums[places[at]]
                for b in self.WIDTHS:
                    step = 7.0 / (2 ** b - 1) if b else 0.0
                    noise = (end - places[at]) * variance[places[at]] * step ** 2 / 12
                    error = noise if b else zero
                    yield end, b, error, (b * (end - places[at]) + 32) if b else 0

        table = [list(choices(at)) for at in range(len(places) - 1)]
        index = {place: i for i, place in enumerate(places)}

        def divide(price):
            best = [None] * (len(places) - 1) + [(0.0, None)]
            for at in range(len(places) - 2, -1, -1):
                best[at] = min((error + price * cost + best[index[end]][0], (end, b, cost))
                               for end, b, error, cost in table[at])
            groups, used, at = [], 0, 0
            while at < len(places) - 1:
                end, b, cost = best[at][1]
                groups.append((places[at], end, b))
                used, at = used + cost, index[end]
            return groups, used

        low, high = 1e-9 * variance[0], 10 * variance[0]
        for _ in range(24):
            price = math.sqrt(low * high)
            low, high = (price, high) if divide(price)[1] > budget else (low, price)
        return divide(high)[0]

    def code(self, kv, bits):
        np = self.np
        tokens, stored, elements, back = len(kv[0][0]), 0, 0, []
        for side in (0, 1):
            mean, axes, _ = self.sides[side]
            if (side, bits) not in self.plans:
                self.plans[side, bits] = self.plan(side, bits)
            groups = self.plans[side, bits]
            x = self.rows(kv, side)
            y = (x - mean) @ axes.T
            made, packed = np.zeros_like(y), []
            for first, end, width in groups:
                if width == 0:
                    continue
                part = y[:, first:end]
                least = part.min(1, keepdims=True).astype(np.float16).astype(np.float32)
                step = ((part.max(1, keepdims=True) - least) / (2 ** width - 1)).astype(np.float16)
                step = np.maximum(step.astype(np.float32), 1e-8)
                q = np.clip(np.rint((part - least) / step), 0, 2 ** width - 1)
                made[:, first:end] = q * step + least
                flat = q.astype(np.uint8).reshape(-1)
                planes = np.unpackbits(flat[:, None], axis=1)[:, 8 - width:]
                packed.append(np.packbits(planes.reshape(-1)).tobytes())
                stored += 32 * len(part)
            stored += 8 * len(zlib.compress(b"".join(packed), 6))
            elements += x.size
            restored = made @ axes + mean
            layers, at = [], 0
            for layer in kv[side]:
                size = layer[0].size
                new = layer.copy()
                new[SINKS:] = restored[:, at:at + size].reshape(new[SINKS:].shape)
                if side == 0:
                    turned = self.rotation.turn(new, np.arange(tokens), 1)
                    new[SINKS:] = turned[SINKS:]
                layers.append(new)
                at += size
            back.append(layers)
        return back, stored / elements


class TurboQuant:
    """TurboQuant's quantiser of least squared error, with one rotation for all heads."""

    def __init__(self, dim, seed=1):
        import numpy as np
        self.np = np
        draw = np.random.default_rng(seed)
        self.rotation = np.linalg.qr(draw.standard_normal((dim, dim)))[0].astype(np.float32)
        self.sample = np.sort(draw.standard_normal(200000))
        self.points = functools.cache(self.points)

    def points(self, bits):
        """Lloyd-Max of a normal distribution, on a sample."""
        np = self.np
        points = np.quantile(self.sample, (np.arange(2 ** bits) + 0.5) / 2 ** bits)
        for _ in range(200):
            cells = np.searchsorted((points[1:] + points[:-1]) / 2, self.sample)
            points = np.array([self.sample[cells == i].mean() for i in range(len(points))])
        return points.astype(np.float32)

    def code(self, kv, bits):
        np, points = self.np, self.points(int(bits))
        edges, back = (points[1:] + points[:-1]) / 2, []
        for side in (0, 1):
            layers = []
            for layer in kv[side]:
                dim = layer.shape[-1]
                rows = layer[SINKS:] @ self.rotation
                length = np.linalg.norm(rows, axis=-1, keepdims=True) / math.sqrt(dim)
                length = np.maximum(length.astype(np.float16).astype(np.float32), 1e-6)
                made = points[np.searchsorted(edges, rows / length)] * length
                new = layer.copy()
                new[SINKS:] = made @ self.rotation.T
                layers.append(new)
            back.append(layers)
        return back, bits + 16.0 / kv[0][0].shape[-1]


class Records:
    """The project's codecs, through records."""

    def __init__(self, bases):
        import kvterrace
        from kvterrace import codec
        self.kvterrace, self.codec = kvterrace, codec
        self.bases = [codec.Basis(data) for data in bases]

    def code(self, kv, variant):
        import numpy as np
        tokens, heads, dim = kv[0][0].shape
        layout = self.kvterrace.Layout(layers=len(kv[0]), kv_heads=heads, head_dim=dim,
                                       tokens=tokens, dtype="fp16")
        # K and V of a layer, as a packed entry has them: [layer][side][token][head][dim].
        whole = np.stack([np.stack(pair) for pair in zip(*kv)]).astype(np.float16)
        record = self.codec.encode(whole, layout, variant, sink_tokens=SINKS, bases=self.bases)
        bits = 8.0 * len(record) / (whole.size)
        back = np.frombuffer(self.codec.decode(record, bases=self.bases), np.float16)
        back = back.reshape(whole.shape).astype(np.float32)
        coded = (bits - 16.0 * SINKS / tokens) * tokens / (tokens - SINKS)
        return [list(back[:, 0]), list(back[:, 1])], coded


# ---- judging ----

def kv_of(model, entry):
    """The KV of an entry's context in fp16, as fp32: keys and values by layer. Tokens go in by
    parts, so that the scores of 16K tokens do not take tens of gigabytes."""
    import numpy as np
    import torch
    sides = None
    for first in range(0, entry["context"], PART_TOKENS):
        tokens = entry["tokens"][first:min(first + PART_TOKENS, entry["context"])]
        past = sides and [tuple(map(torch.from_numpy, pair)) for pair in zip(*sides)]
        part = model.run(tokens, first, past, None, 0, 0, None)[:2]
        sides = part if sides is None else [[np.concatenate(both) for both in zip(*side)]
                                            for side in zip(sides, part)]
    return [[x.astype("float16").astype("float32") for x in side] for side in sides]


class Judge:
    """What the model says on KV that came back, beside what it says on the exact KV."""

    def __init__(self, model, entry):
        self.model, self.entry = model, entry
        self.context = entry["context"]
        tokens = entry["tokens"]
        self.kv = kv_of(model, entry)
        self.sets = [("answers", tokens[self.context:], self.answers())]
        if "recall" in entry:
            extra = entry["recall"]["tokens"]
            first = len(extra) - entry["recall"]["scored"]
            self.sets.append(("recall", extra, list(range(first, len(extra)))))
        self.exact = self.ask(self.kv)

    def answers(self):
        """The tokens of the continuation that count, as places in it."""
        marks = self.entry.get("questions")
        if not marks:
            return list(range(1, len(self.entry["tokens"]) - self.context))
        return [at - self.context for _, answer, end in marks for at in range(answer, end)]

    def ask(self, kv):
        """By set, log probabilities of the rows that predict the tokens that count."""
        import numpy as np
        import torch
        past = [(torch.from_numpy(np.ascontiguousarray(k)), torch.from_numpy(
            np.ascontiguousarray(v))) for k, v in zip(*kv)]
        said = {}
        for name, tokens, places in self.sets:
            first = min(places) - 1
            _, _, logits, _, _ = self.model.run(tokens, self.context, past, None, first,
                                                len(tokens) - first, None)
            rows = torch.from_numpy(logits[[p - 1 - first for p in places]])
            said[name] = torch.log_softmax(rows, -1)
        return said

    def judge(self, kv):
        row, said = {}, self.ask(kv)
        for name, exact in self.exact.items():
            kl = (exact.exp() * (exact - said[name])).sum(-1)
            row["kl_" + name] = max(float(kl.mean()), 0.0)
            row["top1_" + name] = float((exact.argmax(-1) == said[name].argmax(-1)).float().mean())
        return row


def interval(values, draw):
    """Mean with the 95 % interval of drawn documents."""
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(DRAWS))
    return [sum(values) / len(values), means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]]


def bases_of(path, name):
    if path is None:
        return []
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as profile:
        rows = profile.execute("SELECT b.object FROM basis b JOIN model m ON m.id = b.model_id "
                               "WHERE m.name = ? ORDER BY b.span", (name,)).fetchall()
    return [row[0] for row in rows]


def tables(rows, draw):
    """One line a contender, in the order of their bits."""
    by = {}
    for row in rows:
        by.setdefault(row["contender"], []).append(row)
    lines = []
    for name, own in by.items():
        line = {"contender": name, "entries": len(own),
                "bits": sum(r["bits"] for r in own) / len(own)}
        for key in ("kl_answers", "kl_recall", "top1_answers", "top1_recall"):
            values = [r[key] for r in own if key in r]
            if values:
                line[key] = interval(values, draw)
        lines.append(line)
    return sorted(lines, key=lambda line: -line["bits"])


def show(lines):
    print(f"{'contender':34} {'bits':>6} {'KL answers 1e-3':>24} {'recall 1e-3':>24} "
          f"{'top-1':>7} {'recall':>7}")
    for line in lines:
        cells = [f"{line['contender']:34} {line['bits']:6.3f}"]
        for key in ("kl_answers", "kl_recall"):
            mean, low, high = (1e3 * x for x in line.get(key, [math.nan] * 3))
            cells.append(f"{mean:8.2f} [{low:6.2f}, {high:6.2f}]")
        cells += [f"{line.get(key, [math.nan])[0]:7.4f}" for key in ("top1_answers", "top1_recall")]
        print(" ".join(cells))


def contenders_of(options, model, teach):
    """(name, code) pairs; code takes KV and gives it back with its bits."""
    records = Records(bases_of(options.profile, options.name))
    names = [v for v in options.variants.replace(";", " ").split() if v]
    for basis in records.bases:
        names += [basis.variant(step) for step in options.steps]
    found = [(n, lambda kv, n=n: records.code(kv, n)) for n in names]
    turbo = TurboQuant(model.head_dim)
    taught = functools.cache(lambda: Kvtc(Rotation(model), [kv_of(model, e) for e in teach]))
    for name in filter(None, options.rivals.split(",")):
        kind, _, bits = name.partition(":")
        if kind == "turboquant":
            found.append((name, lambda kv, b=float(bits): turbo.code(kv, b)))
        elif kind == "kvtc":
            if not teach:
                raise Refused("kvtc needs texts of --teach")
            found.append((name, lambda kv, b=float(bits): taught().code(kv, b)))
        else:
            raise Refused(f"no rival {name}")
    return found


class Table:
    """The rows, in the file of --out after each: a run that was stopped goes on behind them. What
    rows of one file share is `about`: the model, and the texts that kvtc learns on."""

    SCHEMA = "kvterrace-codec-rivals-1"

    def __init__(self, path, **about):
        self.path, self.about, self.rows, self.known = path, about, [], set()
        if not path:
            return
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise Refused(f"{path}: its folder does not exist")
        if not os.path.exists(path):
            return
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
            schema, self.rows = found["schema"], found["rows"]
            others = [name for name in about if found.get(name) != about[name]]
            self.known = {self.key(row) for row in self.rows}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{path}: no rows of this program: {error!r}") from error
        if schema != self.SCHEMA or others:
            raise Refused(f"{path}: rows of another {' and '.join(others) or 'program'}")

    @staticmethod
    def key(row):
        return row["contender"], row["class"], row["document"], row["context"]

    def add(self, row):
        self.rows.append(row)
        self.known.add(self.key(row))
        if self.path:
            with open(self.path + ".part", "w", encoding="utf-8") as file:
                json.dump({"schema": self.SCHEMA, **self.about, "rows": self.rows}, file)
            os.replace(self.path + ".part", self.path)


def run(options):
    from kvterrace.model_host import Model
    teach = [e for given in options.teach
             for e in entries_of(given.partition("=")[2], options.teach_contexts)]
    turns = [(turn, kind, entry) for kind, _, path in (t.partition("=") for t in options.text)
             for turn, entry in enumerate(entries_of(path, options.contexts, options.skip,
                                                     options.longest))]
    table = Table(options.out, model=options.name,
                  lesson=[[e["document"], e["context"]] for e in teach])
    model, start = Model(options.model), time.time()
    contenders = contenders_of(options, model, teach)
    for _, kind, entry in sorted(turns, key=lambda turn: turn[0]):  # classes take turns
        about = {"class": kind, "document": entry["document"], "context": entry["context"]}
        asked = [(name, code) for name, code in contenders
                 if Table.key({"contender": name, **about}) not in table.known]
        judge = Judge(model, entry) if asked else None
        for name, code in asked:
            back, bits = code(judge.kv)
            table.add({"contender": name, **about, "bits": bits, **judge.judge(back)})
        print(f"{time.time() - start:.0f} s: {kind}, {entry['document']}, {entry['context']} "
              "tokens", file=sys.stderr, flush=True)
    if not table.rows:
        raise Refused("no entry to judge")
    show(tables(table.rows, random.Random(1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a name or folder that transformers loads")
    parser.add_argument("--name", help="in the profile (the last part of --model)")
    parser.add_argument("--profile", help="a profile whose bases run as well")
    parser.add_argument("--text", action="append", required=True, metavar="CLASS=FILE")
    parser.add_argument("--teach", action="append", default=[], metavar="CLASS=FILE",
                        help="texts that kvtc learns on")
    parser.add_argument("--teach-contexts", type=int, default=4, help="of each of them")
    parser.add_argument("--contexts", type=int, default=4, help="entries of each class")
    parser.add_argument("--skip", type=int, default=0, help="documents before the first")
    parser.add_argument("--longest", type=int, help="tokens of a context at most")
    parser.add_argument("--variants", default="planes:k8v8,g64 planes:k6v4,g64 kivi:k4v4,g64 "
                        "kivi:k2v2,g64 entropy:k0.25v0.5 entropy:k0.5v1")
    parser.add_argument("--steps", type=float, nargs="*", default=[0.5, 1, 1.5, 3],
                        help="of the bases' variants")
    parser.add_argument("--rivals", default="kvtc:1,kvtc:2,turboquant:4,turboquant:3")
    parser.add_argument("--out", help="a JSON file for the rows; a stopped run goes on behind them")
    options = parser.parse_args()
    options.name = options.name or os.path.basename(os.path.normpath(options.model))
    try:
        run(options)
    except (Refused, OSError) as error:
        sys.exit(f"codec_rivals.py: {error}")


if __name__ == "__main__":
    main()
