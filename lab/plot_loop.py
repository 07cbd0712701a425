#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the time to first token against the loss of answers, from JSON of `kvterrace replay --mode
live`: a small mark for each seed, a large one with the name for the mean of a contender.

    kvterrace replay --mode live --model FOLDER ... --json > seed1.json
    plot_loop.py seed1.json... > loop.svg

Contenders that answer from exact KV alone lie at a loss of 0. Standard library alone.
"""

import html
import json
import sys

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 380, 62, 44, 150, 46
COLOURS = ("#123f73", "#b4532a", "#3b8a4e", "#8a5aa8", "#8a8a8a", "#c09a2b", "#3f9aa8")
OURS = "utility"


def read(paths):
    """By contender its (loss, seconds) of each seed; ours comes first."""
    runs = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for row in json.load(file)["results"]:
                if row["ttft_s_mean"] is not None:
                    runs.setdefault(row["contender"], []).append(
                        (row["loss"] or 0.0, row["ttft_s_mean"]))
    if not runs:
        sys.exit("plot_loop.py: the documents hold no runs")
    return dict(sorted(runs.items(), key=lambda item: item[0] != OURS))


def step_of(most):
    """1, 2 or 5 times a power of ten: about five parts."""
    power = 1.0
    while power > most:
        power /= 10
    while power * 10 <= most:
        power *= 10
    return next((power * part for part in (0.2, 0.5, 1, 2) if most / (power * part) <= 6),
                power * 2)


class Axes:
    def __init__(self, runs):
        every = [point for points in runs.values() for point in points]
        self.most = [1.08 * max(point[axis] for point in every) or 1.0 for axis in (0, 1)]

    def x(self, loss):
        return LEFT + (WIDTH - LEFT - RIGHT) * loss / self.most[0]

    def y(self, seconds):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / self.most[1]

    def draw(self):
        out = []
        for axis in (0, 1):
            step = step_of(self.most[axis])
            for i in range(int(self.most[axis] / step) + 1):
                value = i * step
                x, y = self.x(value), self.y(value)
                if axis == 0:
                    out.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" class="grid"/>'
                               f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" '
                               f'text-anchor="middle">{100 * value:.3g} %</text>')
                else:
                    out.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" class="grid"/>'
                               f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
                               f'{value:.3g} s</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        return out + [f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">'
                      "answers that differ from those of exact KV, share of tokens</text>",
                      f'<text x="{LEFT}" y="{TOP - 22}">time to first token, mean; lower left is '
                      "better</text>"]


def draw(runs):
    axes, out = Axes(runs), []
    out += axes.draw()
    taken = []
    for (name, points), colour in zip(runs.items(), COLOURS * 9):
        mean = [sum(point[axis] for point in points) / len(points) for axis in (0, 1)]
        x, y = axes.x(mean[0]), axes.y(mean[1])
        for loss, seconds in points:
            out.append(f'<circle cx="{axes.x(loss):.1f}" cy="{axes.y(seconds):.1f}" r="2.5" '
                       f'fill="{colour}" opacity="0.5"/>')
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}"/>')
        line = y + 4
        while any(abs(line - other) < 15 and abs(x - at) < 130 for at, other in taken):
            line += 15
        taken.append((x, line))
        weight = ' font-weight="bold"' if name == OURS else ""
        out.append(f'<text x="{x + 10:.1f}" y="{line:.1f}" fill="{colour}"{weight}>'
                   f"{html.escape(name)}</text>")
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        "<style>.grid{stroke:#ddd}text:not([fill]){fill:#333}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>', *out, "</svg>"]) + "\n"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.stdout.write(draw(read(sys.argv[1:])))
