"""D937: two layers in a row that are one linear function."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import SITE, with_parts
from leadline.records import MergedLayers, Profile

PAIR = MergedLayers(site=SITE, first="mlp.0", second="mlp.1", units=128)


@check(
    code="D937",
    name="missing-activation",
    since="0.2.0",
    sick=with_parts(merged=(PAIR,)),
    healthy=with_parts(),
)
def missing_activation(profile: Profile) -> Iterator[Symptom]:
    r"""Two layers follow each other without a nonlinear function, so together they are one.

    ## What it measures
    Linear layers and convolutions whose result goes, after nothing but dropout and changes of layout, to one other
    layer only. The pair counts if the units between are not fewer than inputs or outputs, and if both layers stand in
    one `nn.Sequential` or the units between are more than inputs and outputs.

    ## Why it hurts
    $W_2 W_1 x$ is a linear function of $x$, as $W x$ is. The second layer costs parameters and time and adds nothing: a
    network of such layers cannot learn more than a linear one.

    ## When it is wrong
    Two matrices with few units between them have a smaller rank than one and are used on purpose (adapters, factorized
    embeddings); these pairs are not reported. Deep linear networks are studied for their training.

    ## References
    Goodfellow, Bengio and Courville, "Deep Learning", 2016, section 6.1 (why hidden units need a nonlinear function).
    """
    pairs = profile.parts.merged if profile.parts else ()
    for pair in pairs[:1]:
        layers = list(dict.fromkeys(path for each in pairs for path in (each.first, each.second)))
        yield Symptom(
            severity="warning",
            where=pair.second or "the model",
            message=f"no nonlinear function stands between {pair.first} and {pair.second}, so they are one linear layer"
            + (f"; there are {len(pairs)} such pairs ({first_names(layers)})" if len(pairs) > 1 else ""),
            action="Put an activation between the layers, or use one layer.",
            source=pair.site.source,
            evidence={"pairs": float(len(pairs)), "units": float(pair.units)},
        )
