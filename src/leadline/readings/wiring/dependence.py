"""Which outputs depend on which inputs: change part of the batch, run again, and compare.

All passes run in eval mode with the same random numbers, so batch norm and dropout mix nothing. Changes within the
noise of repeating the same pass are no changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leadline.case import Case
from leadline.readings.graph import flow_from
from leadline.readings.wiring.batch import (
    BatchTensor,
    all_positions,
    batch_tensors,
    connecting_matrix,
    fill_positions,
    free_positions,
    padded_positions,
    permute_positions,
    redraw_positions,
    redraw_samples,
    replace_tensors,
    why_no_sample_axis,
)
from leadline.readings.wiring.ledger import needed_ops, read_values
from leadline.readings.wiring.output_changes import (
    change_along,
    change_where,
    largest_magnitude,
    noise_between,
)
from leadline.readings.wiring.places import PassComparison
from leadline.readings.wiring.question import read_question
from leadline.records import Gap, Trace
from leadline.records.wiring import (
    Dependence,
    InputUse,
    Perturbation,
    PerturbationKind,
    Question,
    TargetOffset,
)
from leadline.tracer.inputs import named_tensors
from leadline.tracer.passes import OpPrint, Pass, PassRunner, as_real, has_signal, open_passes
from leadline.tracer.values import tensors_in

# Derived: several roundings of the same sum in another order stay within a few units in the last place.
MAX_ROUNDINGS = 16
# Heuristic: a change must exceed the noise of repeating the pass by this factor.
MIN_OVER_NOISE = 10.0
# Heuristic: outputs that differ by more than this when the same pass is repeated are random, and nothing can be said.
MAX_NOISE = 1e-2
# Heuristic: below this, half of a sequence is too short to tell past from future.
MIN_POSITIONS = 4

CONNECTED_SAMPLES = "{} has a row and a column for each sample and may connect them"
LOST_IN_ROUNDING = "the effect of all earlier positions is smaller than rounding"

Reading = tuple[Dependence | None, Question | None, tuple[Gap, ...]]


class NotProbedError(Exception):
    """A probe cannot be made; its text is the reason."""


def read_dependence(case: Case, trace: Trace) -> Reading:
    """What the outputs depend on and what the loss rewards, and what could not be asked, with the reason."""
    try:
        with open_passes(case) as runner:
            return _Probes(case, trace, runner).read()
    except NotProbedError as reason:
        return None, None, (_gap("what the outputs depend on", str(reason)),)
    except Exception as error:
        # Any model can fail on changed inputs; a probe that fails is reported, never raised into the user's program.
        return None, None, (_gap("what the outputs depend on", _reason(error)),)


@dataclass(frozen=True, slots=True)
class _Layout:
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


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one pass is compared by: the outputs that the loss reads, without their graph, and the prints of its ops."""

    outputs: list[Tensor]
    prints: list[OpPrint]
    roots: list[int]
    """The prints of the ops that made the outputs."""


def _outcome(one: Pass) -> _Outcome:
    """The outputs are those of the model if they have elements, else what the loss op was given."""
    own = [each for each in tensors_in(one.output) if has_signal(each) and each.numel() > 1]
    read = own or [call.predictions for call in one.loss_calls]
    roots = [one.print_of[each] for each in read if each in one.print_of]
    return _Outcome([as_real(each.detach()) for each in read], one.prints, roots)


class _Probes:
    """The probes of one case, one after the other, on one base pass."""

    def __init__(self, case: Case, trace: Trace, runner: PassRunner) -> None:
        self.case = case
        self.trace = trace
        self.runner = runner
        self.inputs = batch_tensors(case.inputs)
        self.uses = _input_uses(trace, self.inputs)
        self.watched: set[int] = set()
        self.gaps: list[Gap] = []
        self.perturbations: list[Perturbation] = []
        self.padding_counted = 0
        self.keeps_counted = False
        """Whether tokens that the model may count stay in place, because it refused a batch in which they did not."""

    def read(self) -> Reading:
        question, first = self._read_question()
        layout = self._layout(question, first)
        self.watched = {length for length in (layout.samples, layout.positions) if length is not None}
        self.base = self._run({})
        self.noise = noise_between(first.outputs, self.base.outputs)
        if self.noise > MAX_NOISE:
            self.gaps.append(_gap("what the outputs depend on", "the outputs are random even in eval mode"))
        else:
            self._probe("whether samples are independent", self._probe_samples, layout)
            if layout.offset is not None:
                self._probe("what each position sees", self._probe_positions, layout)
            self._probe("whether padding is masked", self._probe_padding, layout)
        dependence = Dependence(
            passes=self.runner.made,
            noise=self.noise,
            samples=layout.samples,
            sample_axis=layout.sample_axis,
            positions=layout.positions,
            position_axis=layout.position_axis,
            perturbations=tuple(self.perturbations),
            inputs=self.uses,
            padding_counted=self.padding_counted,
        )
        return dependence, question, tuple(self.gaps)

    def _read_question(self) -> tuple[Question, _Outcome]:
        """What the loss rewards, from a pass whose graph ends here, so that no two passes are held at once."""
        first = self.runner.run(self.case.inputs, self.case.targets)
        if not bool(torch.isfinite(first.loss)):
            raise NotProbedError("the loss is not finite")
        visible = [each for each in self.inputs if self._is_visible(each.name)]
        question, self.used = read_question(self.case, self.trace, first, visible)
        return question, _outcome(first)

    def _probe(self, what: str, probe: Any, layout: _Layout) -> None:
        try:
            probe(layout)
        except NotProbedError as reason:
            self.gaps.append(_gap(what, str(reason)))
        except Exception as error:  # the model refuses these inputs
            self.gaps.append(_gap(what, _reason(error)))

    def _run(self, changed: dict[int, Tensor]) -> _Outcome:
        inputs, targets = replace_tensors((self.case.inputs, self.case.targets), changed)
        return _outcome(self.runner.run(inputs, targets, watch=self.watched))

    def _run_changed(
        self, sources: Sequence[BatchTensor], axis: int, change: Callable[[Tensor, Tensor], Tensor]
    ) -> _Outcome | None:
        """The outcome of a pass on changed inputs; None if nothing changed.

        `change` gets a tensor and the positions along `axis` that it may change and draw from: all, until the model
        refuses a batch. It may count the tokens that stand for parts of an image, which stay in place from then on.
        """

        def changed() -> dict[int, Tensor]:
            free = free_positions if self.keeps_counted else all_positions
            tensors = {id(each.tensor): change(each.tensor, free(each.tensor, axis)) for each in sources}
            is_same = all(torch.equal(tensors[id(each.tensor)], each.tensor) for each in sources)
            return {} if is_same else tensors

        tensors = changed()
        try:
            return self._run(tensors) if tensors else None
        except Exception as error:  # whatever a model raises when it refuses a batch
            if self.keeps_counted:
                raise
            refusal = error.with_traceback(None)  # whose frames would hold the pass that failed
        self.keeps_counted = True
        tensors = changed()
        if not tensors:
            raise refusal
        return self._run(tensors)

    def _is_visible(self, name: str) -> bool:
        """Whether the predictions depend on the input; labels that only the loss reads are not visible."""
        return next((use.visible for use in self.uses if use.name == name), False)

    def _layout(self, question: Question, first: _Outcome) -> _Layout:
        """Samples are along the first axis, unless the targets show that positions are.

        Inputs of several lengths, such as the examples of some classes and queries about them, have as many samples as
        targets, or else as outputs, if one of them has that length.
        """
        offset = question.offset
        axis = 0 if offset is None else 1 - offset.axis
        shaped = [each for each in self.inputs if each.tensor.dim() > axis]
        source = next((each for each in self.inputs if offset and each.name == offset.input), None)
        positions = None if source is None or offset is None else source.tensor.size(offset.axis)
        if not shaped:
            return _Layout((), None, None, positions, offset)
        largest = source or max(shaped, key=lambda each: (each.tensor.dim(), each.tensor.numel()))
        lengths = {each.tensor.size(axis) for each in shaped}
        asked = [each for each in (self.case.targets, *first.outputs) if isinstance(each, Tensor)]
        expected = [each.size(axis) for each in asked if each.dim() > axis and each.size(axis) in lengths]
        samples = largest.tensor.size(axis)
        if source is None and expected:
            samples = expected[0]
        with_samples = tuple(each for each in shaped if each.tensor.size(axis) == samples)
        return _Layout(with_samples, samples, axis, positions, offset)

    # Every second sample changes; no other may.

    def _probe_samples(self, layout: _Layout) -> None:
        samples, axis = layout.samples, layout.sample_axis
        reason = why_no_sample_axis(self.case.inputs, self.case.targets)
        if samples is None or axis is None:
            raise NotProbedError(reason or "no input is a tensor with an axis of samples")
        if samples < 2 or reason:
            raise NotProbedError(reason or "the batch has fewer than two samples")
        self._refuse_graphs(layout, samples)
        redrawn = range(1, samples, 2)
        data = [each for each in layout.tensors if not each.is_mask] or list(layout.tensors)
        other = self._run_changed(
            data, 1 - axis, lambda tensor, free: redraw_samples(tensor, axis, redrawn, free)
        )
        if other is None:
            raise NotProbedError("all samples of the batch are equal")
        moved = self._moved(other, samples, axis)
        forbidden = tuple(index for index, move in enumerate(moved) if move and index not in redrawn)
        if forbidden and self._is_comparison(other, samples, redrawn):
            raise NotProbedError("the outputs have a row and a column for each sample: they compare samples")
        site = self._compare(other, samples, redrawn).find_cause(self.base.roots) if forbidden else None
        self.perturbations.append(
            Perturbation(
                kind="sample", first=redrawn[0], last=redrawn[-1], moved=moved, forbidden=forbidden, site=site
            )
        )

    def _is_comparison(self, other: _Outcome, samples: int, redrawn: Collection[int]) -> bool:
        """Whether every output that changed has a row and a column for each sample, and no pair of others changed."""
        kept = torch.tensor([index for index in range(samples) if index not in redrawn])
        for before, after in zip(self.base.outputs, other.outputs, strict=False):
            change = change_along(before, after, samples, 0)
            if change is None or not bool((change[kept] > self._tolerance()).any()):
                continue
            axes = [axis for axis, size in enumerate(before.shape) if size == samples][:2]
            if len(axes) < 2:
                return False
            delta = (after.double() - before.double()).abs().nan_to_num().movedim(axes, (0, 1))
            pairs = delta.index_select(0, kept.to(delta.device)).index_select(1, kept.to(delta.device))
            if float(pairs.max()) > self._tolerance() * (largest_magnitude(before) or 1.0):
                return False
        return True

    def _refuse_graphs(self, layout: _Layout, samples: int) -> None:
        """Rows of a graph depend on each other by design: its edges are indices of rows, or a square matrix."""
        matrix = connecting_matrix(self.case.inputs, samples)
        if matrix is not None:
            raise NotProbedError(
                f"{matrix} is sparse, has a row and a column for each sample and may connect them"
            )
        for each in self.inputs:
            with_samples = any(each is other for other in layout.tensors)
            if each.is_tokens and not with_samples and each.tensor.dim() > 1:
                raise NotProbedError(
                    f"{each.name} holds integers that may connect the rows of the other inputs (a graph)"
                )
            is_square = each.tensor.dim() < 4 and each.tensor.shape[:2] == (samples, samples)  # not an image
            if is_square and len(layout.tensors) > 1:
                raise NotProbedError(CONNECTED_SAMPLES.format(each.name))
        for name, tensor in named_tensors(self.case.inputs, "input"):
            if tensor.layout is not torch.strided and tensor.shape[:2] == (samples, samples):
                raise NotProbedError(CONNECTED_SAMPLES.format(name))

    # Sequences whose targets are the inputs of later positions.

    def _probe_positions(self, layout: _Layout) -> None:
        offset, positions = layout.offset, layout.positions
        if offset is None or positions is None or positions < MIN_POSITIONS:
            raise NotProbedError("the sequences are too short")
        source = next(each for each in self.inputs if each.name == offset.input)
        split = positions // 2
        self._perturb_positions("future", source, (split, positions - 1), layout)
        self._perturb_positions("past", source, (0, positions - 2), layout)
        effect = next((each.moved[-1] for each in self.perturbations if each.kind == "past"), 0.0)
        if 0.0 < effect <= self._tolerance():
            raise NotProbedError(LOST_IN_ROUNDING)
        self._perturb_positions("order", source, (0, positions - 2), layout)

    def _perturb_positions(
        self,
        kind: PerturbationKind,
        source: BatchTensor,
        span: tuple[int, int],
        layout: _Layout,
    ) -> None:
        positions, offset = layout.positions, layout.offset
        if positions is None or offset is None:
            return
        change = permute_positions if kind == "order" else redraw_positions
        other = self._run_changed(
            [source], offset.axis, lambda tensor, free: change(tensor, offset.axis, span, free)
        )
        if other is None:
            return
        # That nothing moves is claimed only if nothing does: in half precision, small effects are below the tolerance.
        tolerance = MIN_OVER_NOISE * self.noise if kind == "past" else None
        moved = self._moved(other, positions, offset.axis, tolerance)
        if kind == "past" and not moved[-1] and self._is_rounded_away(other, positions):
            raise NotProbedError(LOST_IN_ROUNDING)
        forbidden: tuple[int, ...] = ()
        if kind == "future" and offset.offset >= 1:
            counted = self._counted_positions(layout)
            # A position that is asked for the input k ahead may see the k - 1 inputs between.
            last = min(span[0] - offset.offset + 1, len(moved))
            forbidden = tuple(index for index in range(last) if moved[index] and counted[index])
        site = None
        if forbidden:
            allowed = range(span[0], positions)
            site = self._compare(other, positions, allowed).find_cause(self.base.roots)
        self.perturbations.append(
            Perturbation(
                kind=kind,
                input=source.name,
                first=span[0],
                last=span[1],
                moved=moved,
                forbidden=forbidden,
                site=site,
            )
        )

    def _counted_positions(self, layout: _Layout) -> list[bool]:
        """The positions at which the loss asks for something, in any sample."""
        positions, axis = layout.positions or 0, layout.position_axis
        counted = None if self.used is None else self.used.counted
        if counted is None or axis is None or counted.dim() <= axis:
            return [True] * positions
        along = counted.movedim(axis, 0).flatten(1).any(1).tolist()
        return along + [False] * (positions - len(along))

    # Padded positions, where a mask is given.

    def _probe_padding(self, layout: _Layout) -> None:
        for mask in layout.tensors:
            for source in layout.tensors:
                padded = padded_positions(mask, source)
                if padded is not None:
                    self.padding_counted = self._count_padding(padded, layout)
                    self._perturb_padding(source, padded)
                    return

    def _count_padding(self, padded: Tensor, layout: _Layout) -> int:
        """How many predictions at padded positions are asked for padding: all for the same target."""
        used = self.used
        if used is None or used.counted.numel() != padded.numel() or layout.position_axis == 0:
            return 0
        ahead = 0 if layout.offset is None else layout.offset.offset
        asked = padded.roll(-ahead, 1)
        if ahead:
            asked[:, -ahead:] = False
        counted = used.counted.view(padded.shape) & padded & asked
        targets = used.values.reshape(padded.shape)[counted]
        return len(targets) if bool((targets == targets[:1]).all()) else 0

    def _perturb_padding(self, source: BatchTensor, padded: Tensor) -> None:
        other = self._run_changed(
            [source], 1, lambda tensor, free: fill_positions(tensor, padded, ~padded & free)
        )
        if other is None:
            return
        moved = change_where(self.base.outputs, other.outputs, ~padded, self._tolerance())
        by_sample = moved is None
        rows = self._moved(other, len(padded), 0) if moved is None else tuple(moved.amax(0).tolist())
        forbidden = tuple(index for index, move in enumerate(rows) if move > 0)
        positions = padded.any(0).nonzero().flatten().tolist()
        self.perturbations.append(
            Perturbation(
                kind="padding",
                input=source.name,
                first=positions[0],
                last=positions[-1],
                moved=rows,
                forbidden=forbidden,
                by_sample=by_sample,
            )
        )

    # Comparison.

    def _compare(self, other: _Outcome, length: int, allowed: Collection[int]) -> PassComparison:
        return PassComparison(self.base.prints, other.prints, length, allowed)

    def _is_rounded_away(self, other: _Outcome, positions: int) -> bool:
        """Whether the last position depends on the earlier ones, but an addition to something larger hides it."""
        earlier = range(positions - 1)
        return self._compare(other, positions, earlier).reaches(self.base.roots, positions - 1)

    def _tolerance(self) -> float:
        roundings = max((torch.finfo(each.dtype).eps for each in self.base.outputs), default=0.0)
        return max(MIN_OVER_NOISE * self.noise, MAX_ROUNDINGS * roundings)

    def _moved(
        self, other: _Outcome, length: int, axis: int, tolerance: float | None = None
    ) -> tuple[float, ...]:
        """By index along an axis: the largest relative change of any output, where it exceeds the tolerance.

        The tolerance is that of rounding and noise, unless another is given.
        """
        changes = [
            change
            for before, after in zip(self.base.outputs, other.outputs, strict=False)
            if (change := change_along(before, after, length, axis)) is not None
        ]
        if not changes:
            raise NotProbedError("the outputs have no axis that matches the inputs")
        largest = torch.stack(changes).amax(0)
        largest[largest <= (self._tolerance() if tolerance is None else tolerance)] = 0.0
        return tuple(largest.tolist())


def _input_uses(trace: Trace, inputs: Sequence[BatchTensor]) -> tuple[InputUse, ...]:
    values = {value.name: value for value in trace.values if value.source == "input"}
    needed = {value for index in needed_ops(trace) for value in read_values(trace.ops[index])}
    return tuple(
        InputUse(
            name=each.name,
            shape=tuple(each.tensor.shape),
            used=each.name in values and values[each.name].id in needed,
            visible=each.name in values and flow_from(trace, values[each.name]) is not None,
            constant=each.is_constant,
        )
        for each in inputs
    )


def _gap(what: str, why: str) -> Gap:
    return Gap(what=what, why=why)


def _reason(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"a pass on changed inputs raised {type(error).__name__}: {first}"
