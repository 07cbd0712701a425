#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws error against bytes read, from JSON of `kvlab decode`, a panel for each dump.

    kvlab decode --dump qa.safetensors --json > decode.json
    plot_decode.py decode.json... > error.svg

Both axes are logarithmic; bytes are coded ones of one step over all units. Standard library alone.
"""

import json
import math
import sys

# Name, colour, dash, and what a row must be.
SERIES = (
    ("Quest, pages of 16", "#b4532a", "",
     {"index": "quest", "layout": "run16"}),
    ("mean key, pages of 16", "#8a8a8a", "",
     {"index": "mean", "layout": "run16"}),
    ("token oracle", "#8a8a8a", "2 3",
     {"index": "oracle", "layout": "token"}),
    ("clusters, 16 bits", "#7fa8d8", "",
     {"index": "cluster", "layout": "cluster", "precision": "16", "estimate": False}),
    ("clusters, 16 bits, estimate", "#3f78b8", "",
     {"index": "cluster", "layout": "cluster", "precision": "16", "estimate": True}),
    ("clusters, 4/8 bits, estimate", "#123f73", "",
     {"index": "cluster", "layout": "cluster", "precision": "4/8", "estimate": True}),
    ("the same by pages, window of 2", "#123f73", "5 3",
     {"index": "cluster", "precision": "4/8", "estimate": True, "evict": "decayed x2"}),
)
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 420, 330, 58, 34, 14, 44


def points(document, dump, wanted):
    wanted = {"evict": "none", **wanted}
    rows = [row for row in document["rows"] if row["dump"] == dump and
            all(row[key] == value for key, value in wanted.items())]
    return sorted((row["bytes_per_step"] / 1024, row["error"]) for row in rows)


def ticks(least, most):
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    marks = [step * 10.0 ** decade for decade in decades for step in (1, 2, 5)]
    return [mark for mark in marks if least <= mark <= most]


class Panel:
    def __init__(self, document, dump, left):
        self.lines = [(name, colour, dash, points(document, dump, wanted))
                      for name, colour, dash, wanted in SERIES]
        every = [point for line in self.lines for point in line[3]]
        self.least = [min(point[i] for point in every) / 1.2 for i in (0, 1)]
        self.most = [max(point[i] for point in every) * 1.2 for i in (0, 1)]
        self.dump, self.left = dump, left

    def place(self, value, axis):
        share = (math.log(value / self.least[axis]) /
                 math.log(self.most[axis] / self.least[axis]))
        if axis == 0:
            return self.left + LEFT + share * (WIDTH - LEFT - RIGHT)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def draw(self):
        x0, x1 = self.left + LEFT, self.left + WIDTH - RIGHT
        y0, y1 = HEIGHT - BOTTOM, TOP
        yield f'<text x="{x0}" y="{TOP - 12}" font-weight="bold">{self.dump}</text>'
        for mark in ticks(self.least[0], self.most[0]):
            x = self.place(mark, 0)
            yield f'<path d="M{x:.1f} {y0}V{y1}" stroke="#e6e6e6"/>'
            yield f'<text x="{x:.1f}" y="{y0 + 15}" text-anchor="middle">{mark:g}</text>'
        for mark in ticks(self.least[1], self.most[1]):
            y = self.place(mark, 1)
            yield f'<path d="M{x0} {y:.1f}H{x1}" stroke="#e6e6e6"/>'
            yield f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{mark:g}</text>'
        yield (f'<text x="{(x0 + x1) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">'
               'KiB read in a step</text>')
        yield (f'<text transform="translate({self.left + 14} {(y0 + y1) / 2:.0f}) rotate(-90)" '
               'text-anchor="middle">error</text>')
        for _, colour, dash, line in self.lines:
            path = " ".join(f"{self.place(x, 0):.1f},{self.place(y, 1):.1f}" for x, y in line)
            yield (f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dash}"/>')
            for x, y in line:
                yield (f'<circle cx="{self.place(x, 0):.1f}" cy="{self.place(y, 1):.1f}" r="2.6" '
                       f'fill="{colour}"/>')


def legend(top):
    for i, (name, colour, dash, _) in enumerate(SERIES):
        x, y = LEFT + i % 3 * 265, top + i // 3 * 18
        yield (f'<path d="M{x} {y}h26" stroke="{colour}" stroke-width="2" '
               f'stroke-dasharray="{dash}"/>')
        yield f'<text x="{x + 32}" y="{y + 4}">{name}</text>'


def main(paths):
    panels = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        panels += [(document, source["dump"]) for source in document["sources"]]
    width, height = max(2, len(panels)) * WIDTH, HEIGHT + 66
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
          f'width="{width}" height="{height}" font-family="sans-serif" font-size="11" '
          'fill="#222">')
    print(f'<rect width="{width}" height="{height}" fill="#fff"/>')
    for i, (document, dump) in enumerate(panels):
        print("\n".join(Panel(document, dump, i * WIDTH).draw()))
    print("\n".join(legend(HEIGHT + 18)))
    print("</svg>")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
