"""Facts about parts of a model that rules judge beside the depth axis: weights, attention, inputs, the loss's head."""

from __future__ import annotations

from typing import Literal

import msgspec


class Weight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""A weight layer as the pass used it: its matrix, and what that does to a signal's second moment."""

    block: int
    name: str
    fan_in: int
    fan_out: int
    variance: float
    r"""$\sigma_w^2 = n\,E[W^2]$, $n$ the fan-in: the factor by which independent weights scale a second moment."""
    constant: bool = False
    """All entries are the same number."""
    trainable: bool = True
    residual: bool = False
    """It lies on the branch of a residual block."""
    last: bool = False
    """It is the last weight of its branch."""
    activation: str = ""
    """The activation that reads its output; "" if something else does."""
    norm: str = ""
    """The norm that reads its output; "" if something else does. A norm that is spelled out has its last op's name."""
    role: Literal["", "query", "key", "value"] = ""
    """What its output alone is in an attention."""
    bias: str = ""
    """Name of its bias."""
    grad_ms: float | None = None
    """Mean square of its gradient; None if none arrived."""
    grad_unseen: bool = False
    """Its gradient arrived and could not be read: an optimiser inside of the backward pass had used it up."""


class Clones(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of different layers that start with the very same numbers."""

    names: tuple[str, ...]
    """The first and the last of them, and those between, at most eight."""
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
    """What the purity would be if every query gave all keys it may see the same."""
    logit_var: float | None
    """Variance of the logits of a query over the keys; None if they were not seen."""
    logit_max: float | None = None
    """Largest magnitude of a logit; None if it was not seen."""


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    r"""A recurrent op that runs over a sequence in one call: $h_t = \phi(W h_{t-1} + \dots)$."""

    block: int
    module: str
    op: str
    steps: int
    variance: float
    r"""$\sigma_w^2 = n\,E[W^2]$ of the state-to-state matrix."""
    slope_ms: float | None
    r"""$E[\phi'^2]$ at the states that were measured; None for gated cells."""


class InputSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A floating-point batch input, as the first op that does more than shift and scale it finds it."""

    name: str
    ms: float
    normalised: bool
    """A norm comes before, or right behind, the first weight that reads it."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What the loss reads, and what it makes of it."""

    loss: str
    """Name of the op: "cross_entropy", "mse_loss"; "" if the loss is spelled out."""
    value: float
    classes: int | None
    """Of a cross entropy: the number of logits."""
    logit_ms: float | None
    logit_max: float | None
    behind: str
    """An activation or softmax between the last weight and the loss; "" if there is none."""


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """The dtype that the pass ran in, and how near to its limits gradients and activations came."""

    dtype: str
    parameters: str
    """The dtype that most of the trainable weights are kept in."""
    tiny: float
    """Smallest number that is not zero, subnormal ones included."""
    huge: float
    """Largest number."""
    largest: float
    """Largest magnitude of any activation or gradient."""
    largest_at: str
    lost: float
    """Share of the gradient's entries that are zero in this dtype, or would be: a Gaussian of the measured size below
    half of `tiny`. The worst of all values that the loss depends on."""
    lost_at: str
    """The module whose output loses most."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of these of one model."""

    weights: tuple[Weight, ...] = ()
    clones: tuple[Clones, ...] = ()
    attentions: tuple[Attention, ...] = ()
    recurrences: tuple[Recurrence, ...] = ()
    sources: tuple[InputSignal, ...] = ()
    head: Head | None = None
    precision: Precision | None = None
