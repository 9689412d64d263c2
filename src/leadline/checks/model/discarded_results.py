"""D917: a layer computes something that nothing uses."""

from __future__ import annotations

from collections.abc import Iterator

from leadline.checks._check import Symptom, check, in_op
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import SITE, learner, ledger_with
from leadline.records import DiscardedResult, Profile


@check(
    code="D917",
    name="discarded-results",
    since="0.1.0",
    sick=ledger_with(
        learner(),
        discarded=(DiscardedResult(module="layers.0", type="Block", site=SITE, replaced_by="layers.1"),),
    ),
    healthy=ledger_with(learner()),
)
def discarded_results(profile: Profile) -> Iterator[Symptom]:
    r"""Layers with trainable parameters run, but their results never reach the loss.

    ## What it measures
    Modules whose ops are all outside the part of the graph that the loss depends on. Where a module of the same type
    was given the same input and is used, the result was overwritten. Where the caller goes on with the input of the
    module, which has the shape of its result, the result was not assigned. Where the caller returns nothing that was
    computed from the result, nobody can ever use it.

    ## Why it hurts
    `for layer in self.layers: y = layer(x)` gives every layer the first input and keeps the last result: all layers but
    the last are computed in vain, and the network has one layer. A forgotten assignment does the same.

    ## When it is wrong
    Heads of other tasks and pooled outputs that this loss does not use are computed on purpose: as long as the code
    that calls them returns their results, and nothing else takes their place, this is a note. It is a warning if the
    batch holds a target of the same shape that the loss does not read either: a part of the loss is missing.

    ## References
    PyTorch documentation, `DistributedDataParallel` (`find_unused_parameters`).
    """
    results = profile.ledger.discarded if profile.ledger else ()
    replaced = [each for each in results if each.replaced_by]
    bypassed = [each for each in results if each.bypassed and not each.replaced_by]
    dropped = [each for each in results if not (each.kept or each.bypassed or each.replaced_by)]
    others = [each for each in results if each.kept and not each.bypassed and not each.replaced_by]
    if replaced:
        first = replaced[0]
        yield Symptom(
            severity="error",
            where=first.module,
            message=f"the results of {first_names([each.module for each in replaced])} are thrown away: "
            f"{first.replaced_by} reads the same input instead of them{in_op(first.site)}",
            action="Pass each layer the result of the one before it: `x = layer(x)`.",
            source=first.site.source,
            evidence={"modules": float(len(replaced))},
        )
    if bypassed:
        first = bypassed[0]
        yield Symptom(
            severity="warning",
            where=first.module,
            message=f"the results of {first_names([each.module for each in bypassed])} are thrown away: the code goes "
            f"on with their input{in_op(first.site)}",
            action="Assign the result: `x = layer(x)`.",
            source=first.site.source,
            evidence={"modules": float(len(bypassed))},
        )
    if dropped:
        first = dropped[0]
        yield Symptom(
            severity="warning",
            where=first.module,
            message=f"the results of {first_names([each.module for each in dropped])} are thrown away: nothing that "
            f"their caller returns depends on them{in_op(first.site)}",
            action="Use the result, or remove the layer.",
            source=first.site.source,
            evidence={"modules": float(len(dropped))},
        )
    if others:
        unread = profile.question.unread_answers if profile.question else ()
        missing = f", and it reads no target of shape {unread[0]}, which the batch has" if unread else ""
        yield Symptom(
            severity="warning" if unread else "info",
            where=others[0].module,
            message=f"the loss does not use the results of {first_names([each.module for each in others])}"
            f"{in_op(others[0].site)}{missing}",
            action="Add the missing part to the loss." if unread else "Use them, or do not compute them.",
            source=others[0].site.source,
            evidence={"modules": float(len(others))},
        )
