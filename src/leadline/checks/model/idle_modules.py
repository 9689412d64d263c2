"""D916: layers of a stack that never run, or one that runs in their place."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import learner, ledger_with
from leadline.records import IdleModule, Profile, ReusedModule


def _idle(index: int, siblings_ran: int) -> IdleModule:
    return IdleModule(path=f"layers.{index}", type="Block", parameters=4096, siblings_ran=siblings_ran)


@check(
    code="D916",
    name="idle-modules",
    since="0.1.0",
    sick=ledger_with(
        learner(),
        idle=(_idle(1, 1), _idle(2, 1)),
        reused=(
            ReusedModule(path="layers.0", type="Block", calls=3, idle_siblings=("layers.1", "layers.2")),
        ),
    ),
    healthy=ledger_with(learner()),
)
def idle_modules(profile: Profile) -> Iterator[Symptom]:
    r"""Registered modules never run, although others of their kind do.

    ## What it measures
    How often each module with trainable parameters is called in a pass. A module that is called several times while
    others of its type, in the same container, are never called is named first.

    ## Why it hurts
    The network is smaller than its author thinks. A loop uses `self.layers[0]` instead of `self.layers[i]`, stops too
    early, or calls one shared object by mistake.

    ## When it is wrong
    Experts that got no token of this batch, layers that are dropped at random, and heads of other tasks do not run
    either; without a module that runs in their place this is a note.

    ## References
    PyTorch documentation, `DistributedDataParallel` (`find_unused_parameters`).
    """
    ledger = profile.ledger
    if ledger is None:
        return
    for module in ledger.reused:
        yield Symptom(
            severity="warning",
            where=module.path,
            message=f"{module.path} runs {module.calls} times while {first_names(module.idle_siblings)} of the "
            "same type never run",
            action="Call each layer once (`for layer in self.layers`), or delete the ones that are not used.",
            evidence={"calls": float(module.calls), "idle": float(len(module.idle_siblings))},
        )
    replaced = {path for module in ledger.reused for path in module.idle_siblings}
    others = [each for each in ledger.idle if each.path not in replaced]
    if others:
        yield Symptom(
            severity="info",
            where=others[0].path,
            message=f"{len(others)} modules with {sum(each.parameters for each in others)} parameters never run: "
            f"{first_names([each.path for each in others])}",
            action="Call them in `forward`, or delete them.",
            evidence={"modules": float(len(others))},
        )
