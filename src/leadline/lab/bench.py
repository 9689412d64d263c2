"""The claims by code, and running several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch

from leadline.collect import collect
from leadline.lab import claims
from leadline.lab.claim import Claim
from leadline.lab.codes import order
from leadline.records import Lab

Progress = Callable[[int, int, str], object]


@cache
def all_claims() -> tuple[Claim, ...]:
    """Every claim, in the order of the articles."""
    found = sorted(collect(claims, Claim), key=lambda each: order(each.code))
    codes = [each.code for each in found]
    if len(set(codes)) < len(codes):
        raise ValueError(f"two claims have the code {next(each for each in codes if codes.count(each) > 1)}")
    return tuple(found)


def run_claims(
    chosen: Sequence[Claim], leadline: str, seeds: int | None = None, progress: Progress | None = None
) -> Lab:
    """One experiment a claim, each with the seeds it asks for unless `seeds` says how many."""
    found = []
    for done, each in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen), each.code)
        found.append(each.run(seeds))
    return Lab(leadline=leadline, torch=str(torch.__version__), experiments=tuple(found))
