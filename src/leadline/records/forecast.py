"""The Forecast: how the step and the signal change with depth, width and batch, and how deep the network can be."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from leadline.records.codec import decode, encode
from leadline.records.display import NotebookCard

FORECAST_SCHEMA = "leadline.forecast/1"

# Heuristic: the accuracy that is required of an exponent.
MAX_FLAT_EXPONENT = 0.1
# Derived: half a power separates the laws of the known schemes; a wider interval cannot tell them apart.
MAX_FLAT_INTERVAL = 0.5

Cause = Literal["promise", "step", "forward", "backward", "non-finite"]


class DepthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One network of the family, measured at its first step."""

    depth: int
    seed: int
    parameters: int
    blocks: int
    loss: float
    grad_square: float
    r"""$\lVert g \rVert^2$ over the parameters of the repeated blocks; of the whole network where there are none."""
    loss_change: float
    """Predicted change of the loss if these parameters make the step."""
    function_change: float | None
    """rms change of the outputs if these make an infinitesimal step, scaled to the whole step."""
    total_loss_change: float
    """Predicted change of the loss by the whole step, including embedding and head."""
    total_function_change: float | None
    ratio: float | None
    """Measured over predicted change of the loss by the whole step."""
    parting: float | None
    """Safe learning rate over learning rate: the multiple of a sustained step at which measured and predicted change
    differ by half."""
    parting_is_bound: bool
    forward_e_folds: float | None
    """Natural logarithm of the change of the forward second moment over the blocks, without the head."""
    backward_e_folds: float | None
    """Natural logarithm of the change of the squared gradient over the blocks, toward the input."""
    normalized: bool


class Exponent(msgspec.Struct, frozen=True, kw_only=True):
    """$p$ in quantity ~ depth$^p$: mean over seeds with a 95 % interval (None with a single seed).

    Along another axis than depth, `depths` are the widths or batch sizes.
    """

    value: float
    low: float | None
    high: float | None
    seeds: int
    depths: tuple[int, ...]
    """Depths that the slope was fitted to."""

    @property
    def verdict(self) -> Literal["grows", "falls", "flat", "unclear"]:
        """The trend that the interval supports; without an interval, that of the value."""
        trend: Literal["grows", "falls"] = "grows" if self.value > 0 else "falls"
        is_small = abs(self.value) < MAX_FLAT_EXPONENT
        if self.low is None or self.high is None:
            return "flat" if is_small else trend
        includes_zero = self.low <= 0 <= self.high
        is_narrow = self.low > -MAX_FLAT_INTERVAL and self.high < MAX_FLAT_INTERVAL
        if includes_zero and is_narrow:
            return "flat"
        if is_small and self.high - self.low < MAX_FLAT_EXPONENT:
            return "flat"
        return "unclear" if includes_zero else trend


class DepthLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A depth beyond which training fails, and why."""

    cause: Cause
    depth: float
    low: float | None
    high: float | None
    extrapolated: bool
    """It lies outside the measured depths."""
    message: str


# Other axes than depth: the width of the network, and the number of samples in a batch.

Axis = Literal["depth", "width", "batch"]
AXES: tuple[Axis, ...] = get_args(Axis)
TensorKind = Literal["hidden", "input", "output", "vector"]
"""Matrices whose two sides both grow with width; those with one side; and vectors such as biases and gains."""


class TensorSize(msgspec.Struct, frozen=True, kw_only=True):
    """rms over the entries of all tensors of one kind, and what the optimizer does to them."""

    kind: TensorKind
    weight: float
    gradient: float
    update: float
    eps: float | None = None
    """Epsilon in the denominator of the step; None: the optimizer has none."""
    decay: float = 0.0
    """Share of a weight that decay alone removes per step."""
    lr: float | None = None
    """Mean rate of the tensors."""


class AxisPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One network of the family at one width or batch size, measured at its first step."""

    value: int
    seed: int
    parameters: int
    loss: float
    grad_square: float
    update_norm: float
    function_change: float | None
    """rms change of the outputs by an infinitesimal step of all parameters, scaled to the whole step."""
    blocks_change: float | None
    """`function_change` if only the repeated blocks make the step; None: no such blocks."""
    safe_lr: float | None
    """Largest rate at which the step does what its gradient predicts; None: not reached."""
    sizes: tuple[TensorSize, ...] = ()


class ScalingRule(msgspec.Struct, frozen=True, kw_only=True):
    """How one setting must change along the axis: multiply it by value$^{power}$, on top of what `build` does."""

    setting: str
    power: float
    wanted: float | None = None
    """Power of the axis that theory wants in the quantity that the setting controls; None: the rule is a law alone."""
    now: Exponent | None = None
    """Power that the quantity was measured to have."""
    reason: str
    source: str


class GradientNoise(msgspec.Struct, frozen=True, kw_only=True):
    r"""Noise of the gradient over samples: $B_{noise} = \mathrm{tr}\,\Sigma / \lVert G \rVert^2$.

    $\Sigma$ is the covariance of the gradient of one sample and $G$ its mean; the gradient of a batch of $B$ samples
    has the mean square $\lVert G \rVert^2 + \mathrm{tr}\,\Sigma / B$.
    """

    critical_batch: float | None
    """$B_{noise}$, from the means over seeds; None: the noise hides the mean gradient, so that it is larger than
    `resolved_up_to`."""
    low: float | None
    high: float | None
    """Smallest and largest value of a single seed; None with a single seed or where a seed does not resolve it."""
    resolved_up_to: float
    """Samples of all seeds, above which a critical batch cannot be measured."""


class AxisLaw(msgspec.Struct, frozen=True, kw_only=True):
    """What changes along one axis while the others stay at their base."""

    axis: Axis
    values: Annotated[tuple[int, ...], msgspec.Meta(min_length=2)]
    base: dict[str, int]
    """Values of the other axes."""
    points: tuple[AxisPoint, ...]
    exponents: dict[str, Exponent]
    rules: tuple[ScalingRule, ...]
    advice: tuple[str, ...]
    noise: GradientNoise | None = None


class DecayMemory(msgspec.Struct, frozen=True, kw_only=True):
    r"""Weight decay's memory $1/(\eta\lambda)$ in steps, beside the planned length of the run."""

    steps: int
    shortest: float
    longest: float
    """Over the groups of parameters that decay; equal if there is one."""
    advice: tuple[str, ...]


class Forecast(NotebookCard, frozen=True, kw_only=True):
    """What `leadline.forecast` returns: exponents by quantity, limits, the depth that they allow, and advice."""

    schema: str = FORECAST_SCHEMA
    model: str
    optimizer: str
    lr: float | None
    depths: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]
    seeds: int
    from_one_model: bool
    """It is extrapolated from the blocks of one model, not measured at several depths."""
    points: tuple[DepthPoint, ...]
    exponents: dict[str, Exponent]
    limits: tuple[DepthLimit, ...]
    max_depth: int | None
    """Depth of the deepest network of this family that is expected to train at this learning rate without warmup;
    None: no limit was found, or `undecided`."""
    max_depth_low: float | None
    max_depth_high: float | None
    """95 % interval over seeds; also given if the depth is undecided."""
    safe_depth: int | None
    """Depth of the deepest network whose first step also does what its gradient predicts; None: no limit was found."""
    advice: tuple[str, ...]
    undecided: bool = False
    """There is a limit, but the seeds disagree too much to say at which depth."""
    laws: tuple[AxisLaw, ...] = ()
    """What changes with width and with the batch, if they were varied."""
    decay_memory: DecayMemory | None = None
    """Given if the length of the run was named and the optimizer decays weights."""

    @property
    def varies_depth(self) -> bool:
        """Whether depth was varied, or extrapolated from one model; if not, `depths` is that of the base network."""
        return bool(self.points)

    def to_json(self) -> str:
        return encode(self)

    @classmethod
    def from_json(cls, text: str) -> Forecast:
        return decode(text, cls, FORECAST_SCHEMA)
