# SPDX-License-Identifier: Apache-2.0
"""The reference model's vocabulary: 672 pieces in the llama2.c layout that the decoder reads.

Ids 0..2 are unknown, begin and end, 3..258 the bytes. The pieces after them are built so that every
word of texts.py is one token and every name two: the first syllable with its leading blank and the
second without. A number of two digits is one token with its leading blank.
"""

import struct

CONSONANTS = "bdfghklmnprstvwz"
VOWELS = "aeiou"
SYLLABLES = [c + v for c in CONSONANTS for v in VOWELS]
NUMBERS = ["%02d" % n for n in range(100)]

RELATIONS = ["is", "has", "likes", "keeps"]
ADJECTIVES = ["old", "red", "big", "new", "cold", "dark"]
NOUNS = ["king", "girl", "boy", "fox", "dog", "cat", "ship", "mill", "hill", "sea", "road", "day"]
VERBS = ["saw", "met", "left", "found"]
PLACES = ["in", "on", "by", "near"]
OTHERS = ["the", "and", "copy", "count", "from", "then", "went", "to", "who", "said", "that"]
WORDS = RELATIONS + ADJECTIVES + NOUNS + VERBS + PLACES + OTHERS
MARKS = ".,?:\n"

UNKNOWN, BEGIN, END, BYTE_FIRST, PIECE_FIRST = 0, 1, 2, 3, 259
SIZE = 672


def merge(pieces, scores, text):
    """The tokenizer's rule: the adjacent pair of the highest score, the leftmost of equals."""
    parts = list(text)
    while True:
        best = None
        for i in range(len(parts) - 1):
            score = scores.get(parts[i] + parts[i + 1])
            if score is not None and (best is None or score > best[0]):
                best = (score, i)
        if best is None:
            return parts
        i = best[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def build():
    """The pieces from id 259 on, each with its score; single characters have the lowest."""
    scores = {}
    for c in " abcdefghijklmnopqrstuvwxyz0123456789" + MARKS:
        scores[c] = -1000.0
    # A blank joins what follows it before anything else, so that no name depends on its neighbour.
    for c in "abcdefghijklmnopqrstuvwxyz0123456789":
        scores[" " + c] = 0.0
    for s in SYLLABLES:
        scores[" " + s] = -1.0
    for n in NUMBERS:
        scores[" " + n] = -1.0
    for s in SYLLABLES:
        scores[s] = -2.0
    # Whatever the pieces so far make of a word is joined from the left, at a lower score each.
    rank = -3.0
    for word in WORDS:
        parts = merge(None, scores, " " + word)
        while len(parts) > 1:
            scores[parts[0] + parts[1]] = rank
            rank -= 1.0
            parts = merge(None, scores, " " + word)
    return list(scores.items())


PIECES = build()
SCORES = dict(PIECES)
ID = {text: PIECE_FIRST + i for i, (text, _) in enumerate(PIECES)}
# A name that is a word, or becomes a piece of one, would not be two tokens.
NAMES = [a + b for a in SYLLABLES for b in SYLLABLES if " " + a + b not in SCORES]


def encode(text):
    """As tokenizer_encode does: the begin token, then a text with a leading blank."""
    ids = [BEGIN]
    for part in merge(None, SCORES, " " + text if text else ""):
        ids.extend([ID[part]] if part in ID else [BYTE_FIRST + b for b in part.encode()])
    return ids


def write(path):
    pieces = [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0)]
    pieces += [("<0x%02X>" % b, 0.0) for b in range(256)] + PIECES
    pieces += [("<unused%d>" % i, -1e6) for i in range(SIZE - len(pieces))]
    with open(path, "wb") as file:
        file.write(struct.pack("<i", max(len(t.encode()) for t, _ in pieces)))
        for text, score in pieces:
            data = text.encode()
            file.write(struct.pack("<fi", score, len(data)) + data)
