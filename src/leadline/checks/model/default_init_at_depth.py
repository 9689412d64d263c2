"""I302: PyTorch's default initialisation in a deep plain network."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._causes import blamed_on_weights, is_default
from leadline.checks._check import Symptom, check
from leadline.checks._examples import plain_layers
from leadline.records import Profile


@check(
    code="I302",
    name="default-init-at-depth",
    since="0.1.0",
    refuted_by="learning",
    explains=("B201", "B202", "F101", "F102", "F106", "N702", "U505", "U506"),
    sick=plain_layers(blocks=20, gain=1 / 3, slope=0.5),
    healthy=plain_layers(blocks=3, gain=1 / 3, slope=0.5),
)
def default_init_at_depth(profile: Profile) -> Iterator[Symptom]:
    r"""A deep plain network keeps PyTorch's default initialisation, made for shallow ones.

    ## What it measures
    As gain-off, where the median of $\sigma_w^2 = n\,E[W^2]$ is within 10 % of $1/3$: what `nn.Linear` and `nn.Conv2d`
    draw unless told otherwise.

    ## Why it hurts
    Behind a ReLU each layer passes $\sigma_w^2 / 2 = 1/6$ of the squared gradient. Ten layers leave $10^{-8}$ of it.
    Forward the default's biases hide this: activations do not die out, they stop depending on the input.

    ## When it is wrong
    It names a cause; whether the change is too large is judged by the rules about growth and decay.

    ## References
    PyTorch documentation, `torch.nn.Linear` (uniform in $\pm 1/\sqrt n$, so a variance of $1/(3n)$); He et al.,
    "Delving deep into rectifiers", 2015, section 2.2.
    """
    for law, layer in blamed_on_weights(profile):
        if is_default(profile, law):
            yield Symptom(
                severity="info" if law.severity == "info" else "warning",
                where=law.where,
                message=f"PyTorch's default initialisation in {law.blocks} plain layers: the weights' gain is "
                f"{layer.weight:.3g}, and {layer.activation} needs {layer.needed:.3g}; "
                f"{layer.weight * layer.slope:.3g} a layer is left",
                evidence={"gain": layer.weight, "needed": layer.needed, "e_folds": law.change},
                layers=law.layers,
            )
