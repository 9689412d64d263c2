"""What one optimizer step does to a model."""

from __future__ import annotations

from statistics import median
from typing import Literal

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.display import NotebookCard
from leadline.records.trace import Gap

UPDATE_SCHEMA = "leadline.update/1"

Confidence = Literal["high", "medium", "low"]
SharpnessKind = Literal["lanczos", "along the step"]


class ParameterStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the step does to one parameter tensor."""

    name: str
    block: str
    """Name of the first block of the depth axis that uses it; "" if no block does."""
    count: int
    dtype: str
    predicted: float
    r"""$\langle g, \Delta\theta \rangle$ of this tensor: its part of the predicted change of the loss."""
    grad_norm: float
    update_norm: float
    weight_norm: float
    swallowed: float | None = None
    """Share of the entries with a gradient whose change was rounded away."""

    @property
    def update_ratio(self) -> float | None:
        """Norm of the update over norm of the weight; None if the weight is zero."""
        return self.update_norm / self.weight_norm if self.weight_norm else None


class LowRankStep(msgspec.Struct, frozen=True, kw_only=True):
    r"""What the step does to a low-rank term $s\,B A$ beside a frozen matrix $W$, in largest singular values."""

    base: str
    """Name of $W$."""
    rank: int
    scale: float
    """$s$."""
    change: float
    r"""$\lVert s\,\Delta(B A) \rVert_2$."""
    base_size: float
    r"""$\lVert W \rVert_2$."""

    @property
    def relative(self) -> float | None:
        """Change over the size of the frozen matrix; None if that is zero."""
        return self.change / self.base_size if self.base_size > 0 else None


class BlockStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the step does to the parameters of one block of the depth axis."""

    name: str
    stream: int
    repeated: bool
    """It is one of the blocks that a deeper network has more of, not an embedding or a head."""
    predicted: float
    share: float | None
    """Share of the predicted change of the loss; the shares of all blocks, and of parameters on no block, sum to 1."""
    grad_square: float
    update_norm: float
    weight_norm: float


class DepthRange(msgspec.Struct, frozen=True, kw_only=True):
    """A range of adjacent blocks of the depth axis."""

    first: str
    last: str
    blocks: int
    share: float | None
    """Share of the predicted change of the loss."""
    function_change: float | None = None
    """rms change of the output if only this range makes the step; None: not measured."""
    loss_change: float | None = None
    """Measured change of the loss if only this range makes the step; None: not measured."""


class LinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The loss at a multiple of the step."""

    multiple: float
    loss: float
    ratio: float | None
    """Measured over predicted change of the loss at this multiple."""


class Update(NotebookCard, frozen=True, kw_only=True):
    r"""One step $\Delta\theta$ of the user's optimizer: the predicted and the measured effect.

    The prediction is the linear one, $\Delta L = \langle g, \Delta\theta \rangle$; for SGD that is
    $-\eta \lVert g \rVert^2$. Everything was measured on one batch, with the same random numbers before and after.
    """

    schema: str = UPDATE_SCHEMA
    optimizer: str
    steps: int
    """Steps that the optimizer had made before, according to its state."""
    lr: float | None
    """The largest learning rate among its groups."""
    loss: float
    predicted_loss_change: float
    measured_loss_change: float
    ratio: float | None
    """Measured over predicted change; None if it is below the rounding error."""
    loss_resolution: float
    """Changes of the loss below this are rounding errors."""
    function_change: float
    """rms change over all outputs."""
    function_change_relative: float | None
    """`function_change` over the rms of the outputs."""
    function_response: float | None
    """rms change of the outputs for an infinitesimal step, scaled to the whole step; None: not measured."""
    blocks_response: float | None
    """`function_response` if only the repeated blocks make the step; None: no such blocks, or not measured."""
    grad_square: float
    r"""$\lVert g \rVert^2$ over all parameters."""
    update_norm: float
    weight_norm: float
    line: tuple[LinePoint, ...]
    parting: float | None
    """Multiple of the step at which measured and predicted change differ by half; None: not reached."""
    parting_is_bound: bool
    """The difference stays below half up to `parting`, so the true multiple is larger."""
    sharpness: float | None
    r"""Largest curvature $\lambda$ that the step sees, in units in which the stability limit of the rate is
    $2/\lambda$ without momentum."""
    sharpness_kind: SharpnessKind | None
    stability_lr: float | None
    """Learning rate above which steps along the sharpest direction grow instead of shrinking."""
    safe_lr: float | None
    """Largest learning rate at which the step still does what the gradient predicts."""
    safe_lr_is_bound: bool = False
    """The prediction holds up to the largest multiple that was measured, so the true safe rate is larger."""
    warmup_steps: int | None
    """Steps of a linear warmup that keeps the first steps below `safe_lr`; 0: no warmup is needed."""
    confidence: Confidence
    confidence_why: str
    parameters: tuple[ParameterStep, ...]
    blocks: tuple[BlockStep, ...]
    ranges: tuple[DepthRange, ...]
    low_rank: tuple[LowRankStep, ...] = ()
    """What the step does to products that are added to frozen matrices, as in LoRA; at most 24 of them."""
    gaps: tuple[Gap, ...] = ()

    @property
    def low_rank_change(self) -> float | None:
        """Median change of the products in `low_rank` relative to the frozen matrices; None if there are none."""
        changes = [each.relative for each in self.low_rank if each.relative is not None]
        return median(changes) if changes else None

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Update:
        return decode(text, cls, UPDATE_SCHEMA)
