"""I301: the gain of the weights does not fit the activation."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._causes import blamed_on_weights, init_action, is_default_init
from leadline.checks._check import Symptom, check
from leadline.checks._examples import plain_layers
from leadline.records import Profile


@check(
    code="I301",
    name="gain-off",
    since="0.1.0",
    refuted_by="learning",
    explains=(
        "B201",
        "B202",
        "F101",
        "F102",
        "F106",
        "N702",
        "I308",
        "U506",
        "U501",
        "U502",
        "U509",
        "U503",
        "U504",
        "U505",
        "U521",
        "U523",
        "U525",
    ),
    sick=plain_layers(blocks=40, gain=1.0, slope=0.5),
    healthy=plain_layers(blocks=40, gain=2.0, slope=0.5),
)
def gain_off(profile: Profile) -> Iterator[Symptom]:
    r"""The gain of the weights does not fit the activation after them.

    ## What it measures
    In a plain stack in which signal or gradient grows or decays geometrically: the factor per layer of the weights,
    $\sigma_w^2 = n\,E[W^2]$ ($n$ is the fan-in), and that of the activation. Their product should be 1. Fires if
    weights with a gain of at most `MAX_REPAIRABLE_GAIN` = 4 could compensate for the activation.

    ## Why it hurts
    $L$ layers multiply by $(\sigma_w^2\, E[\phi'^2])^L$. ReLU needs $\sigma_w^2 = 2$, GELU about 2, tanh slightly more
    than 1; `leadline.critical_gain` gives it for other activations.

    ## When it is wrong
    The check names a cause. The checks of growth and decay judge whether the change is too large.

    ## References
    He et al., "Delving deep into rectifiers", 2015, section 2.2; Schoenholz et al., "Deep information propagation",
    2017, section 3.
    """
    for law, layer in blamed_on_weights(profile):
        if not is_default_init(profile, law):
            yield Symptom(
                severity="info" if law.severity == "info" else "warning",
                where=law.where,
                message=f"weight gain is {layer.weight:.3g} per layer but {layer.activation_name} needs "
                f"{layer.needed:.2g}: the {law.signal}'s power is multiplied by {layer.total:.3g} in each of "
                f"{law.blocks} layers",
                action=init_action(layer),
                evidence={"gain": layer.weight, "needed": layer.needed, "e_folds": law.change},
                layers=law.layers,
            )
