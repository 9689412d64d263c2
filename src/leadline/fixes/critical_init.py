"""The fix critical-init: weights drawn at the boundary between vanishing and exploding signals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from leadline.fixes._engine.fix import FixContext, Plan, fix
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
    since="0.1.0",
)
def critical_init(context: FixContext) -> Iterator[Plan]:
    r"""Draws every weight layer anew, at the variance that preserves the size of signals and gradients.

    ## What it does
    Each weight matrix or convolution is drawn orthogonal with $n\,E[W^2] = \sigma_w^2$, where $n$ is its fan-in and
    $\sigma_w^2$ the critical value of the activation it reads: 2 for ReLU, 1 for tanh, 1.98 for GELU; 1 if it reads
    the input, a norm or the residual stream. Biases become zero, except where the critical point of the activation
    needs some (GELU, SiLU). The last matrix of a residual branch without norm is drawn $1/\sqrt N$ as large. Every
    layer is seeded by its own name, so that the recipe replays bit for bit. Frozen weights, embeddings, recurrent
    matrices and a head of usual size stay; tied weights stay tied; parametrized weights (weight norm, orthogonal) are
    written through their parametrization.

    ## Why it works
    At $\chi = \sigma_w^2 E[\phi'^2] = 1$ squared gradients neither shrink nor grow with depth. Elsewhere they do so
    geometrically, and nothing deeper than a few $1/|\ln \chi|$ layers learns. Orthogonal matrices also remove the
    scatter of a single draw, which for Gaussian matrices is $e^{\pm\sqrt{5L/n}}$ over $L$ layers of width $n$.

    ## What it costs
    What the weights had learned. It is proposed only before the first step of training.

    ## When it does not help
    With sigmoids: their slope is so small that gradients survive only where most units are saturated, so nothing is
    proposed (see swap-activation). Or if the cause is not in the weights: learning rates, data, norms in the wrong
    place. A plain stack of hundreds of layers trains slowly even at its critical point; it needs skips.

    ## References
    Schoenholz et al., "Deep information propagation", 2017, section 3; He et al., arXiv 1502.01852, equation 10; Saxe
    et al., arXiv 1312.6120 (orthogonal); Zhang et al., "Fixup initialization", 2019 (branches).
    """
    if not is_fresh(context):
        return
    activations = Counter(weight.activation for weight in weights(context) if weight.activation)
    activation = activations.most_common(1)[0][0] if activations else "linear"
    edits = fresh_edits(context) if has_critical_point(activation) else ()
    if edits:
        layers = sum(edit.options.get("kind") == "orthogonal" for edit in edits)
        title = f"{layers} weight layers drawn at the critical point of {activation}"
        yield Plan(title=title, edits=edits, promise=0.8)
