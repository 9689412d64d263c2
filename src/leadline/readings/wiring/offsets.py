"""Sequences: which input does the loss ask for at each position?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leadline.ops.arguments import argument
from leadline.readings.wiring.batch import BatchTensor
from leadline.records import Trace
from leadline.records.wiring import MIN_TELLING_ELEMENTS, TargetOffset

# Heuristic: offsets between inputs and targets of a sequence that are tried; labels that are shifted twice have 2, and
# labels that are rolled the wrong way -1.
OFFSETS = (-1, 0, 1, 2, 3)
# Heuristic: fewer positions agree by coincidence.
MIN_COMPARED_POSITIONS = 8
# Heuristic: the rest are special tokens (a start token, a padded end).
MIN_OFFSET_SHARE = 0.9
# Heuristic: repetitive text agrees with itself at several offsets; the best one must stand out.
MIN_OFFSET_LEAD = 0.2
# Heuristic: heads that predict several positions ahead; a longer last axis holds features.
MAX_HEADS_AHEAD = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedTargets:
    """The targets that the loss really uses, in the layout of the model's output."""

    values: Tensor
    """Classes of shape (samples, positions) or (samples,); for other losses the target tensor itself."""
    counted: Tensor
    """Which of them have a gradient; a boolean tensor of the shape of `values`, or of its leading axes."""


def find_offset(used: UsedTargets, inputs: Sequence[BatchTensor]) -> TargetOffset | None:
    """The input, and the offset along its positions, that the used targets equal; None if there is none.

    Of several targets per position, such as those of heads that predict several words ahead, the nearest one counts:
    it forbids most.
    """
    offsets = [offset for each in inputs for axis in (1, 0) for offset in _offsets(used, each, axis)]
    best = max(offsets, key=lambda each: each.share, default=None)
    if best is not None:
        return best
    by_head = [find_offset(head, inputs) for head in _heads(used)]
    known = [each for each in by_head if each is not None]
    is_one_sequence = len({(each.input, each.axis) for each in known}) == 1
    return (
        min(known, key=lambda each: each.offset) if is_one_sequence and len(known) == len(by_head) else None
    )


def _heads(used: UsedTargets) -> Iterator[UsedTargets]:
    """The targets of each head, if they are along the last of three axes."""
    if used.values.dim() != 3 or not 1 < used.values.size(-1) <= MAX_HEADS_AHEAD:
        return
    if used.values.is_floating_point() or used.counted.shape != used.values.shape:
        return
    for head in range(used.values.size(-1)):
        yield UsedTargets(values=used.values[..., head], counted=used.counted[..., head])


def counted_positions(used: UsedTargets | None, positions: int, axis: int) -> list[bool]:
    """The positions, along an axis of the input, at which the loss asks for something in any sample.

    Targets that are one long row are taken apart again; where that cannot be done, all positions count.
    """
    counted = None if used is None else used.counted
    if counted is not None and counted.dim() == 1 and counted.numel() % positions == 0:
        counted = counted.view((positions, -1) if axis == 0 else (-1, positions))
    if counted is None or counted.dim() < 2:
        return [True] * positions
    along = counted.movedim(axis, 0).flatten(1).any(1).tolist()
    return along + [False] * (positions - len(along))


def find_offset_between(inputs: Sequence[BatchTensor]) -> TargetOffset | None:
    """The input of tokens whose next positions another input holds; None if there is none.

    A model that scores given answers, such as the next item of a session and one that was not chosen, gets the answers
    as an input.
    """
    tokens = [each for each in inputs if each.is_tokens and each.tensor.dim() == 2]
    for answers in tokens:
        used = UsedTargets(values=answers.tensor, counted=torch.ones_like(answers.tensor, dtype=torch.bool))
        others = [
            each for each in tokens if each is not answers and each.tensor.shape == answers.tensor.shape
        ]
        offset = find_offset(used, others)
        if offset is not None and offset.offset == 1:
            return offset
    return None


def count_declared_padding(trace: Trace, used: UsedTargets | None, inputs: Sequence[BatchTensor]) -> int:
    """Predictions at padded ends of the rows that are asked for padding.

    An embedding declares what padding is, or the rows show it (see `_tokens_at_ends`). Fewer than
    `MIN_TELLING_ELEMENTS` are none: a token of the vocabulary may end a row by chance.
    """
    declared = {
        int(index)
        for op in trace.ops
        if op.name == "embedding" and isinstance(index := argument(op, "padding_idx", 2), int) and index >= 0
    }
    for each in inputs:
        if (
            used is None
            or not each.is_tokens
            or each.tensor.shape != used.values.shape
            or each.tensor.dim() != 2
        ):
            continue
        for turn in (False, True):  # positions are along the second axis, or the first
            tokens, values, counted = (
                tensor.t() if turn else tensor for tensor in (each.tensor, used.values, used.counted)
            )
            for padding in declared | _tokens_at_ends(tokens):
                is_padding = tokens == padding
                ends = [is_padding.long().cumprod(1), is_padding.flip(1).long().cumprod(1).flip(1)]
                asked = (sum(ends) > 0) & (values == padding) & counted
                if int(asked.sum()) >= MIN_TELLING_ELEMENTS:
                    return int(asked.sum())
    return 0


def _tokens_at_ends(tokens: Tensor) -> set[int]:
    """The token that fills up rows of different lengths: it stands in a row at their ends and nowhere else."""
    last = tokens[:, -1]
    found = set[int]()
    for token in torch.unique(last).tolist():
        is_token = tokens == token
        ends = is_token.flip(1).long().cumprod(1).flip(1) > 0
        lengths = ends.sum(1)
        if bool((is_token == ends).all()) and int(lengths.max()) > 1 and len(torch.unique(lengths)) > 2:
            found.add(int(token))
    return found


def _offsets(used: UsedTargets, source: BatchTensor, axis: int) -> list[TargetOffset]:
    if source.tensor.dim() < 2 or source.is_mask or source.is_constant:
        return []
    shares = {}
    for offset in OFFSETS:
        compared = _agreement(used, source.tensor, axis, offset)
        if compared is not None and compared.numel() >= MIN_COMPARED_POSITIONS:
            shares[offset] = (float(compared.double().mean()), compared.numel())
    if not shares:
        return []
    best = max(shares, key=lambda offset: shares[offset][0])
    share, positions = shares[best]
    others = max((other for offset, (other, _) in shares.items() if offset != best), default=0.0)
    if share < MIN_OFFSET_SHARE or share - others < MIN_OFFSET_LEAD:
        return []
    return [TargetOffset(input=source.name, axis=axis, offset=best, share=share, positions=positions)]


def _agreement(used: UsedTargets, source: Tensor, axis: int, offset: int) -> Tensor | None:
    """Whether the target of position t equals the input at t + offset, where counted; None if the layouts differ.

    Outputs may have more positions than the input, such as those of an image before the text; then they come first.
    """
    values, counted = used.values, used.counted
    if values.dim() == 1 and source.dim() == 2 and source.numel() == values.numel():
        values, counted = values.view(source.shape), counted.view(source.shape)
    if values.dim() != source.dim() or values.shape[2:] != source.shape[2:]:
        return None
    if axis == 0:
        values, counted, source = values.transpose(0, 1), counted.transpose(0, 1), source.transpose(0, 1)
    prefix = max(values.size(1) - source.size(1), 0) or max(-offset, 0)
    values, counted = values[:, prefix:], counted[:, prefix:]
    first = max(offset, 0)
    length = min(values.size(1), source.size(1) - first)
    if length < 1 or len(values) != len(source):
        return None
    equal = values[:, :length] == source[:, first : first + length]
    keep = counted[:, :length]
    if equal.dim() > 2:
        equal, keep = equal.flatten(2).all(-1), keep.flatten(2).any(-1)
    return equal[keep]
