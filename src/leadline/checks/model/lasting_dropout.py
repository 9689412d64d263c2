"""D934: dropout that eval mode does not turn off."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._wiring_examples import SITE, dropping
from leadline.records import Profile
from leadline.text import plural


@check(
    code="D934",
    name="lasting-dropout",
    since="0.2.0",
    sick=dropping(SITE),
    healthy=dropping(),
)
def lasting_dropout(profile: Profile) -> Iterator[Symptom]:
    r"""Dropout stays on in eval mode, so that evaluations and predictions are random.

    ## What it measures
    Calls of `F.dropout` and its kind with `training=True`, and of `F.scaled_dot_product_attention` with a `dropout_p`
    above zero, in passes for which the model was put in eval mode.

    ## Why it hurts
    `F.dropout(x, p)` drops by default, in any mode of the model. Training looks as usual. Validation loses
    accuracy and scatters, the best checkpoint is chosen by chance, and the deployed model gives another answer to the
    same question each time.

    ## When it is wrong
    Monte Carlo dropout keeps it on purpose, to measure uncertainty.

    ## References
    PyTorch documentation, `torch.nn.functional.dropout` and `scaled_dot_product_attention` (their defaults); Gal and
    Ghahramani, "Dropout as a Bayesian approximation", 2016.
    """
    sites = profile.dependence.dropouts if profile.dependence else ()
    for site in sites[:1]:
        is_attention = site.op == "scaled_dot_product_attention"
        option = "dropout_p=p if self.training else 0.0" if is_attention else "training=self.training"
        yield Symptom(
            severity="warning",
            where=site.module or "the model",
            message=f"elements are dropped in eval mode too, in {plural(len(sites), 'place')}{in_op(site)}",
            action=f"Pass `{option}`, or use `nn.Dropout`.",
            source=site.source,
            evidence={"places": float(len(sites))},
        )
