#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes drop_vectors.json: small K and V tensors with the scores that token dropping gives them.

    python3 tests/support/make_drop_vectors.py > tests/support/drop_vectors.json

An independent computation: one head and one token at a time, from the published definitions
(StreamingLLM arXiv 2309.17453, K-norm 2406.11430, KeyDiff 2504.15364, LagKV 2504.04704, in the
forms of NVIDIA's kvpress), with correctly rounded sums and libm. Only the standard library is used.
"""

import json
import math
import random
import struct

CASES = [
    # name, dtype, tokens, heads, dim, lag, sinks, first position, keep in 1/1000
    ("bf16 two heads", "bf16", 26, 2, 8, 4, 2, 0, 500),
    ("fp16 three heads", "fp16", 32, 3, 8, 6, 4, 0, 333),
    ("odd channels", "fp16", 23, 1, 5, 5, 4, 2, 750),
    ("no sinks here", "bf16", 24, 2, 12, 7, 4, 64, 250),
    ("too short for a lag", "fp16", 11, 2, 8, 4, 4, 0, 600),
    ("wide heads", "bf16", 6, 1, 130, 3, 0, 0, 400),
]


def to_float(bits, dtype):
    if dtype == "bf16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return struct.unpack("<e", struct.pack("<H", bits))[0]


def draw(rng, tokens, heads, dim, dtype):
    """bits[token][head][channel]: each channel has a scale, one in four a mean."""
    scales = [[2.0 ** (3 * rng.random() - 2) for _ in range(dim)] for _ in range(heads)]
    means = [[(4 * rng.random() - 2) if rng.random() < 0.25 else 0.0 for _ in range(dim)]
             for _ in range(heads)]
    rows = []
    for _ in range(tokens):
        row = []
        for head in range(heads):
            values = []
            for c in range(dim):
                value = sum(rng.random() for _ in range(4)) - 2 + means[head][c]
                value *= scales[head][c]
                if dtype == "bf16":
                    values.append(struct.unpack("<I", struct.pack("<f", value))[0] >> 16)
                else:
                    values.append(struct.unpack("<H", struct.pack("<e", value))[0])
            row.append(values)
        rows.append(row)
    return rows


def head_of(bits, head, dtype):
    return [[to_float(b, dtype) for b in row[head]] for row in bits]


def norm(vector):
    return math.sqrt(math.fsum(x * x for x in vector))


def knorm(keys):
    return [-norm(k) for k in keys]


def keydiff(keys):
    unit = [[x / max(norm(k), 1e-12) for x in k] for k in keys]
    anchor = [math.fsum(column) / len(keys) for column in zip(*unit)]
    size = max(norm(anchor), 1e-8)
    return [-math.fsum(x * a for x, a in zip(k, anchor)) / (max(norm(k), 1e-8) * size)
            for k in keys]


def softmax(values):
    top = max(values)
    parts = [math.exp(v - top) for v in values]
    return [p / math.fsum(parts) for p in parts]


def lag_states(part, reference):
    low = [min(column) for column in zip(*reference)]
    high = [max(column) for column in zip(*reference)]
    spreads = []
    for vector in part:
        relative = [(x - a) / (b - a) for x, a, b in zip(vector, low, high)]
        mean = math.fsum(relative) / len(relative)
        spreads.append(math.sqrt(math.fsum((r - mean) ** 2 for r in relative) /
                                 (len(relative) - 1)))
    return softmax(spreads)


def lagkv(keys, values, sinks, lag):
    count = len(keys)
    if count < sinks + 2 * lag:
        rest = count - sinks
        return [1.0] * sinks + [i / rest for i in range(rest)]
    end = sinks + (count - sinks) // lag * lag
    scores = [1.0] * sinks
    for start in range(sinks, end - lag, lag):
        part, after = slice(start, start + lag), slice(start + lag, start + 2 * lag)
        both = [(a + b) / 2 for a, b in zip(lag_states(keys[part], keys[after]),
                                            lag_states(values[part], values[after]))]
        order = sorted(range(lag), key=lambda i: (both[i], -i))
        ranks = [0] * lag
        for rank, i in enumerate(order):
            ranks[i] = rank
        scores += [rank / lag for rank in ranks]
    return scores + [1.0] * (count - len(scores))


def select(scores, sinks, keep_permille):
    """Sinks, then by score, the lower token first; ascending. Equal means are made equal."""
    count = len(scores)
    keep = max(-(-count * keep_permille // 1000), sinks)
    order = sorted(range(count), key=lambda t: (t >= sinks, -round(scores[t], 12), t))
    return sorted(order[:keep])


def mean_over_heads(parts):
    return [math.fsum(column) / len(parts) for column in zip(*parts)]


def case_of(number, case):
    name, dtype, tokens, heads, dim, lag, sinks, first, keep = case
    rng = random.Random(1000 + number)
    k, v = draw(rng, tokens, heads, dim, dtype), draw(rng, tokens, heads, dim, dtype)
    here = min(max(sinks - first, 0), tokens)
    scores = {"knorm": [], "keydiff": [], "lagkv": []}
    for head in range(heads):
        keys, values = head_of(k, head, dtype), head_of(v, head, dtype)
        scores["knorm"].append(knorm(keys))
        scores["keydiff"].append(keydiff(keys))
        scores["lagkv"].append(lagkv(keys, values, here, lag))
    means = {method: mean_over_heads(parts) for method, parts in scores.items()}
    return {"name": name, "dtype": dtype, "tokens": tokens, "heads": heads, "dim": dim, "lag": lag,
            "sinks": sinks, "first_position": first, "keep_permille": keep,
            "k": [bits for row in k for part in row for bits in part],
            "v": [bits for row in v for part in row for bits in part], "scores": means,
            "kept": {method: select(mean, here, keep) for method, mean in means.items()}}


def main():
    rows = [json.dumps(case_of(number, case)) for number, case in enumerate(CASES)]
    print("[\n" + ",\n".join(rows) + "\n]")


if __name__ == "__main__":
    main()
