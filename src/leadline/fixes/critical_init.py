"""critical-init: weights drawn at the edge between vanishing and exploding signals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from leadline.fixes._engine.fix import Patient, Plan, fix
from leadline.fixes._engine.init_edits import fresh_edits, has_critical_point
from leadline.fixes._engine.lookup import is_fresh, weights


@fix(
    name="critical-init",
    answers=(
        "B201",
        "B202",
        "B204",
        "B206",
        "F101",
        "F102",
        "F103",
        "F104",
        "F106",
        "I301",
        "I302",
        "I303",
        "I304",
        "I308",
        "N70",
        "R401",
        "U50",
        "U52",
    ),
    reach="init",
    since="0.2",
)
def critical_init(patient: Patient) -> Iterator[Plan]:
    r"""Draws every weight layer anew, at the variance that keeps signals and gradients their size.

    ## What it does
    Each weight matrix or convolution is drawn orthogonal with $n\,E[W^2] = \sigma_w^2$, $n$ its fan-in and
    $\sigma_w^2$ the critical value of the activation that it reads: 2 for ReLU, 1 for tanh, 1.98 for GELU; 1 if it
    reads the input, a norm or the residual stream. Biases become zero, but for activations whose critical point needs
    some (GELU, SiLU). The last matrix of a bare residual branch is drawn $1/\sqrt N$ as large. Every layer has a seed
    of its own, so that the recipe replays bit for bit. Frozen weights, embeddings, recurrent matrices and a head of
    usual size stay; tied weights stay tied, parametrised ones (weight norm, orthogonal) are written through their
    parametrisation.

    ## Why it works
    At $\chi = \sigma_w^2 E[\phi'^2] = 1$ squared gradients neither shrink nor grow with depth; away from it they do so
    geometrically, and nothing deeper than a few $1/|\ln \chi|$ layers learns. Orthogonal matrices also take the scatter
    out of a single draw, which for Gaussian ones is $e^{\pm\sqrt{5L/n}}$ over $L$ layers of width $n$.

    ## What it costs
    Whatever the weights knew. It is proposed only before the first step of training.

    ## When it does not help
    Sigmoids: their slope is so small that gradients survive only where most units are saturated, so nothing is
    proposed (see swap-activation). If the sickness is not in the weights: rates, data, norms in the wrong place. A
    plain stack of hundreds of layers trains slowly even at its critical point; it wants skips.

    ## References
    Schoenholz et al., "Deep information propagation", 2017, section 3; He et al., arXiv 1502.01852, equation 10; Saxe
    et al., arXiv 1312.6120 (orthogonal); Zhang et al., "Fixup initialization", 2019 (branches).
    """
    if not is_fresh(patient):
        return
    read = Counter(each.activation for each in weights(patient) if each.activation)
    kind = read.most_common(1)[0][0] if read else "linear"
    edits = fresh_edits(patient) if has_critical_point(kind) else ()
    if edits:
        layers = sum(edit.options.get("kind") == "orthogonal" for edit in edits)
        yield Plan(
            title=f"{layers} weight layers drawn at the critical point of {kind}", edits=edits, promise=0.8
        )
