"""I302: PyTorch's default initialization in a deep plain network."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._causes import blamed_on_weights, init_action, is_default_init
from leadline.checks._check import Symptom, check
from leadline.checks._examples import plain_layers
from leadline.records import Profile


@check(
    code="I302",
    name="default-init-at-depth",
    since="0.1.0",
    refuted_by="learning",
    explains=("B201", "B202", "F101", "F102", "F106", "N702", "U505", "U506", "U525"),
    sick=plain_layers(blocks=20, gain=1 / 3, slope=0.5),
    healthy=plain_layers(blocks=3, gain=1 / 3, slope=0.5),
)
def default_init_at_depth(profile: Profile) -> Iterator[Symptom]:
    r"""A deep plain network has PyTorch's default initialization, which suits shallow ones.

    ## What it measures
    The same as gain-off, if the median of $\sigma_w^2 = n\,E[W^2]$ is within `MAX_GAIN_SCATTER` = 10 % of $1/3$, the
    default of `nn.Linear` and `nn.Conv2d`.

    ## Why it hurts
    With ReLU each layer passes $\sigma_w^2 / 2 = 1/6$ of the squared gradient. After ten layers $10^{-8}$ of it is
    left. In the forward pass the default biases hide this: activations do not vanish, but no longer depend on the
    input.

    ## When it is wrong
    The check names a cause. The checks of growth and decay judge whether the change is too large.

    ## References
    PyTorch documentation, `torch.nn.Linear` (uniform in $\pm 1/\sqrt n$, so a variance of $1/(3n)$); He et al.,
    "Delving deep into rectifiers", 2015, section 2.2.
    """
    for law, layer in blamed_on_weights(profile):
        if is_default_init(profile, law):
            yield Symptom(
                severity="info" if law.severity == "info" else "warning",
                where=law.where,
                message=f"weight gain is {layer.weight:.2g} per layer but {layer.activation_name} needs "
                f"{layer.needed:.2g}: PyTorch's default initialization leaves {layer.total:.2g} of the {law.signal}'s "
                f"power per layer in {law.blocks} plain layers",
                action=init_action(layer),
                evidence={"gain": layer.weight, "needed": layer.needed, "e_folds": law.change},
                layers=law.layers,
            )
