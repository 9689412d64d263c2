"""I301: weights that do not make good what the activation loses."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._causes import blamed_on_weights, is_default
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
    ),
    sick=plain_layers(blocks=40, gain=1.0, slope=0.5),
    healthy=plain_layers(blocks=40, gain=2.0, slope=0.5),
)
def gain_off(profile: Profile) -> Iterator[Symptom]:
    r"""The weights' gain does not fit the activation behind them.

    ## What it measures
    Where signal or gradient grows or decays geometrically over a plain stack: the factor a layer of the weights,
    $\sigma_w^2 = n\,E[W^2]$ ($n$ the fan-in), and that of the activation. Their product should be 1. Fires if the
    activation's loss could be made good by weights of ordinary size, so that the weights are to blame.

    ## Why it hurts
    $L$ layers multiply by $(\sigma_w^2\, E[\phi'^2])^L$. ReLU needs $\sigma_w^2 = 2$, GELU about 2, tanh slightly more
    than 1; see `leadline.nn.init.critical` for any other.

    ## When it is wrong
    It names a cause; whether the change is too large is judged by the rules about growth and decay.

    ## References
    He et al., "Delving deep into rectifiers", 2015, section 2.2; Schoenholz et al., "Deep information propagation",
    2017, section 3.
    """
    for law, layer in blamed_on_weights(profile):
        if not is_default(profile, law):
            yield Symptom(
                severity="info" if law.severity == "info" else "warning",
                where=law.where,
                message=f"the weights' gain is {layer.weight:.3g} a layer, and {layer.activation} needs "
                f"{layer.needed:.3g}: together they multiply by {layer.weight * layer.slope:.3g} in each of "
                f"{law.blocks} layers",
                evidence={"gain": layer.weight, "needed": layer.needed, "e_folds": law.change},
                layers=law.layers,
            )
