#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the reference model. See docs/REFERENCE_MODEL.md; needs torch and numpy."""

import argparse
import csv
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import texts
import vocabulary

CONFIG = dict(dim=128, ffn_dim=256, layers=4, heads=4, kv_heads=2, head_dim=32,
              vocab=vocabulary.SIZE, context=2048, norm_eps=1e-5, rope_theta=500000.0)
WEIGHTS = np.array([0.05, 0.2, 1.0], dtype=np.float32)  # of texts.FREE, PROSE, ANSWER


class Layer(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)
        self.norm_attention = torch.nn.Parameter(torch.ones(c["dim"]))
        self.norm_ffn = torch.nn.Parameter(torch.ones(c["dim"]))
        self.q = linear(c["dim"], c["heads"] * c["head_dim"])
        self.k = linear(c["dim"], c["kv_heads"] * c["head_dim"])
        self.v = linear(c["dim"], c["kv_heads"] * c["head_dim"])
        self.o = linear(c["heads"] * c["head_dim"], c["dim"])
        self.gate = linear(c["dim"], c["ffn_dim"])
        self.down = linear(c["ffn_dim"], c["dim"])
        self.up = linear(c["dim"], c["ffn_dim"])


def rotate(x, cos, sin):
    """x is [batch][heads][tokens][head_dim]; pairs are (i, i + head_dim/2)."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Model(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embedding = torch.nn.Parameter(torch.randn(c["vocab"], c["dim"]) * 0.05)
        self.layers = torch.nn.ModuleList(Layer(c) for _ in range(c["layers"]))
        self.norm_final = torch.nn.Parameter(torch.ones(c["dim"]))
        for name, p in self.named_parameters():
            if p.dim() == 2 and name != "embedding":
                scale = 1.0 / math.sqrt(p.shape[1])
                if name.endswith(("o.weight", "down.weight")):
                    scale /= math.sqrt(2 * c["layers"])
                torch.nn.init.normal_(p, std=scale)

        self.look_back()

    @torch.no_grad()
    def look_back(self):
        """Starts the heads of the first layer as looking 1, 2, 3, ... tokens back, which recall
        needs and which otherwise takes most of the training to be found: every embedding gets one
        channel in common; queries and keys turn it into the rotary phases of that distance."""
        c = self.c
        half = c["head_dim"] // 2
        frequency = c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        strength = torch.cat((torch.tensor([3.0, 2.5, 2.0]), torch.full((half - 3,), 1.2)))
        layer = self.layers[0]
        self.embedding[:, 0] = 4.0 * self.embedding.std()
        for head in range(c["kv_heads"]):
            rows = layer.k.weight[head * c["head_dim"]:(head + 1) * c["head_dim"]]
            rows *= 0.1
            rows[:half, 0] = strength * 0.5
        for head in range(c["heads"]):
            rows = layer.q.weight[head * c["head_dim"]:(head + 1) * c["head_dim"]]
            rows *= 0.1
            # The key's phase at p - d is -(d) behind the query's at p: start the query d back.
            rows[:half, 0] = strength * 0.5 * torch.cos(-(head + 1) * frequency).float()
            rows[half:, 0] = strength * 0.5 * torch.sin(-(head + 1) * frequency).float()

    def forward(self, ids):
        c = self.c
        batch, tokens = ids.shape
        half = c["head_dim"] // 2
        frequency = c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(tokens, dtype=torch.float64)[:, None] * frequency
        cos, sin = angle.cos().float(), angle.sin().float()
        x = F.embedding(ids, self.embedding)
        for layer in self.layers:
            n = F.rms_norm(x, (c["dim"],), layer.norm_attention, c["norm_eps"])
            split = lambda y: y.view(batch, tokens, -1, c["head_dim"]).transpose(1, 2)
            q, k, v = rotate(split(layer.q(n)), cos, sin), rotate(split(layer.k(n)), cos, sin), \
                split(layer.v(n))
            share = c["heads"] // c["kv_heads"]
            k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer.o(a.transpose(1, 2).reshape(batch, tokens, -1))
            n = F.rms_norm(x, (c["dim"],), layer.norm_ffn, c["norm_eps"])
            x = x + layer.down(F.silu(layer.gate(n)) * layer.up(n))
        return F.rms_norm(x, (c["dim"],), self.norm_final, c["norm_eps"])


# Until how many million tokens, which lengths are drawn (each as often), and how the learning rate
# goes from the start of the stage to its end, as a share of the peak.
STAGES = [
    (2, (64, 128), 1.0, 1.0),
    (4.1, (64, 128, 256), 1.0, 1.0),
    (6.6, (128, 256, 512), 1.0, 1.0),
    (8.2, (256, 512, 1024), 1.0, 0.8),
    (12, (512, 1024, 2048), 0.8, 0.01),
]
STEP_TOKENS = 4096
PEAK_RATE, WARM_STEPS = 3e-3, 100


def stage(tokens):
    """(lengths, learning rate) after so many tokens; None when training is over."""
    begin = 0.0
    for until, lengths, first, last in STAGES:
        if tokens < until * 1e6:
            at = (tokens / 1e6 - begin) / (until - begin)
            warm = min(1.0, (tokens / STEP_TOKENS + 1) / WARM_STEPS)
            return lengths, PEAK_RATE * warm * (first + (last - first) * at)
        begin = until
    return None


class Muon:
    """Momentum whose update is made orthogonal (Jordan 2024), scaled to the size of Adam's steps
    (Liu et al. 2025, arXiv 2502.16982); for the matrices inside the layers."""

    def __init__(self, parameters, momentum=0.95, decay=0.05):
        self.parameters, self.momentum, self.decay = parameters, momentum, decay
        self.buffers = [torch.zeros_like(p) for p in parameters]

    @staticmethod
    def orthogonal(g):
        x = g if g.shape[0] <= g.shape[1] else g.t()
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.t()
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x if g.shape[0] <= g.shape[1] else x.t()

    @torch.no_grad()
    def step(self, rate):
        for p, buffer in zip(self.parameters, self.buffers):
            buffer.lerp_(p.grad, 1.0 - self.momentum)
            update = self.orthogonal(p.grad.lerp(buffer, self.momentum))
            p.mul_(1.0 - rate * self.decay)
            p.add_(update, alpha=-rate * 0.2 * max(p.shape) ** 0.5)


def batch(seed, step, tokens):
    """The same for the same seed and step, so that a resumed run sees what the first would have."""
    draw = texts.Draw("%d train %d" % (seed, step))
    length = draw.choice(stage(tokens)[0])
    rows = [texts.training_text(draw, length + 1) for _ in range(STEP_TOKENS // length)]
    ids = torch.tensor([row[0] for row in rows])
    kinds = np.array([row[1] for row in rows])[:, 1:]
    return ids[:, :-1], ids[:, 1:], torch.from_numpy(kinds)


def step_loss(model, ids, targets, kinds):
    hidden = model(ids)
    logits = hidden.reshape(-1, hidden.shape[-1]) @ model.embedding.t()
    loss = F.cross_entropy(logits, targets.reshape(-1), reduction="none")
    weights = torch.from_numpy(WEIGHTS)[kinds.reshape(-1)]
    answers = (kinds.reshape(-1) == texts.ANSWER).float()
    answer_loss = (loss.detach() * answers).sum() / answers.sum().clamp(min=1)
    return (loss * weights).sum() / weights.sum(), float(answer_loss)


def recall(model, length, contexts, seed=1, questions=8):
    """The share of questions after a context of `length` tokens whose whole answer comes first."""
    right = asked = 0
    with torch.no_grad():
        for i in range(contexts):
            draw = texts.Draw("%d recall %d %d" % (seed, length, i))
            text = texts.evaluation_text(draw, length)
            spans = []
            for fact in draw.shuffled(range(len(text.facts)))[:questions]:
                text.question(fact)
                spans.append((len(text.parts) - len(text.facts[fact][2]) - 1, len(text.parts)))
            ids = torch.tensor([[vocabulary.BEGIN] + [vocabulary.ID[p] for p in text.parts]])
            hidden = model(ids)[0]
            for first, last in spans:  # parts[i] is ids[i + 1] and comes from hidden[i]
                best = (hidden[first:last] @ model.embedding.t()).argmax(-1)
                right += int((best == ids[0, first + 1:last + 1]).all())
                asked += 1
    return right / asked


class Run:
    """A training run: model, optimizers and how far it is. What a checkpoint holds."""

    def __init__(self, seed):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.seed = seed
        self.model = Model(CONFIG)
        inner = [p for name, p in self.model.named_parameters()
                 if p.dim() == 2 and name != "embedding"]
        outer = [p for name, p in self.model.named_parameters()
                 if p.dim() == 1 or name == "embedding"]
        self.muon, self.adam = Muon(inner), torch.optim.Adam(outer, betas=(0.9, 0.98))
        self.state = {"step": 0, "tokens": 0, "seconds": 0.0}
        self.mean = self.answer_mean = None  # of the losses, for the log

    def load(self, path):
        loaded = torch.load(path)
        self.model.load_state_dict(loaded["model"])
        self.adam.load_state_dict(loaded["adam"])
        self.muon.buffers = loaded["muon"]
        self.state = loaded["state"]

    def save(self, path):
        """A run that is killed at any moment leaves the old checkpoint or the new one."""
        torch.save({"config": CONFIG, "model": self.model.state_dict(),
                    "adam": self.adam.state_dict(), "muon": self.muon.buffers,
                    "state": self.state}, path + ".tmp")
        os.replace(path + ".tmp", path)

    def over(self):
        return stage(self.state["tokens"]) is None

    def step(self):
        begin = time.process_time()
        ids, targets, kinds = batch(self.seed, self.state["step"], self.state["tokens"])
        rate = stage(self.state["tokens"])[1]
        for group in self.adam.param_groups:
            group["lr"] = rate
        loss, answer_loss = step_loss(self.model, ids, targets, kinds)
        self.model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        self.muon.step(rate)
        if self.mean is None:
            self.mean, self.answer_mean = loss.item(), answer_loss
        self.mean += 0.02 * (loss.item() - self.mean)
        self.answer_mean += 0.02 * (answer_loss - self.answer_mean)
        self.state["step"] += 1
        self.state["tokens"] += ids.numel()
        self.state["seconds"] += time.process_time() - begin


EVALUATED = ((64, 24), (256, 8), (512, 6), (1024, 4), (2048, 3))  # tokens, contexts
LOG_HEAD = "step tokens seconds loss answer_loss".split()


def write_log(path, run):
    fresh = not os.path.exists(path)
    with open(path, "a", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        if fresh:
            rows.writerow(LOG_HEAD + ["recall_%d" % length for length, _ in EVALUATED])
        rows.writerow([run.state["step"], run.state["tokens"], round(run.state["seconds"]),
                       "%.4f" % run.mean, "%.4f" % run.answer_mean] +
                      ["%.3f" % recall(run.model, *pair) for pair in EVALUATED])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", required=True, help="read if it is there, then kept up")
    parser.add_argument("--log", required=True,
                        help="CSV, one row per evaluation; seconds are processor time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluate-every", type=int, default=200, help="steps")
    parser.add_argument("--save-every", type=int, default=200, help="steps")
    parser.add_argument("--stop-at", help="HH:MM of today, after which the run ends")
    arguments = parser.parse_args()
    run = Run(arguments.seed)
    if os.path.exists(arguments.checkpoint):
        run.load(arguments.checkpoint)
    while not run.over():
        run.step()
        last = run.over() or (arguments.stop_at and time.strftime("%H:%M") >= arguments.stop_at)
        if run.state["step"] % arguments.save_every == 0 or last:
            run.save(arguments.checkpoint)
        if run.state["step"] % arguments.evaluate_every == 0 or last:
            write_log(arguments.log, run)
        if last:
            break


if __name__ == "__main__":
    main()
