"""I303: layers that start as copies of one another."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import Clones, Facts, Profile

DEEP = 24  # copies; calibrated by benchmarks/verdicts: 13 learn as well as independent ones


def _example(count: int) -> Profile:
    return stack_with(Facts(clones=(Clones(names=("layers.0.w", "layers.1.w"), count=count, layers=(0, 7)),)))


@check(
    code="I303",
    name="cloned-layers",
    since="0.1.0",
    explains=("F101", "F106", "R402"),
    sick=_example(24),
    healthy=stack_with(Facts()),
)
def cloned_layers(profile: Profile) -> Iterator[Symptom]:
    r"""Different layers start with the very same weights.

    ## What it measures
    Matrices of different parameters whose shape, mean and mean square agree to the last bit (no two random draws do),
    and that are neither constant nor tied. A note from two on; a warning from `DEEP` = 24 copies on.

    ## Why it hurts
    Depth theory rests on independent layers. Copies add up coherently: the second moment of a pre-norm stream grows as
    $L^2$ instead of $L$, so the last blocks see a stream that is $L$ times too large and change it little. All layers
    also get nearly the same gradient at first.

    ## When it is wrong
    In a stack of a few layers the cost is small: `nn.TransformerEncoder` copies the layer it is given, and people train
    six of those. Initialise each layer anew all the same; it is free. Weights that are *shared* (one parameter used at
    every depth) are another matter and do not fire.

    ## References
    PyTorch issues 72253 and 86274 (`nn.TransformerEncoder` deep-copies one layer).
    """
    found = profile.facts.clones if profile.facts else ()
    if not found:
        return
    most = max(found, key=lambda each: each.count)
    spans = [each.layers for each in found if each.layers is not None]
    yield Symptom(
        severity="warning" if most.count >= DEEP else "info",
        where=f"{most.names[0]} … {most.names[-1]}",
        message=f"{most.count} layers start with the same weights ({len(found)} matrices in each): "
        "draw each of them anew",
        evidence={"copies": float(most.count), "matrices": float(len(found))},
        layers=(min(low for low, _ in spans), max(high for _, high in spans)) if spans else None,
    )
