"""Which outputs depend on which inputs: change part of the batch, run again, and compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from leadline.case import Case
from leadline.readings.wiring.batch import (
    BatchLayout,
    BatchTensor,
    batch_tensors,
    connecting_matrix,
    fill_positions,
    layout_of,
    padded_positions,
    permute_positions,
    redraw_positions,
    redraw_samples,
    why_no_sample_axis,
)
from leadline.readings.wiring.input_uses import looked_up_inputs, read_input_uses
from leadline.readings.wiring.offsets import count_declared_padding, counted_positions
from leadline.readings.wiring.output_changes import (
    change_where,
    is_comparison,
    noise_between,
    reversed_samples,
)
from leadline.readings.wiring.probe_passes import (
    MIN_OVER_NOISE,
    NotProbedError,
    PassOutcome,
    ProbePasses,
    RefusedBatchError,
    SampleBatch,
    outcome_of,
    own_error,
    perturbation_inside,
)
from leadline.readings.wiring.question import read_question
from leadline.records import Gap, Trace
from leadline.records.wiring import (
    Dependence,
    Perturbation,
    PerturbationKind,
    Question,
)
from leadline.tracer.inputs import named_tensors
from leadline.tracer.passes import PassRunner, open_passes
from leadline.tracer.values import tensors_in

# Heuristic: outputs that differ by more than this when the same pass is repeated are random, and nothing can be said.
MAX_NOISE = 1e-2
# Heuristic: below this, half of a sequence is too short to tell past from future.
MIN_POSITIONS = 4
# Heuristic: of two columns, one may be meant for something else.
MIN_COLUMNS = 3
# Derived: what the documentation promises, besides passes that are made again to find an op.
MAX_PASSES = 8
# Heuristic: relative change by another order of the samples; kernels add up in another order then, and what depends on
# a place changes by far more.
MIN_CHANGE_BY_PLACE = 1e-4

CONNECTED_SAMPLES = "{} has a row and a column for each sample and may connect them"
TOO_MANY_PASSES = f"other probes took all {MAX_PASSES} passes"
NO_TIME_LEFT = "the time for the check was over"
LOST_IN_ROUNDING = "the effect of all earlier positions is smaller than rounding"

Reading = tuple[Dependence | None, Question | None, tuple[Gap, ...]]


def read_dependence(case: Case, trace: Trace, is_late: Callable[[], bool] = lambda: False) -> Reading:
    """What the outputs depend on and what the loss rewards, and what could not be asked, with the reason.

    No probe begins when `is_late()` is true.
    """
    try:
        with open_passes(case) as runner:
            return _Probes(case, trace, runner, is_late).read()
    except NotProbedError as reason:
        return None, None, (_gap("what the outputs depend on", str(reason)),)
    except Exception as error:  # a probe that fails is reported, never raised into the user's program
        return None, None, (_gap("what the outputs depend on", own_error(error)),)


class _Probes(ProbePasses):
    """The probes of one case, one after the other, on one base pass."""

    def __init__(self, case: Case, trace: Trace, runner: PassRunner, is_late: Callable[[], bool]) -> None:
        super().__init__(case, runner)
        self.trace, self._is_late = trace, is_late
        self.inputs = batch_tensors(case.inputs)
        self.uses = read_input_uses(trace, self.inputs)
        self.gaps: list[Gap] = []
        self.perturbations: list[Perturbation] = []
        self.padding_counted = 0

    def read(self) -> Reading:
        question, first = self._read_question()
        asked = [each for each in (self.case.targets, *first.outputs) if isinstance(each, Tensor)]
        layout = layout_of(self.inputs, question.offset, asked)
        self.base = self.run({})
        self.noise = noise_between(first.outputs, self.base.outputs)
        if self.noise > MAX_NOISE:
            self.gaps.append(_gap("what the outputs depend on", "the outputs are random even in eval mode"))
        else:
            self._probe("whether samples are independent", self._probe_samples, layout)
            if layout.offset is not None:
                self._probe("what each position sees", self._probe_positions, layout)
            self._probe("whether padding is masked", self._probe_padding, layout)
            if layout.offset is None:
                self._probe("which positions are read", self._probe_rest, layout)
        dependence = Dependence(
            passes=self.runner.made,
            noise=self.noise,
            samples=layout.samples,
            sample_axis=layout.sample_axis,
            positions=layout.positions,
            position_axis=layout.position_axis,
            perturbations=tuple(self.perturbations),
            inputs=self.uses,
            dropouts=tuple(dict.fromkeys(self.dropouts)),
            padding_counted=self.padding_counted,
        )
        return dependence, question, tuple(self.gaps)

    def _read_question(self) -> tuple[Question, PassOutcome]:
        """What the loss rewards, from a pass whose graph ends here, so that no two passes are held at once."""
        first = self.observe({})
        if not bool(torch.isfinite(first.loss)):
            raise NotProbedError("the loss is not finite")
        visible = [each for each in self.inputs if self._is_visible(each.name)]
        self.dropouts = first.dropouts
        question, self.used = read_question(self.case, self.trace, first, visible)
        return question, outcome_of(first, {})

    def _probe(self, what: str, probe: Any, layout: BatchLayout) -> None:
        try:
            if self._is_late():
                raise NotProbedError(NO_TIME_LEFT)
            probe(layout)
        except NotProbedError as reason:
            self.gaps.append(_gap(what, str(reason)))
        except Exception as error:  # the other probes go on
            self.gaps.append(_gap(what, own_error(error)))

    def _is_visible(self, name: str) -> bool:
        """Whether the predictions depend on the input; labels that only the loss reads are not visible."""
        return next((use.visible for use in self.uses if use.name == name), False)

    # Every second sample is changed; the outputs of the others must stay.

    def _probe_samples(self, layout: BatchLayout) -> None:
        samples, axis = layout.samples, layout.sample_axis
        reason = why_no_sample_axis(self.case.inputs, self.case.targets)
        if samples is None or axis is None:
            raise NotProbedError(reason or "no input is a tensor with an axis of samples")
        if samples < 2 or reason:
            raise NotProbedError(reason or "the batch has fewer than two samples")
        self._refuse_graphs(layout, samples)
        data = [each for each in layout.tensors if not each.is_mask] or list(layout.tensors)
        targets = _with_samples(self.case.targets, samples, axis)
        every = SampleBatch(
            base=self.base,
            data={id(each.tensor): each.tensor for each in data},
            masks={id(each.tensor): each.tensor for each in layout.tensors if each.is_mask},
            others={id(each): each for each in (*(each.tensor for each in layout.tensors), *targets)},
            samples=samples,
        )
        squares = [each for each in layout.tensors if _is_square(each.tensor, samples)]
        has_words = not looked_up_inputs(self.trace).isdisjoint(each.name for each in squares)
        if not squares or has_words or len(layout.tensors) == 1:
            may_be_sequence = layout.positions is None and all(
                len(use.shape) <= 2 for use in self.uses if use.visible
            )
            # The first row of one causal sequence never changes unless it is changed itself, so it stays at first.
            self.perturbations.append(self._perturb_twice(every, layout, 1 if may_be_sequence else 0))
            return
        fewer = self._without_last_sample(every, axis) if samples > 2 else None
        if fewer is None:
            raise NotProbedError(CONNECTED_SAMPLES.format(squares[0].name))
        self.perturbations.append(self._perturb_twice(fewer, layout, 0))

    def _without_last_sample(self, every: SampleBatch, axis: int) -> SampleBatch | None:
        """The batch without its last sample; None if the model refuses it, because an input connects samples.

        An input with as many positions as samples then no longer looks like one that does. Outputs that have as many
        rows as before have no samples, but positions, as a mean over the batch leaves them: then it is the whole batch.
        """

        def narrowed(tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
            return {key: each.narrow(axis, 0, every.samples - 1) for key, each in tensors.items()}

        others = narrowed(every.others)
        targets = {id(each) for each in tensors_in(self.case.targets)}
        for changed in (others, {key: each for key, each in others.items() if key not in targets}):
            try:
                base = self.run(changed)
            except RefusedBatchError:  # also the loss, if it gets more outputs than targets
                continue
            if [each.shape for each in base.outputs] == [each.shape for each in self.base.outputs]:
                return every
            data, masks = narrowed(every.data), narrowed(every.masks)
            return SampleBatch(base=base, data=data, masks=masks, others=changed, samples=every.samples - 1)
        return None

    def _perturb_twice(self, batch: SampleBatch, layout: BatchLayout, first: int) -> Perturbation:
        """Change every second sample, beginning with `first`; if the others stay as they were, change those instead."""
        axis = layout.sample_axis or 0
        found = self._perturb_samples(batch, range(first, batch.samples, 2), axis)
        if found.forbidden or self.keeps_counted:  # a refused pass has taken the place of the second one
            return found
        return self._perturb_in_reverse(batch, layout, range(1 - first, batch.samples, 2))

    def _perturb_in_reverse(
        self, batch: SampleBatch, layout: BatchLayout, redrawn: Sequence[int]
    ) -> Perturbation:
        """Change these samples and turn the order of all around: what stays must not notice either.

        Masks change, too. Random numbers stay where they are, so the order stays if the pass draws any, and if some
        inputs have other samples. Where something is noticed, or the model needs its order, the samples are changed
        again in their order.
        """
        axis, base = layout.sample_axis or 0, batch.base
        plain = partial(self._perturb_samples, batch, redrawn, axis)
        is_uneven = any(
            each.tensor.dim() > axis and each.tensor.size(axis) != layout.samples for each in self.inputs
        )
        if base.is_random or is_uneven or not base.outputs:
            return plain()
        masks = batch.redrawn_masks(redrawn, axis)
        try:
            other = self.run_changed(
                batch.data,
                1 - axis,
                lambda tensor, free: redraw_samples(tensor, axis, redrawn, free).flip(axis),
                {key: each.flip(axis) for key, each in {**batch.others, **masks}.items()},
            )
        except RefusedBatchError:
            return plain()
        turned = (
            []
            if other is None
            else [reversed_samples(each, batch.samples, layout.positions, axis) for each in other.outputs]
        )
        restored = [each for each in turned if each is not None]
        if other is None or len(restored) < len(base.outputs):
            return plain()
        moved = self.moved(base, replace(other, outputs=restored), batch.samples, axis)
        forbidden = tuple(
            index for index, move in enumerate(moved) if move > MIN_CHANGE_BY_PLACE and index not in redrawn
        )
        found = plain(masks) if forbidden else None
        if found is not None and found.forbidden:
            return found
        return Perturbation(
            kind="sample",
            first=redrawn[0],
            last=redrawn[-1],
            changed=len(redrawn),
            moved=moved,
            forbidden=forbidden,
            by_place=bool(forbidden),
        )

    def _perturb_samples(
        self,
        batch: SampleBatch,
        redrawn: Sequence[int],
        axis: int,
        masks: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> Perturbation:
        samples, base = batch.samples, batch.base
        other = self.run_changed(
            batch.data,
            1 - axis,
            lambda tensor, free: redraw_samples(tensor, axis, redrawn, free),
            {**batch.others, **masks},
        )
        if other is None:
            raise NotProbedError("all samples of the batch are equal")
        if not base.outputs:
            return perturbation_inside(self.compare(base, other, samples, redrawn), redrawn)
        moved = self.moved(base, other, samples, axis)
        forbidden = tuple(index for index, move in enumerate(moved) if move and index not in redrawn)
        pairs = list(zip(base.outputs, other.outputs, strict=False))
        if forbidden and is_comparison(pairs, samples, redrawn, self.tolerance()):
            raise NotProbedError("the outputs have a row and a column for each sample: they compare samples")
        site = self.compare(base, other, samples, redrawn).find_cause() if forbidden else None
        return Perturbation(
            kind="sample",
            first=redrawn[0],
            last=redrawn[-1],
            changed=len(redrawn),
            moved=moved,
            forbidden=forbidden,
            site=site,
        )

    def _refuse_graphs(self, layout: BatchLayout, samples: int) -> None:
        """Rows of a graph depend on each other by design: its edges are indices of rows, or a sparse matrix."""
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
        for name, tensor in named_tensors(self.case.inputs, "input"):
            if tensor.layout is not torch.strided and tensor.shape[:2] == (samples, samples):
                raise NotProbedError(CONNECTED_SAMPLES.format(name))

    # Sequences whose targets are the inputs of later positions.

    def _probe_positions(self, layout: BatchLayout) -> None:
        offset, positions = layout.offset, layout.positions
        if offset is None or positions is None or positions < MIN_POSITIONS:
            raise NotProbedError("the sequences are too short")
        source = next(each for each in self.inputs if each.name == offset.input)
        split = positions // 2
        self._perturb_positions("future", source, (split, positions - 1), layout)
        self._perturb_positions("past", source, (0, positions - 2), layout)
        effect = next((each.moved[-1] for each in self.perturbations if each.kind == "past"), 0.0)
        if 0.0 < effect <= self.tolerance():
            raise NotProbedError(LOST_IN_ROUNDING)
        self._perturb_positions("order", source, (0, positions - 2), layout)

    def _perturb_positions(
        self,
        kind: PerturbationKind,
        source: BatchTensor,
        span: tuple[int, int],
        layout: BatchLayout,
    ) -> None:
        positions, offset = layout.positions, layout.offset
        if positions is None or offset is None:
            return
        if self.made >= MAX_PASSES:
            raise NotProbedError(TOO_MANY_PASSES)
        change = permute_positions if kind == "order" else redraw_positions
        other = self.run_changed(
            {id(source.tensor): source.tensor},
            offset.axis,
            lambda tensor, free: change(tensor, offset.axis, span, free),
        )
        if other is None:
            return
        # That nothing moves is claimed only if nothing does: in half precision, small effects are below the tolerance.
        tolerance = MIN_OVER_NOISE * self.noise if kind == "past" else None
        moved = self.moved(self.base, other, positions, offset.axis, tolerance)
        if kind == "past" and not moved[-1] and self._is_rounded_away(other, positions):
            raise NotProbedError(LOST_IN_ROUNDING)
        forbidden: tuple[int, ...] = ()
        if kind == "future" and offset.offset >= 1:
            counted = counted_positions(self.used, positions, offset.axis)
            # A position that is asked for the input k ahead may see the k - 1 inputs between.
            last = min(span[0] - offset.offset + 1, len(moved))
            forbidden = tuple(index for index in range(last) if moved[index] and counted[index])
        site = None
        if forbidden:
            allowed = range(span[0], positions)
            site = self.compare(self.base, other, positions, allowed).find_cause()
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

    # Sequences without positions in the outputs: all positions but one are changed.

    def _probe_rest(self, layout: BatchLayout) -> None:
        source = next((each for each in layout.tensors if _may_be_sequence(each)), None)
        if layout.samples is None or layout.samples < 2 or layout.sample_axis != 0:
            return
        if source is None or any(source.tensor.size(1) in each.shape[1:] for each in self.base.outputs):
            return
        last = source.tensor.size(1) - 1
        for kept in (0, last):
            if self.made >= MAX_PASSES or not self.base.outputs:
                return
            other = self.run_changed(
                {id(source.tensor): source.tensor},
                1,
                partial(_redrawn_but, kept=kept),
            )
            if other is None:
                return
            moved = self.moved(self.base, other, len(source.tensor), 0, MIN_OVER_NOISE * self.noise)
            first, end = (1, last) if kept == 0 else (0, last - 1)
            self.perturbations.append(
                Perturbation(
                    kind="rest", input=source.name, first=first, last=end, moved=moved, by_sample=True
                )
            )

    # Padded positions, where a mask is given.

    def _probe_padding(self, layout: BatchLayout) -> None:
        self.padding_counted = count_declared_padding(self.trace, self.used, layout.tensors)
        for mask in layout.tensors:
            for source in layout.tensors:
                padded = padded_positions(mask, source)
                if padded is not None:
                    self.padding_counted = self._count_padding(padded, layout) or self.padding_counted
                    self._perturb_padding(source, padded)
                    return

    def _count_padding(self, padded: Tensor, layout: BatchLayout) -> int:
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
        if self.made >= MAX_PASSES:
            raise NotProbedError(TOO_MANY_PASSES)
        other = self.run_changed(
            {id(source.tensor): source.tensor},
            1,
            lambda tensor, free: fill_positions(tensor, padded, ~padded & free),
        )
        if other is None:
            return
        moved = change_where(self.base.outputs, other.outputs, ~padded, self.tolerance())
        by_sample = moved is None
        rows = (
            self.moved(self.base, other, len(padded), 0) if moved is None else tuple(moved.amax(0).tolist())
        )
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

    def _is_rounded_away(self, other: PassOutcome, positions: int) -> bool:
        """Whether the last position depends on the earlier ones, but an addition to something larger hides it."""
        earlier = range(positions - 1)
        return self.compare(self.base, other, positions, earlier).reaches(positions - 1)


def _with_samples(tree: Any, samples: int, axis: int) -> list[Tensor]:
    """The tensors that have the axis of samples."""
    return [each for each in tensors_in(tree) if each.dim() > axis and each.size(axis) == samples]


def _may_be_sequence(each: BatchTensor) -> bool:
    """Whether an input has several positions or columns along its second axis."""
    is_shaped = each.tensor.dim() == 2 or (each.tensor.dim() == 3 and not each.is_tokens)
    return is_shaped and not each.is_mask and each.tensor.size(1) >= MIN_COLUMNS


def _redrawn_but(tensor: Tensor, free: Tensor, kept: int) -> Tensor:
    """All samples redrawn at the free positions, but for one position."""
    is_kept = torch.arange(len(free), device=free.device) == kept
    return redraw_samples(tensor, 0, range(len(tensor)), free & ~is_kept)


def _is_square(tensor: Tensor, samples: int) -> bool:
    """Whether a tensor has as many columns as samples; an image may."""
    return tensor.dim() < 4 and tensor.shape[:2] == (samples, samples)


def _gap(what: str, why: str) -> Gap:
    return Gap(what=what, why=why)
