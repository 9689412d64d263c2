"""Second moments at initialization in closed form, to compare real stacks with."""

from dataclasses import dataclass, replace

from leadline.nn import Layout, Place, Scheme

RELU_SQUARE = 0.5
EXPANSION = 4
SPREAD = 5.0  # Var[log q] a matrix pair is at most 5/n for ReLU (theory notes, S0-F), 4/n for two linear maps


@dataclass(frozen=True)
class Moment:
    """A second moment and the relative variance of it over draws of the weights."""

    q: float
    spread: float


def branch_gain(scheme: Scheme, place: Place, kind: str) -> float:
    """Second moment out over second moment in, of a branch of ReLU and linear maps (attention: one token).

    An inner norm resets what the first matrix did, so that only the last one counts.
    """
    first, last = ("value", "output") if kind == "attention" else ("fc1", "fc2")
    if last in scheme.zero_roles:
        return 0.0
    counted = [last] if "inner" in scheme.norms else [first, last]
    gain = scheme.gain(place) ** (2 * sum(role in scheme.gain_roles for role in counted))
    if kind == "attention" or scheme.base == "unit":
        return gain
    narrow, wide = 2 / (1 + EXPANSION), 2 * EXPANSION / (1 + EXPANSION)  # n Var(W) of Xavier's fc1 and fc2
    return gain * wide if "inner" in scheme.norms else gain * narrow * RELU_SQUARE * wide


def step(moment: Moment, scheme: Scheme, place: Place, kind: str, width: int) -> Moment:
    """One residual sub-layer: q' = alpha^2 q + w^2 v, or 1 after a norm on the stream."""
    norms = scheme.norms_at(place)
    if "post" in norms:
        return Moment(1.0, 0.0)
    fed = scheme.norm_scale(place) ** 2 if "pre" in norms else moment.q
    v = 1.0 if "out" in norms else branch_gain(scheme, place, kind) * fed
    alpha = (scheme.skip(place) if scheme.has_skip else 0.0) ** 2
    added = scheme.branch(place) ** 2 * v
    q = alpha * moment.q + added
    if q == 0:
        return Moment(0.0, 0.0)
    kept = (alpha * moment.q + (0 if "pre" in norms or "out" in norms else added)) / q
    return Moment(q, kept**2 * moment.spread + (added / q) ** 2 * SPREAD / width)


def stream(scheme: Scheme, depth: int, kinds: tuple[str, ...], width: int, start: float = 1.0) -> Moment:
    """The stream after `depth` blocks, before the final norm."""
    moment, layout = Moment(start, 0.0), Layout(sublayers=len(kinds))
    for index in range(depth):
        for position, kind in enumerate(kinds):
            place = Place(index=index, depth=depth, layout=replace(layout, position=position))
            moment = step(moment, scheme, place, kind, width)
    return moment
