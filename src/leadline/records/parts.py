"""Parts of a network that are recognized by their pattern: attention, routers, angles, frozen and unwritten weights."""

from __future__ import annotations

import msgspec

from leadline.records.wiring import GradientState, OpSite


class AttentionProduct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""The product of queries and keys behind a softmax, $q \cdot k$ over `width` features."""

    site: OpSite
    op: int | None = None
    """The product in `Trace.ops`."""
    width: int
    """Features of one head, over which the product sums."""
    keys: int
    variance: float
    """Variance of the product, before masks and biases."""
    query_ms: float
    key_ms: float
    has_factor: bool = False
    """A factor, a temperature or a bounded function acts on queries, keys or logits."""
    is_normalized: bool = False
    """Queries or keys come from a norm."""
    factor: float = 1.0
    """The product of the numbers by which queries, keys and logits are multiplied."""

    @property
    def independence(self) -> float:
        """The variance over that of independent queries and keys: about 1 at initialization."""
        expected = self.width * self.query_ms * self.key_ms
        return self.variance / expected if expected > 0 else 0.0


class Router(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice of experts: the largest of the scores that a weight layer gives to each token."""

    site: OpSite
    weight: str
    """The parameter that makes the scores."""
    experts: int
    chosen: int
    """Experts per token."""
    load: tuple[int, ...]
    """How many tokens of the batch chose each expert."""
    gradient: GradientState
    """The gradient of its weight."""
    trainable: bool = True
    is_balanced: bool = False
    """The loss contains something that depends on the load or the mean score of the experts."""
    is_zero: bool = False
    """All scores are zero before training, so the first experts are chosen by their place."""
    is_corrected: bool = False
    """A bias per expert is added before the choice, as in balancing without an auxiliary loss."""
    expert_gradients: tuple[float, ...] = ()
    """Norm of the gradient of each expert's matrices; empty if it is not known which parameters are theirs."""

    @property
    def tokens(self) -> int:
        return sum(self.load) // max(self.chosen, 1)

    @property
    def used(self) -> int:
        """Experts that got a token."""
        return sum(each > 0 for each in self.load)

    @property
    def top_share(self) -> float:
        """Share of all choices that fell on the busiest experts, as many as each token chooses; 1 if it collapsed."""
        busiest = sorted(self.load, reverse=True)[: self.chosen]
        return sum(busiest) / max(sum(self.load), 1)


class MovedAxis(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A view whose result has an axis of its input in another place."""

    site: OpSite
    before: tuple[int, ...]
    after: tuple[int, ...]
    axis: int
    """The length of that axis."""
    is_compared: bool = False
    """A loss op reads the result, at most in another layout."""


class MergedLayers(msgspec.Struct, frozen=True, kw_only=True):
    """Two layers in a row without a nonlinear function between them."""

    site: OpSite
    """The call of the second one."""
    first: str
    second: str
    units: int
    """Units between the two."""


class StreamMixing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    r"""Parallel streams that a small matrix mixes in each layer, $X \leftarrow A X + b f(X)$ (hyper-connections)."""

    site: OpSite
    """The first of the products."""
    last: str
    """The module of the last one."""
    streams: int
    layers: int
    """Products in a row."""
    forward_gain: float
    """Largest sum of magnitudes in a row of the product of all matrices: 1 if they are stochastic."""
    backward_gain: float
    """The largest sum of magnitudes in a column of the product: the gain of the gradient over all layers."""
    row_error: float
    """Largest distance from 1 of the sum of a row of one matrix, over all layers and tokens."""
    column_error: float
    is_normalized: bool = False
    """Rows and columns of the matrices are normalized, so that both should sum to 1."""
    spread: float
    """Share of the streams' second moment that they do not have in common, the largest of all layers."""
    gradient_spread: float | None = None
    """Share of the second moment of their gradients that the streams do not have in common; None: not measured."""
    writes: int = 0
    """Layers after the first in which something other than zero is added to the mixed streams."""


class RoundedAngle(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of a sine or cosine in a dtype that cannot hold it."""

    site: OpSite
    dtype: str
    largest: float
    """Largest argument, in radians."""
    spacing: float
    """Distance of neighboring numbers of the dtype at the largest argument, in radians."""


class FrozenWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Frozen matrices whose entries are as independent as an initializer leaves them."""

    names: tuple[str, ...]
    count: int
    """Their parameters."""
    share: float
    """Their share of all parameters of the model."""
    feeds_learning: bool
    """Something that learns reads what they compute, and nothing that learns is between or beside them."""


class RepeatedModule(msgspec.Struct, frozen=True, kw_only=True):
    """One module object that fills several places of a container."""

    paths: tuple[str, ...]
    type: str
    parameters: int
    is_chained: bool
    """The result of one call is the input of the next."""
    is_listed: bool = True
    """Its names are entries of a container, not attributes of a module."""


class UnwrittenTensor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A parameter or buffer with elements that nothing wrote after their memory was allocated."""

    name: str
    unwritten: int | None = None
    """Such elements; None if they were not counted."""
    count: int
    is_read: bool = True
    """The pass reads it."""


class NetworkParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All such parts of one network."""

    attentions: tuple[AttentionProduct, ...] = ()
    routers: tuple[Router, ...] = ()
    mixings: tuple[StreamMixing, ...] = ()
    angles: tuple[RoundedAngle, ...] = ()
    repeated: tuple[RepeatedModule, ...] = ()
    moved_axes: tuple[MovedAxis, ...] = ()
    merged: tuple[MergedLayers, ...] = ()
    frozen: FrozenWeights | None = None
    unwritten: tuple[UnwrittenTensor, ...] | None = None
    """None: not known, because the model could not be built a second time."""
    trained: float | None = None
    """Share of the larger matrices that no initializer draws: training left its marks; None if there are too few."""
    trained_names: tuple[str, ...] = ()
    """Those matrices, and embeddings, as far as they were looked at."""
