"""I303: layers that start as copies of one another."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with
from leadline.records import Clones, ModelFacts, Profile

# Calibrated by benchmarks/verdicts: 13 copies learn as well as independent layers.
MIN_WARNING_COPIES = 24


def _example(count: int) -> Profile:
    return stack_with(
        ModelFacts(clones=(Clones(names=("layers.0.w", "layers.1.w"), count=count, layers=(0, 7)),))
    )


@check(
    code="I303",
    name="cloned-layers",
    since="0.1.0",
    explains=("F101", "F106", "R402"),
    sick=_example(24),
    healthy=stack_with(ModelFacts()),
)
def cloned_layers(profile: Profile) -> Iterator[Symptom]:
    r"""Different layers start with exactly the same weights.

    ## What it measures
    Matrices of different parameters whose shape, mean and mean square agree to the last bit, which never happens to two
    random draws, that get a gradient, and that are neither constant nor tied. It is a note for two copies or more, and
    a warning from `MIN_WARNING_COPIES` = 24 on.

    ## Why it hurts
    Depth theory assumes independent layers. Copies add up coherently: the second moment of a pre-norm stream grows as
    $L^2$ instead of $L$, so the last blocks get a stream that is $L$ times too large and change it little. All layers
    also get nearly the same gradient at first.

    ## When it is wrong
    In a stack of a few layers the cost is small: `nn.TransformerEncoder` copies the layer it is given, and six of them
    train well. Initializing each layer separately is free anyway. Weights that are *shared* (one parameter used at
    every depth) are a different case and do not fire. Neither does a second network that copies the first one and gets
    no gradient, such as the target of BYOL.

    ## References
    PyTorch issues 72253 and 86274 (`nn.TransformerEncoder` deep-copies one layer).
    """
    clones = profile.facts.clones if profile.facts else ()
    if not clones:
        return
    largest = max(clones, key=lambda each: each.count)
    matrices = f"{len(clones)} {'matrix' if len(clones) == 1 else 'matrices'}"
    spans = [each.layers for each in clones if each.layers is not None]
    yield Symptom(
        severity="warning" if largest.count >= MIN_WARNING_COPIES else "info",
        where=f"{largest.names[0]} … {largest.names[-1]}",
        message=f"{largest.count} layers start with the same weights, in {matrices} each",
        action="Initialize each layer separately, for example with "
        "`for layer in layers: nn.init.xavier_uniform_(layer.weight)`, instead of copying one with `copy.deepcopy`.",
        evidence={"copies": float(largest.count), "matrices": float(len(clones))},
        layers=(min(low for low, _ in spans), max(high for _, high in spans)) if spans else None,
    )
