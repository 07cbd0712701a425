# SPDX-License-Identifier: Apache-2.0
"""Synthetic texts: facts and questions about them, copying, counting and template prose.

A text is made of sentences. A fact is "NAME RELATION VALUE.", a question "? NAME RELATION VALUE."
about a fact stated before; its answer is the value with the full stop. Everything is drawn from one
Draw, so that a seed gives the same texts on every machine and with every Python.
"""

import random

from vocabulary import (ADJECTIVES, BEGIN, ID, NAMES, NOUNS, NUMBERS, PLACES, RELATIONS, SYLLABLES,
                        VERBS)

# What a token is to the loss: not to be known beforehand, prose, or determined by what came before.
FREE, PROSE, ANSWER = 0, 1, 2
# Prose has at least as many tokens, and every length from there to twice as many.
SENTENCE_TOKENS_MIN = 6


def name_parts(name):
    return [" " + name[:2], name[2:]]


class Draw:
    """Random choices by random() alone: the only draws that Python keeps the same for ever."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def choice(self, items):
        return items[int(self.random() * len(items))]

    def between(self, first, last):
        return first + int(self.random() * (last - first + 1))

    def shuffled(self, items):
        items = list(items)
        for i in range(len(items) - 1, 0, -1):
            j = self.between(0, i)
            items[i], items[j] = items[j], items[i]
        return items


class Text:
    """A text that grows by sentences; parts are the tokens' strings after the begin token."""

    def __init__(self, draw):
        self.draw = draw
        self.parts, self.kinds = [], []
        self.facts = []  # (name, relation, value parts)
        self.names, self.taken = [], set()

    def add(self, parts, kind):
        self.parts += parts
        self.kinds += [kind] * len(parts)

    def new_key(self):
        """A (name, relation) that has no fact; a part of them resembles an earlier one."""
        while True:
            chance = self.draw.random()
            name = self.draw.choice(NAMES)
            if self.names and chance < 0.2:
                name = self.draw.choice(self.names)
            elif self.names and chance < 0.4:
                other, syllable = self.draw.choice(self.names), self.draw.choice(SYLLABLES)
                name = other[:2] + syllable if chance < 0.3 else syllable + other[2:]
            relation = self.draw.choice(RELATIONS)
            if (name, relation) not in self.taken and ID.get(" " + name) is None:
                return name, relation

    def new_value(self, relation):
        number = lambda: [" " + self.draw.choice(NUMBERS)]
        name = lambda: name_parts(self.draw.choice(NAMES))
        if relation == "is":
            return number() + number() + (number() if self.draw.random() < 0.5 else [])
        if relation == "has":
            return number() + (number() if self.draw.random() < 0.5 else [])
        if relation == "likes":
            return name() + (name() if self.draw.random() < 0.3 else [])
        return number() + name()

    def fact(self):
        name, relation = self.new_key()
        value = self.new_value(relation)
        self.taken.add((name, relation))
        self.names.append(name)
        self.facts.append((name, relation, value))
        self.add(name_parts(name) + [" " + relation] + value + ["."], FREE)

    def question(self, index=None):
        name, relation, value = self.facts[index] if index is not None else \
            self.draw.choice(self.facts)
        self.add(["?"] + name_parts(name) + [" " + relation], FREE)
        self.add(value + ["."], ANSWER)

    def mention(self):
        """Prose that repeats a fact: " bako who is 47 11 went to the hill."."""
        name, relation, value = self.draw.choice(self.facts)
        self.add(name_parts(name) + [" who", " " + relation], FREE)
        self.add(value, ANSWER)
        self.add([" went", " to", " the", " " + self.draw.choice(NOUNS), "."], PROSE)

    def thing(self):
        parts = [" the"]
        if self.draw.random() < 0.5:
            parts.append(" " + self.draw.choice(ADJECTIVES))
        return parts + [" " + self.draw.choice(NOUNS)]

    def prose(self):
        parts = [" then"] if self.draw.random() < 0.3 else []
        if self.names and self.draw.random() < 0.3:
            parts += name_parts(self.draw.choice(self.names)) + [" said", " that"]
        parts += self.thing() + [" " + self.draw.choice(VERBS)] + self.thing()
        if self.draw.random() < 0.6:
            parts += [" " + self.draw.choice(PLACES)] + self.thing()
        if self.draw.random() < 0.2:
            parts += [" and"] + self.thing()
        self.add(parts + ["."], PROSE)

    def copy(self):
        items = []
        for _ in range(self.draw.between(2, 6)):
            if self.draw.random() < 0.5:
                items.append(" " + self.draw.choice(NUMBERS))
            else:
                items += name_parts(self.draw.choice(NAMES))
        self.add([" copy"] + items + [":"], FREE)
        self.add(items + ["."], ANSWER)

    def count(self):
        first = self.draw.between(0, 90)
        last = first + self.draw.between(2, 8)
        self.add([" count", " from", " %02d" % first, " to", " %02d" % last, ":"], FREE)
        self.add([" %02d" % n for n in range(first, last + 1)] + ["."], ANSWER)

    def filler(self):
        chance = self.draw.random()
        if chance < 0.7:
            self.prose()
        elif chance < 0.85:
            self.copy()
        else:
            self.count()

    def string(self):
        """What the tokenizer turns into these tokens; it puts the first blank there itself."""
        return "".join(self.parts)[1:]


def training_text(draw, length):
    """Exactly `length` tokens with the begin token, and the kind of each."""
    text = Text(draw)
    limit = max(2, round(length * (0.015 + 0.065 * draw.random())))
    fill = 0.4 * draw.random()
    ask = 0.0 if draw.random() < 0.3 else 0.5  # questions only after all facts, or among them
    while len(text.parts) < length - 1:
        if text.facts and draw.random() < ask or len(text.facts) >= limit:
            if draw.random() < fill * 0.5:
                text.filler()
            elif draw.random() < 0.15:
                text.mention()
            else:
                text.question()
        elif text.parts and draw.random() < fill:
            text.filler()
        else:
            text.fact()
    ids = [BEGIN] + [ID[part] for part in text.parts]
    return ids[:length], ([FREE] + text.kinds)[:length]


def evaluation_text(draw, length):
    """A context of exactly `length` tokens with the begin token: one fact per 16 tokens, spread
    evenly among the rest. Questions are added by the caller."""
    text = Text(draw)
    while len(text.parts) < length - 1:
        parts, facts = len(text.parts), len(text.facts)
        if facts <= parts // 16 and parts + 1 < length - 3 * SENTENCE_TOKENS_MIN:
            text.fact()
        else:
            text.filler()
        left = length - 1 - len(text.parts)
        if left != 0 and left < SENTENCE_TOKENS_MIN:  # no sentence would fit: draw another
            del text.parts[parts:], text.kinds[parts:], text.facts[facts:], text.names[facts:]
    return text
