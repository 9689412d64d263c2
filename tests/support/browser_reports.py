"""Reports to look at in a browser: a real one of a small network, the same made a thousand layers deep, and others."""

from __future__ import annotations

import re
from functools import cache
from random import Random

import msgspec
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn

import leadline
from leadline.records import Attribution, DepthBlock, Outcome, Profile, Recipe, Trial, Update
from leadline.records.repair import RepairReport
from leadline.records.report import Report
from leadline.report.compare import compare
from leadline.report.pages.comparison import comparison_page
from leadline.report.render import html
from tests.support import reports as samples
from tests.support.parsed_html import html_of

LAYERS = 5
_NUMBER = re.compile(r"\d+")


class Reader(nn.Module):
    """A small Transformer, so that every panel has something to show."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(20, 16)
        self.body = nn.TransformerEncoder(layer, LAYERS)
        self.head = nn.Linear(16, 20)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


@cache
def real() -> Report:
    """The report of `leadline.check`, including one optimizer step."""
    torch.manual_seed(0)
    model, tokens = Reader(), torch.randint(20, (4, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return leadline.check(model, tokens, tokens.flatten(), _loss, optimizer)


def _loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets)


@cache
def deep(times: int) -> Report:
    """The real report with its blocks `times` over, names numbered on: as large as that of such a network."""
    made = real()
    profile = made.profile
    stride = len(profile.blocks)
    return replace(made, profile=_deepened(profile, times, stride))


def _deepened(profile: Profile, times: int, stride: int) -> Profile:
    facts = profile.facts
    return replace(
        profile,
        blocks=tuple(_varied(_renamed(block, turn)) for turn in range(times) for block in profile.blocks),
        streams=(replace(profile.streams[0], blocks=stride * times),),
        attribution=Attribution(
            factors=tuple(
                _varied(replace(each, block=each.block + turn * stride))
                for turn in range(times)
                for each in profile.attribution.factors
                if each.block >= 0
            )
        ),
        facts=replace(
            facts,
            weights=_shifted(facts.weights, times, stride),
            attentions=_shifted(facts.attentions, times, stride),
        ),
        update=_longer(profile.update, times),
    )


def _varied(record):
    """The record with every number a little different, so that nothing is smaller than in a real one."""
    random = Random(repr(record))
    return msgspec.convert(_shaken(msgspec.to_builtins(record), random), type(record))


def _shaken(data, random: Random):
    if isinstance(data, dict):
        return {key: _shaken(each, random) for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [_shaken(each, random) for each in data]
    return data * random.uniform(0.9, 1.1) if isinstance(data, float) else data


def _shifted(rows, times: int, stride: int):
    moved = (replace(each, block=each.block + turn * stride) for turn in range(times) for each in rows)
    return tuple(map(_varied, moved))


def _renamed(block: DepthBlock, turn: int) -> DepthBlock:
    return replace(block, name=_later(block.name, turn), params=tuple(_later(p, turn) for p in block.params))


def _later(name: str, turn: int) -> str:
    moved = _NUMBER.sub(lambda found: str(int(found[0]) + LAYERS * turn), name)
    return moved if moved != name or not turn else f"{name}.{turn}"


def _longer(update: Update, times: int) -> Update:
    return replace(
        update,
        blocks=tuple(
            _varied(replace(each, name=_later(each.name, turn)))
            for turn in range(times)
            for each in update.blocks
        ),
        parameters=tuple(
            _varied(replace(each, name=_later(each.name, turn)))
            for turn in range(times)
            for each in update.parameters
        ),
    )


def repaired() -> RepairReport:
    """The sick sample with one fix that was kept and one that was refuted."""
    falling, flat = tuple(0.7 * 0.98**step for step in range(40)), (0.7,) * 40
    worse = tuple(0.7 + 0.01 * step for step in range(40))
    kept = Outcome(
        fix="critical-init",
        title="60 weight layers drawn at the critical point of relu",
        reach="init",
        answers=("B201",),
        state="verified",
        why="loss 0.312 after 40 steps, 0.7 without it",
        code="for layer in layers:\n    torch.nn.init.kaiming_normal_(layer.weight)",
        gone=("B201",),
        trial=Trial(untreated=flat, treated=falling),
        kept=True,
    )
    refuted = Outcome(
        fix="learning-rate",
        title="learning rate 0.001 times 5.5",
        reach="recipe",
        answers=("B201",),
        state="refuted",
        why="the loss rose",
        trial=Trial(untreated=flat, treated=worse),
    )
    return RepairReport(
        leadline="0.1.0",
        before=samples.sick(),
        after=samples.report(samples.profile([1.0] * 60, [1e-5] * 60), verdict="trains"),
        outcomes=(kept, refuted),
        recipe=Recipe(leadline="0.1.0", model="Sequential"),
        trial=Trial(untreated=flat, treated=falling),
        notes=("all steps saw one batch",),
    )


SAMPLES = ("sick", "healthy", "broken", "reviewed", "hostile")
NAMES = (*SAMPLES, "real", "several", "repaired", "compared", "forecast")
"""Every kind of page."""


@cache
def page(name: str) -> str:
    both = (samples.sick(), samples.healthy())
    match name:
        case "real":
            return html_of(real())
        case "several":
            return html_of(*both)
        case "repaired":
            return html_of(repaired())
        case "compared":
            return html.render([comparison_page(compare(*both), both)])
        case "forecast":
            return html_of(samples.forecast())
    return html_of(getattr(samples, name)())
