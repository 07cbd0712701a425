# SPDX-License-Identifier: Apache-2.0
"""Users who come back: prompts that are asked one after the other, and then all at once, while the
engine's own memory has room for a few and its tier in host memory for a third. A second tier behind
it has the rest; who finds host memory full waits for room, or computes. Beside vLLM's own tier of
files.

    python -m kvterrace.bench returning --folder /mnt/ssd [--model FOLDER] [--repeats 3]

Each repeat is a fresh process and an empty store for each tier, turn about. An answer that differs
from the first one's is a failure, no sample.
"""

import importlib.util
import os
import random
import shutil
import statistics
import sys
import tempfile

from . import _bench_vllm as vllm

USERS, TOKENS, OWN = 16, 4096, 2
WANTED = 2.0


def bench_returning(repeats, folder=None, model=None):
    """Two rows: the mean first token of those who come back, and what each of them hit."""
    if importlib.util.find_spec("vllm") is None:
        raise SystemExit("bench: vLLM is not installed here (docs/ENGINES.md)")
    base, taken = tempfile.mkdtemp(prefix="kvt-bench-", dir=folder), []
    try:
        path, dummy, vocabulary, token_bytes = vllm._model(base, model)
        numbers = random.Random(2)
        prompts = [[numbers.randrange(8, vocabulary) for _ in range(TOKENS)] for _ in range(USERS)]
        every = USERS * TOKENS * token_bytes
        request = {"model": path, "dummy": dummy, "prompts": prompts, "length": TOKENS + 64,
                   "passes": 2, "keep": True, "together": True, "host_bytes": every // 3,
                   "dtype": "float16" if dummy else "bfloat16",
                   "blocks": OWN * (TOKENS // vllm.BLOCK + 2)}
        for number in range(repeats):
            said = {}
            for name in ("kvterrace", "fs") if number % 2 == 0 else ("fs", "kvterrace"):
                place = os.path.join(base, f"{name}-{number}")
                tier = vllm._tiers(place, every)[name]
                said[name] = answer = vllm._process({**request, "tier": tier})
                first, again = answer["passes"]
                vllm._check(name, first, again, None, answer["log"])
                shutil.rmtree(place, ignore_errors=True)
            taken.append(said)
            print(f"bench: returning {number + 1} of {repeats}: " + ", ".join(
                f"{name} {_mean(answer['passes'][1]):.3f} s" for name, answer in said.items()),
                file=sys.stderr, flush=True)
        return [{"tier": name, "users": USERS, "tokens": TOKENS, "kv_bytes": every,
                 "host_bytes": every // 3, "repeats": repeats, "wanted": WANTED,
                 "first_s": statistics.median(_mean(one[name]["passes"][0]) for one in taken),
                 "again_s": statistics.median(_mean(one[name]["passes"][1]) for one in taken),
                 "ratio": statistics.median(_mean(one["fs"]["passes"][1]) /
                                            _mean(one[name]["passes"][1]) for one in taken),
                 "cached": [one["cached"] for one in taken[-1][name]["passes"][1]]}
                for name in ("kvterrace", "fs")]
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _mean(said):
    return statistics.mean(one["seconds"] for one in said)


def print_returning(rows):
    for row in rows:
        print(f"{row['tier']:<10} {row['users']} users of {row['tokens']} tokens: first "
              f"{row['first_s']:.3f} s, again {row['again_s']:.3f} s in the mean, "
              f"{row['ratio']:.2f} times as fast as fs (wanted {row['wanted']:.1f}); tokens found "
              f"by user: {' '.join(map(str, row['cached']))}")
