"""D929: parameters that the optimizers hold more than once."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import learner, ledger_with
from leadline.records import Profile
from leadline.text import plural


@check(
    code="D929",
    name="doubled-parameters",
    since="0.1.0",
    sick=ledger_with(learner(0), learner(1, in_optimizer=2), optimizers=("AdamW",)),
    healthy=ledger_with(learner(0), learner(1), optimizers=("AdamW",)),
)
def doubled_parameters(profile: Profile) -> Iterator[Symptom]:
    r"""Parameters are in the optimizers more than once, so one step moves them more than once.

    ## What it measures
    How often each trainable tensor is among the parameters of the optimizers that step together.

    ## Why it hurts
    With $n$ copies the tensor moves about $n$ times as far per step as its learning rate says. Weight decay and
    momentum are applied $n$ times, too. In two optimizers, each keeps a state that knows nothing of the other's steps.

    ## When it is wrong
    Two optimizers that step in turn, after losses of their own, may share parameters: the encoder of a shared network,
    or the generator of an adversarial pair. Check each loss with the optimizer that steps after it.

    ## References
    PyTorch documentation, `torch.optim.Optimizer.add_param_group` (it refuses a parameter that is in another group of
    the same optimizer).
    """
    rows = profile.ledger.rows if profile.ledger is not None else ()
    twice = [row for row in rows if (row.in_optimizer or 0) > 1]
    if not twice:
        return
    yield Symptom(
        severity="warning",
        where=twice[0].name,
        message=f"the optimizers hold {plural(len(twice), 'tensor')} more than once, so each step moves them more than "
        f"once: {first_names([row.name for row in twice])}",
        action="Keep each parameter in one group of one optimizer: build the groups from disjoint sets, for example by "
        "`id(parameter)`, and pass only the optimizers that step after this loss.",
        evidence={"tensors": float(len(twice))},
    )
