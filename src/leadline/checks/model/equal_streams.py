"""R414: residual streams that are equal and stay equal."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._streams import between, mixings_of, streams_example
from leadline.records import Profile, StreamMixing

# Derived: float32 rounds each op by 1e-7, so that equal streams differ by about 1e-14 of their power; that was 5e-12
# after 80 mixings, and would be 4e-10 after a thousand. Streams that are read differently have gradients 0.01 apart.
MAX_EQUAL_SPREAD = 1e-9


@check(
    code="R414",
    name="equal-streams",
    since="0.2.0",
    sick=streams_example(spread=1e-14, gradient_spread=1e-14),
    healthy=streams_example(spread=1e-14),
)
def equal_streams(profile: Profile) -> Iterator[Symptom]:
    r"""All residual streams are equal, and so are their gradients: they act as one.

    ## What it measures
    In a network with several streams, the share of their second moment that they do not have in common, after each
    mixing, and the same for the gradient. Fires if both are zero up to rounding (`MAX_EQUAL_SPREAD` = 1e-9) in all
    layers, although layers after the first write to them.

    ## Why it hurts
    Streams usually start as copies of the input. They become different only if layers read or write them differently.
    If all of them are read with the same weight and written with the same weight, every stream has the same gradient,
    and doubly stochastic mixing matrices get none: training keeps the copies equal but for rounding, and the network
    pays for several streams and has one.

    ## When it is wrong
    It is exact in single precision. Noise, such as dropout on the streams, makes them different and is seen.

    ## References
    Zhu et al., "Hyper-connections", 2024: each layer starts by reading one stream in turn.
    """
    equal = [each for each in mixings_of(profile) if _stays_equal(each)]
    if not equal:
        return
    first = equal[0]
    yield Symptom(
        severity="warning",
        where=between(first),
        message=f"{first.streams} streams are equal in all {first.layers} mixings, and so are their gradients: they "
        "act as one stream",
        action="Let each layer read another stream at the start, for example with weights of 0.7 for stream `layer % "
        "streams` and 0.1 for the others.",
        source=first.site.source,
        evidence={"spread": first.spread, "gradient_spread": first.gradient_spread or 0.0},
    )


def _stays_equal(mixing: StreamMixing) -> bool:
    if mixing.gradient_spread is None or not mixing.writes:
        return False
    return mixing.spread <= MAX_EQUAL_SPREAD and mixing.gradient_spread <= MAX_EQUAL_SPREAD
