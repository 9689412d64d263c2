"""One network of a family, measured: its first step and the signal along its depth."""

from __future__ import annotations

import math

from leadline.case import Case
from leadline.readings import read
from leadline.records import Block, DepthPoint, Profile, Update
from leadline.tracing import trace
from leadline.updating import read_update


def measure(case: Case) -> tuple[Profile, Update, int]:
    """Profile and update of a case, and the number of ops of its pass."""
    seen = trace(case.model, case.inputs, case.targets, case.loss, case.optimizer)
    profile, _ = read(seen)
    return profile, read_update(case, profile, responses=True), len(seen.ops)


def point_of(profile: Profile, update: Update, depth: int, seed: int) -> DepthPoint:
    body = body_of(profile)
    inner = [block for block in update.blocks if block.repeated]
    return DepthPoint(
        depth=depth,
        seed=seed,
        parameters=profile.parameters,
        blocks=len(profile.blocks),
        loss=update.loss,
        grad_square=sum(block.grad_square for block in inner) if inner else update.grad_square,
        loss_change=sum(block.predicted for block in inner) if inner else update.predicted_loss_change,
        function_change=update.blocks_response if inner else update.function_response,
        total_loss_change=update.predicted_loss_change,
        total_function_change=update.function_response,
        ratio=update.ratio,
        parting=update.safe_lr / update.lr if update.safe_lr and update.lr else update.parting,
        parting_is_bound=update.parting_is_bound,
        forward_e_folds=_change([block.forward_ms for block in body]),
        backward_e_folds=_change([_power(block) for block in body[::-1]]),
        normalised=sum(block.norms > 0 for block in body) > len(body) / 2,
    )


def body_of(profile: Profile) -> list[Block]:
    """The blocks of the longest stream, without the head, whose output has another meaning and size."""
    if not profile.streams:
        return []
    index = max(range(len(profile.streams)), key=lambda each: profile.streams[each].blocks)
    blocks = [block for block in profile.blocks if block.stream == index]
    return blocks[:-1] if profile.streams[index].joins is None else blocks


def _power(block: Block) -> float | None:
    return None if block.backward_ms is None else block.backward_ms * block.elements


def _change(moments: list[float | None]) -> float | None:
    """Natural logarithm of last over first; infinite where the signal ends as zero, NaN where it is no number."""
    known = [moment for moment in moments if moment is not None]
    if len(known) < 2 or not known[0] > 0:
        return None
    if not math.isfinite(known[-1]):
        return math.inf if math.isinf(known[-1]) else math.nan
    return math.log(known[-1] / known[0]) if known[-1] > 0 else -math.inf
