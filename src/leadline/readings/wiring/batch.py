"""The tensors of a batch: which axis counts samples, which counts positions, and how to change part of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from leadline.records.wiring import MIN_TELLING_ELEMENTS, TargetOffset
from leadline.tracer.inputs import named_tensors

# Heuristic: any fixed seed; the same perturbation is drawn at every check of the same batch.
PERTURBATION_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTensor:
    """One tensor among the inputs."""

    name: str
    tensor: Tensor

    @property
    def is_mask(self) -> bool:
        """Whether it holds zeros and ones only: it says which elements count, and carries no signal."""
        if self.tensor.dtype == torch.bool:
            return True
        return bool(((self.tensor == 0) | (self.tensor == 1)).all())

    @property
    def is_tokens(self) -> bool:
        return not (
            self.tensor.is_floating_point() or self.tensor.is_complex() or self.tensor.dtype == torch.bool
        )

    @property
    def is_constant(self) -> bool:
        """All elements are equal, and so many that it is not by chance."""
        is_telling = self.tensor.numel() >= MIN_TELLING_ELEMENTS
        return is_telling and bool((self.tensor == self.tensor.flatten()[0]).all())


def batch_tensors(inputs: Any) -> list[BatchTensor]:
    """The tensors among the inputs that have elements, by name."""
    return [
        BatchTensor(name=name, tensor=tensor)
        for name, tensor in named_tensors(inputs, "input")
        if tensor.layout is torch.strided and not tensor.is_nested and tensor.numel()
    ]


def why_no_sample_axis(inputs: Any, targets: Any) -> str | None:
    """Why samples are not along an axis of the input tensors; None if they may be.

    A packed sequence has samples and positions in one axis. The samples of a list are its entries if these have
    different lengths, or if there are as many of them as targets, or as entries in another list.
    """
    parts = list(_parts(inputs))
    lists = [part for part in parts if isinstance(part, list)]
    for part in parts:
        if isinstance(part, PackedSequence):
            return "an input is a packed sequence, which has samples and positions in one axis"
        if isinstance(part, list) and len(part) > 1 and all(isinstance(each, Tensor) for each in part):
            lengths = {each.size(0) if each.dim() else 0 for each in part}
            counts = [_count_samples(targets), *(len(other) for other in lists if other is not part)]
            if len(lengths) > 1 or len(part) in counts:
                return f"an input is a list of {len(part)} tensors, and each of them may be one sample"
    return None


def _parts(tree: Any) -> Iterator[Any]:
    """The tree and everything in it that is no tensor."""
    yield tree
    if isinstance(tree, PackedSequence):
        return
    children = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    for child in children:
        if not isinstance(child, Tensor):
            yield from _parts(child)


def _count_samples(targets: Any) -> int | None:
    if isinstance(targets, Tensor):
        return targets.size(0) if targets.dim() else None
    return len(targets) if isinstance(targets, list) else None


def connecting_matrix(inputs: Any, samples: int) -> str | None:
    """The name of a sparse input with a row and a column for each sample; None if there is none."""
    return next(
        (
            name
            for name, tensor in named_tensors(inputs, "input")
            if tensor.layout is not torch.strided
            and not tensor.is_nested
            and tensor.shape[:2] == (samples, samples)
        ),
        None,
    )


def padded_positions(mask: BatchTensor, source: BatchTensor) -> Tensor | None:
    """Which positions of `source` the mask pads; None if it is no padding mask of this input.

    Either value may mean padding, depending on the model. The padded positions are those that all hold one content.
    """
    if mask is source or not mask.is_mask or source.is_mask or mask.tensor.dim() != 2 or mask.is_constant:
        return None
    if source.tensor.dim() > 3 or mask.tensor.shape != source.tensor.shape[:2]:
        return None
    for value in (0, 1):
        padded = mask.tensor == value
        inside, outside = source.tensor[padded], source.tensor[~padded]
        if bool((inside == inside[0]).all()) and not bool((outside == outside[0]).all()):
            return padded
    return None


def replace_tensors(tree: Any, changed: dict[int, Tensor]) -> Any:
    """The batch with some tensors replaced, by the `id` of the original."""
    return tree_map(lambda item: changed.get(id(item), item) if isinstance(item, Tensor) else item, tree)


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Where samples and positions are in the inputs."""

    tensors: tuple[BatchTensor, ...]
    """Inputs that have the axis of samples."""
    samples: int | None
    sample_axis: int | None
    positions: int | None
    offset: TargetOffset | None

    @property
    def position_axis(self) -> int | None:
        return None if self.offset is None else self.offset.axis


def layout_of(
    inputs: Sequence[BatchTensor], offset: TargetOffset | None, asked: Sequence[Tensor]
) -> BatchLayout:
    """Samples are along the first axis, unless the targets show that positions are.

    Inputs of several lengths, such as the examples of some classes and queries about them, have as many samples as
    targets, or else as outputs (`asked`), if one of them has that length.
    """
    axis = 0 if offset is None else 1 - offset.axis
    shaped = [each for each in inputs if each.tensor.dim() > axis]
    source = next((each for each in inputs if offset and each.name == offset.input), None)
    positions = None if source is None or offset is None else source.tensor.size(offset.axis)
    if not shaped:
        return BatchLayout((), None, None, positions, offset)
    largest = source or max(shaped, key=lambda each: (each.tensor.dim(), each.tensor.numel()))
    lengths = {each.tensor.size(axis) for each in shaped}
    expected = [each.size(axis) for each in asked if each.dim() > axis and each.size(axis) in lengths]
    samples = largest.tensor.size(axis)
    if source is None and expected:
        samples = expected[0]
    with_samples = tuple(each for each in shaped if each.tensor.size(axis) == samples)
    return BatchLayout(with_samples, samples, axis, positions, offset)


def all_positions(tensor: Tensor, axis: int) -> Tensor:
    """A mask along `axis` that is true everywhere."""
    return torch.ones(tensor.size(axis) if tensor.dim() > axis else 1, dtype=torch.bool, device=tensor.device)


def free_positions(tensor: Tensor, axis: int) -> Tensor:
    """The positions along `axis` where no sample has a token whose number a model may check.

    Tokens that stand for parts of an image or a sound come in a row of equal ones, or as often in one sample as in the
    others.
    """
    is_tokens = BatchTensor(name="", tensor=tensor).is_tokens and tensor.dim() == 2
    if not is_tokens:
        return all_positions(tensor, axis)
    rows = tensor.detach().movedim(axis, 0)
    tokens, kinds = torch.unique(rows, return_inverse=True)
    is_counted = torch.zeros(len(tokens), dtype=torch.bool, device=tensor.device)
    is_counted[kinds[1:][kinds[1:] == kinds[:-1]]] = True
    if rows.size(1) > 1:
        counts = torch.stack([torch.bincount(each, minlength=len(tokens)) for each in kinds.unbind(1)])
        is_counted |= (counts == counts[0]).all(0)
    return ~is_counted[kinds].any(1)


def redraw_samples(tensor: Tensor, axis: int, samples: Sequence[int], free: Tensor) -> Tensor:
    """A copy in which each element of these samples is that of another sample, drawn at random, at the same place.

    Values stay valid at their place: tokens stay in the vocabulary, and each column keeps its own categories. Only the
    `free` positions change, a mask along the other one of the first two axes.
    """
    rows = tensor.detach().movedim(axis, 0)
    own = torch.arange(len(rows), device=tensor.device).view(-1, *[1] * (rows.dim() - 1))
    others = (own + 1 + _randint(len(rows) - 1, tuple(rows.shape), tensor.device)) % len(rows)
    changed = rows.clone()
    chosen = torch.tensor(list(samples), dtype=torch.long, device=tensor.device)
    changed[chosen] = rows.gather(0, others)[chosen]
    if not bool(free.all()):
        changed[:, ~free] = rows[:, ~free]
    return changed.movedim(0, axis)


def redraw_positions(tensor: Tensor, axis: int, span: tuple[int, int], free: Tensor) -> Tensor:
    """A copy in which the content of the free positions of a span is that of other free ones, drawn at random.

    `span` is the first and the last position, `free` a mask along `axis`.
    """
    rows = tensor.detach().movedim(axis, 0)
    usable = rows[free]
    if not len(usable):
        return tensor
    drawn = usable[_randint(len(usable), (len(rows),), tensor.device)]
    if (
        tensor.dim() > 1 and not tensor.is_floating_point()
    ):  # a sample of tokens may repeat itself: mix samples too
        drawn = drawn[:, torch.randperm(drawn.size(1), generator=_generator()).to(tensor.device)]
    # By chance a position may have drawn what it has: it gets its neighbor's content, because it must change.
    same = (drawn == rows).reshape(len(rows), -1).all(1) & free.roll(1)
    drawn = drawn.clone()
    drawn[same] = rows.roll(1, 0)[same]
    chosen = free & _in_span(span, free)
    changed = rows.clone()
    changed[chosen] = drawn[chosen]
    return changed.movedim(0, axis)


def permute_positions(tensor: Tensor, axis: int, span: tuple[int, int], free: Tensor) -> Tensor:
    """A copy in which the free positions of a span come in reverse order."""
    rows = tensor.detach().movedim(axis, 0).clone()
    chosen = (free & _in_span(span, free)).nonzero().flatten()
    rows[chosen] = rows[chosen.flip(0)]
    return rows.movedim(0, axis)


def _in_span(span: tuple[int, int], positions: Tensor) -> Tensor:
    places = torch.arange(len(positions), device=positions.device)
    return (places >= span[0]) & (places <= span[1])


def fill_positions(tensor: Tensor, filled: Tensor, usable: Tensor) -> Tensor:
    """A copy in which the elements of one mask are those of another, one after the other."""
    others = tensor[usable]
    if not len(others):
        return tensor
    changed = tensor.clone()
    drawn = torch.arange(int(filled.sum()), device=others.device) % len(others)
    changed[filled] = others[drawn]
    return changed


def _randint(high: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.randint(high, tuple(shape), generator=_generator()).to(device)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(PERTURBATION_SEED)
