#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes texts with questions and answers for measuring quality; see docs/REFERENCE_MODEL.md.

    reference_model/make_texts.py --context 768 --continuation 200 --count 128 > recall-768.jsonl

One JSON object per line: "text" is a context and questions about it with their answers;
"context" counts the bytes of the context; "questions" is a list of [question, answer, end]: text
from question to answer is what to append to the context, text from answer to end what a model
should generate. Only the standard library is used.
"""

import argparse
import json
import sys

import texts


def make(draw, context, continuation):
    """A context of `context` tokens and as many questions as reach `continuation` more, no
    two about the same fact while there are others."""
    text = texts.evaluation_text(draw, context)
    context_parts, order, marks = len(text.parts), [], []
    while len(text.parts) < context_parts + continuation:
        if not order:
            order = draw.shuffled(range(len(text.facts)))
        first = len(text.parts)
        fact = order.pop()
        text.question(fact)
        marks.append((first, len(text.parts) - len(text.facts[fact][2]) - 1, len(text.parts)))
    ends = [-1]  # in bytes; the tokenizer's own blank in front of the text is not in the string
    for part in text.parts:
        ends.append(ends[-1] + len(part))
    return {"text": text.string(), "context": ends[context_parts],
            "questions": [[ends[i] for i in mark] for mark in marks]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--context", type=int, required=True, help="tokens, begin token included")
    parser.add_argument("--continuation", type=int, default=200, help="tokens, at least")
    parser.add_argument("--count", type=int, required=True, help="texts")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for i in range(arguments.count):
        draw = texts.Draw("%d text %d %d" % (arguments.seed, arguments.context, i))
        json.dump(make(draw, arguments.context, arguments.continuation), sys.stdout)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
