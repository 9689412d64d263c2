"""Estimates with a shape of their own: mixtures, grades, trajectories, and a decoder with rotary positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.wiring.problem import bug, problem
from leadline import Case

# A mixture of Gaussians as the answer, with its likelihood written by hand.


class MixtureDensity(nn.Module):
    def __init__(self, bug: str, parts: int = 4) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh())
        heads = {name: nn.Linear(40, parts) for name in ("weight", "mean", "width")}
        self.heads = heads if bug == "heads in a dict" else nn.ModuleDict(heads)
        self.bug = bug

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.hidden(x)
        axis = 0 if self.bug == "weights sum to one down the batch" else -1
        weight = self.heads["weight"](h).log_softmax(axis)
        width = self.heads["width"](h)
        if self.bug == "widths under no_grad":
            with torch.no_grad():
                width = self.heads["width"](h)
        return weight, self.heads["mean"](h), width.clamp(-5, 5).exp()


def mixture_loss(output: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
    weight, mean, width = output
    density = -0.5 * ((y - mean) / width) ** 2 - width.log() - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(weight + density, -1).mean()


@problem(
    "mixture-density",
    "mixture density",
    bug("heads in a dict", "unregistered-parameters", "6"),
    bug("weights sum to one down the batch", "mixed-samples", "log_softmax"),
    bug("widths under no_grad", "blocked-path", "heads.width"),
    bug("answers with an axis too many", "mixed-targets", "(20, 1, 1)"),
    bug("likelihood minimized", "negated-loss"),
    bug("incomes in dollars", "targets-out-of-scale"),
    bug("means not in the optimizer", "forgotten-parameters", "heads.mean.weight"),
    part="third set",
)
def mixture_density(bug: str) -> Case:
    model = MixtureDensity(bug)
    x = torch.randn(20, 3)
    y = x[:, :1] * torch.randn(20, 1).sign() + 0.1 * torch.randn(20, 1)
    if bug == "answers with an axis too many":
        y = y.unsqueeze(1)
    if bug == "incomes in dollars":
        y = 50_000 + 20_000 * y
    sign = -1 if bug == "likelihood minimized" else 1
    left_out = "heads.mean" if bug == "means not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(
        model, x, y, lambda output, y: sign * mixture_loss(output, y), torch.optim.Adam(trained, lr=1e-3)
    )


# Grades in order: one logit per threshold.


class Grades(nn.Module):
    def __init__(self, bug: str, grades: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16), nn.ReLU())
        self.score = nn.Linear(16, 1, bias=False)
        thresholds = torch.linspace(1, -1, grades - 1)
        if bug == "thresholds are a tensor":
            self.thresholds = thresholds.requires_grad_()
        else:
            self.thresholds = nn.Parameter(thresholds)
        self.bug = bug

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if self.bug == "features cut to whole numbers":
            h = h.int().float()
        logits = self.score(h) + self.thresholds
        return logits.sigmoid() if self.bug == "sigmoid in the network" else logits


@problem(
    "grades",
    "ordinal regression",
    bug("thresholds are a tensor", "unregistered-parameters", "1"),
    bug("features cut to whole numbers", "step-function or blocked-path", "body"),
    bug("sigmoid in the network", "squashed-logits", "sigmoid"),
    bug("everybody has the lowest grade", "single-answer", note=True),
    bug("loss negated", "negated-loss"),
    bug("score not in the optimizer", "forgotten-parameters", "score.weight"),
    bug("left in eval mode", "evaluation-mode", "body.2"),
    part="third set",
)
def grades(bug: str) -> Case:
    model = Grades(bug)
    x = torch.randn(32, 9)
    grade = (x[:, 0] * 1.5 + 2).round().clamp(0, 4)
    if bug == "everybody has the lowest grade":
        grade = torch.zeros_like(grade)
    if bug == "left in eval mode":
        model.eval()
    passed = (grade[:, None] > torch.arange(4)).float()
    sign = -1 if bug == "loss negated" else 1
    left_out = "score" if bug == "score not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(
        model,
        x,
        passed,
        lambda out, passed: sign * F.binary_cross_entropy_with_logits(out, passed),
        torch.optim.AdamW(trained, lr=1e-3),
    )


# A differential equation with a learned right-hand side, solved by Runge-Kutta.


class Trajectory(nn.Module):
    def __init__(self, bug: str) -> None:
        super().__init__()
        self.lift = nn.Linear(2, 6)
        self.drift = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6))
        self.control = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 6))
        self.observe = nn.Linear(6, 2)
        self.bug = bug

    def slope(self, state: Tensor, time: float) -> Tensor:
        drift = self.drift(state)
        if self.bug == "slope detached in the solver":
            drift = drift.detach()
        push = self.control(torch.cat([state, torch.full_like(state[:, :1], time)], 1))
        return drift if self.bug == "control not applied" else drift + push

    def forward(self, start: Tensor) -> Tensor:
        state, seen = self.lift(start), []
        step = 0.1
        for index in range(12):
            if self.bug == "step chosen by all trajectories":
                step = 0.1 / (1 + state.norm())
            k1 = self.slope(state, 0.1 * index)
            k2 = self.slope(state + step / 2 * k1, 0.1 * index + 0.05)
            state = state + step * k2
            seen.append(self.observe(state))
        return torch.stack(seen, 1)


@problem(
    "trajectory",
    "differential equations",
    bug("slope detached in the solver", "blocked-path", "drift"),
    bug("control not applied", "discarded-results", "control"),
    bug("step chosen by all trajectories", "mixed-samples", "norm"),
    bug("observations are (time, trajectory)", "mixed-targets"),
    bug("observations in millimeters", "targets-out-of-scale"),
    bug("observation not in the optimizer", "forgotten-parameters", "observe.weight"),
    part="third set",
)
def trajectory(bug: str) -> Case:
    model = Trajectory(bug)
    start = torch.randn(12, 2)
    turns = torch.arange(1, 13) * 0.1
    cos, sin = turns.cos(), turns.sin()
    seen = torch.stack(
        [start[:, :1] * cos - start[:, 1:] * sin, start[:, :1] * sin + start[:, 1:] * cos], -1
    )  # (trajectory, time, 2)
    if bug == "observations are (time, trajectory)":
        seen = seen.transpose(0, 1).contiguous()
    if bug == "observations in millimeters":
        seen = seen * 1000
    left_out = "observe" if bug == "observation not in the optimizer" else "nothing"
    trained = [each for name, each in model.named_parameters() if not name.startswith(left_out)]
    return Case(model, start, seen, nn.MSELoss(), torch.optim.Adam(trained, lr=3e-3))


# A decoder with rotary positions and grouped keys, in one layer.


class RotaryDecoder(nn.Module):
    def __init__(self, bug: str, width: int = 64, words: int = 41) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.norm = nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width // 2, bias=False)
        self.v = nn.Linear(width, width // 2, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.head = nn.Linear(width, words, bias=False)
        self.bug = bug

    def rotate(self, x: Tensor) -> Tensor:
        steps, half = x.shape[-2], x.shape[-1] // 2
        kind = torch.bfloat16 if self.bug == "angles in bfloat16" else torch.float32
        first = 4000 if self.bug == "angles in bfloat16" else 0
        places = torch.arange(first, first + steps, dtype=torch.float32).to(kind)
        speeds = (100.0 ** (-torch.arange(half) / half)).to(kind)
        angles = torch.outer(places, speeds)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        one, two = x.chunk(2, -1)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def forward(self, ids: Tensor) -> Tensor:
        n, steps = ids.shape
        x = self.embed(ids)
        h = self.norm(x)
        q = self.q(h).view(n, steps, 4, 16).transpose(1, 2)
        k = self.k(h).view(n, steps, 2, 16).transpose(1, 2)
        v = self.v(h).view(n, steps, 2, 16).transpose(1, 2)
        if self.bug != "nothing rotated":
            q, k = self.rotate(q), self.rotate(k)
        if self.bug == "groups repeated down the batch":
            k = k.repeat(2, 1, 1, 1).view(n, 4, steps, 16)
            v = v.repeat(2, 1, 1, 1).view(n, 4, steps, 16)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        allowed = torch.ones(steps, steps, dtype=torch.bool).tril()
        if self.bug == "window of one":
            allowed = allowed & torch.ones_like(allowed).triu(0)
        if self.bug == "window opens forward":
            allowed = torch.ones_like(allowed).tril(1)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + self.o(a.transpose(1, 2).reshape(n, steps, -1))
        h = self.mlp_norm(x)
        return self.head(x + self.down(F.silu(self.gate(h)) * self.up(h)))


@problem(
    "rotary-decoder",
    "rotary language model",
    bug("angles in bfloat16", "rounded-positions"),
    bug("nothing rotated", "order-blind"),
    bug("groups repeated down the batch", "mixed-samples"),
    bug("window of one", "unused-past"),
    bug("window opens forward", "visible-answer"),
    bug("loss shifts shifted labels", "shifted-targets", "2 positions"),
    bug("labels are the inputs", "shifted-targets", "own position"),
    part="third set",
)
def rotary_decoder(bug: str) -> Case:
    model = RotaryDecoder(bug)
    text = torch.randint(0, 41, (8, 25))
    ids, labels = text[:, :-1], text[:, 1:]
    if bug == "labels are the inputs":
        labels = ids.clone()

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        if bug == "loss shifts shifted labels":
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return Case(model, ids, labels, loss, torch.optim.AdamW(model.parameters(), lr=1e-3))
