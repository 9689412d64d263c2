"""Facts about parts of a model that checks use in addition to the depth axis: weights, attention, inputs, the head."""

from __future__ import annotations

from typing import Literal

import msgspec

from leadline.records.trace import Source
from leadline.records.wiring import OpSite


class Weight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""A weight layer as the pass uses it: its matrix, and its effect on the second moment of the signal."""

    block: int
    name: str
    fan_in: int
    fan_out: int
    variance: float
    r"""$\sigma_w^2 = n\,E[W^2]$, $n$ the fan-in: the factor by which independent weights scale a second moment."""
    constant: bool = False
    """All entries are equal."""
    trainable: bool = True
    residual: bool = False
    """It lies on the branch of a residual block."""
    last: bool = False
    """It is the last weight of its branch."""
    activation: str = ""
    """The activation that reads its output; "" if something else does."""
    norm: str = ""
    """The norm that reads its output; "" if something else does. A norm written op by op is named after its last op."""
    role: Literal["", "query", "key", "value"] = ""
    """The role of its output in an attention."""
    bias: str = ""
    """Name of its bias."""
    grad_ms: float | None = None
    """Mean square of its gradient; None if it has no gradient."""
    grad_unseen: bool = False
    """Its gradient arrived but could not be read, because an optimizer inside the backward pass had consumed it."""


class Clones(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of different layers that start with exactly the same numbers."""

    names: tuple[str, ...]
    """Names in order, at most eight, including the first and the last."""
    count: int
    layers: tuple[int, int] | None


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    r"""How one attention spreads over its keys; $p$ are the weights of a query."""

    block: int
    module: str
    keys: int
    purity: float
    r"""Mean of $\sum p^2$."""
    uniform: float
    """What the purity would be if every query gave equal weight to all keys that it may see."""
    logit_var: float | None
    """Variance of a query's logits over the keys; None if not measured."""
    logit_max: float | None = None
    """Largest magnitude of a logit; None if not measured."""
    head_logits: tuple[float, ...] = ()
    """Largest magnitude of a logit in each head; empty if the heads are not known."""
    head_purities: tuple[float, ...] = ()
    """The purity of each head."""


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    r"""A recurrent op that runs over a sequence in one call: $h_t = \phi(W h_{t-1} + \dots)$."""

    block: int
    module: str
    op: str
    steps: int
    variance: float
    r"""$\sigma_w^2 = n\,E[W^2]$ of the state-to-state matrix."""
    slope_ms: float | None
    r"""$E[\phi'^2]$ at the measured states; None for gated cells."""


class InputSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A floating-point input, as it reaches the first op that does more than shift and scale it."""

    name: str
    ms: float
    elements: int
    normalized: bool
    """A norm comes before, or directly after, the first weight that reads it."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the model: what the loss reads, and its value."""

    loss: str
    """Name of the op: "cross_entropy", "mse_loss"; "" if the loss consists of several ops."""
    value: float
    """The result of that op, or its mean if it has several."""
    classes: int | None
    """The number of logits of a cross entropy; None for other losses."""
    logit_ms: float | None
    logit_max: float | None
    behind: str
    """An activation or softmax between the last weight and the loss; "" if there is none."""
    squashed_by: str = ""
    """For a loss written by hand: the op that makes probabilities of what `behind` has squashed before."""
    place: Source | None = None
    """The line of the user's code that calls it."""
    summed_targets: float = 1.0
    """The number of targets that `value` is a sum over; 1 for a mean."""

    @property
    def mean(self) -> float:
        """The loss of one target."""
        return self.value / self.summed_targets


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """The dtype of the pass, and how close gradients and activations came to its limits."""

    dtype: str
    parameters: str
    """The dtype of most trainable weights."""
    tiny: float
    """Smallest positive number of the dtype, including subnormal ones."""
    huge: float
    """Largest number of the dtype."""
    largest: float
    """Largest magnitude of any activation or gradient."""
    largest_at: str
    lost: float
    """Largest share, over all values that the loss depends on, of gradient entries that are rounded to zero.

    It is computed for Gaussian entries of the measured size: the share below half of `tiny`.
    """
    lost_at: str
    """The module whose output has this share."""


class LowRankTerm(msgspec.Struct, frozen=True, kw_only=True):
    r"""A product of two thin matrices that the pass adds to a frozen one, as in LoRA: $(W + s\,B A)\,x$."""

    site: OpSite
    """The sum."""
    base: str
    """The frozen $W$."""
    down: str
    """$A$, which reads the input."""
    up: str
    """$B$, which is trained."""
    rank: int
    """Rows of $A$ and columns of $B$."""
    scale: float
    """$s$: alpha / rank in LoRA, alpha / sqrt(rank) in rsLoRA."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about one model."""

    weights: tuple[Weight, ...] = ()
    clones: tuple[Clones, ...] = ()
    attentions: tuple[Attention, ...] = ()
    recurrences: tuple[Recurrence, ...] = ()
    sources: tuple[InputSignal, ...] = ()
    head: Head | None = None
    precision: Precision | None = None
    dropout: float = 0.0
    """The largest rate of any dropout of the pass."""
    low_rank: tuple[LowRankTerm, ...] = ()
