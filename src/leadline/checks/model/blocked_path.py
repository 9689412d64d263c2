"""B203: trainable weights that the loss depends on get no gradient."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from leadline.checks._check import Symptom, check
from leadline.checks._examples import stack_with, weight
from leadline.records import GraphCut, LedgerRow, ModelFacts, Profile, Weight
from leadline.text import layer_label
from leadline.tracer.cuts import SPELLINGS, remedy

# Heuristic: share of the trainable weight layers; beyond half, most of the network is a fixed function.
MAX_CUT_SHARE = 0.5


@check(
    code="B203",
    name="blocked-path",
    since="0.1.0",
    explains=("B206", "U508"),
    sick=stack_with(ModelFacts(weights=(weight(0, grad_ms=None), weight(1, grad_ms=None), weight(2)))),
    healthy=stack_with(ModelFacts(weights=(weight(0), weight(1, grad_ms=0.0), weight(2)))),
)
def blocked_path(profile: Profile) -> Iterator[Symptom]:
    r"""The loss depends on trainable weights after which the autograd graph is cut.

    ## What it measures
    Weight layers, embeddings and recurrent layers that take part in computing the loss, whose matrix is trainable, and
    for which autograd has no gradient at all. A gradient of zero counts only if every gradient is zero. Fires if there
    are any. It is an error if they are more than `MAX_CUT_SHARE` = half of the trainable weight layers. The cut is
    located: the first op after them with an input that requires a gradient and no output that does, or the last call
    that made a Python number or an array of what they computed. If all weights have a gradient, it fires for a normal
    draw whose mean or deviation learns and whose result is all that further layers get: `sample()` in place of
    `rsample()`, or a draw that was added and scaled by hand before a `detach` or inside `no_grad`. It does not fire
    where the result is compared with the mean, as for the probabilities of policy gradients.

    ## Why it hurts
    A `detach()`, a `no_grad` block, a conversion to NumPy or an argmax cuts the graph. The weights before the cut never
    learn, although the optimizer holds them and weight decay shrinks them. Before a draw they learn from other terms of
    the loss only: the encoder of a variational autoencoder learns to say nothing about its input.

    ## When it is wrong
    A target network or a feature extractor may be fixed on purpose: set `requires_grad = False` on its parameters, or
    leave them out of the optimizer, and the check is silent. Branches that start at zero (ReZero, LoRA) have gradients
    of zero, which do not fire.

    ## References
    PyTorch documentation, "Autograd mechanics", section on locally disabling gradients.
    """
    weights = profile.facts.weights if profile.facts else ()
    if not profile.backward_ran:
        return
    cuts = {name: cut for cut in profile.cuts if cut.how != "zero" for name in cut.parameters}
    counted = [each for each in weights if each.trainable and _counts(each, cuts)]
    rows = _other_rows(profile, {each.name for each in weights}, cuts)
    names = [
        each.name
        for each in counted
        if (each.grad_ms is None and not each.grad_unseen) or (each.grad_ms == 0 and each.name in cuts)
    ]
    names += [row.name for row in rows if row.gradient in ("none", "zero")]
    names = [name for name in names if not _is_left_out(profile, cuts.get(name), name)]
    scalars = {row.name for row in rows if row.kind == "scalar"}
    names = [name for name in names if name not in scalars] or names  # the bias of one unit is a scalar
    trainable = len(counted) + len(rows)
    if not names:
        yield from _draws(profile)
        return
    blocks = [each.block for each in weights if each.name in names and each.block >= 0]
    located = next((cuts[name] for name in reversed(names) if name in cuts), None)
    yield Symptom(
        severity="error" if len(names) > MAX_CUT_SHARE * trainable else "warning",
        where=names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}",
        message=f"{len(names)} of {trainable} trainable weight layers get no gradient although the loss is computed "
        f"from them: {_describe(located)}",
        action=f"{_remedy(located, names[-1])}, or set `requires_grad = False` if these weights are not meant to "
        "learn.",
        evidence={"cut": float(len(names)), "trainable": float(trainable)},
        layers=(min(blocks), max(blocks)) if blocks else None,
    )


def _draws(profile: Profile) -> Iterator[Symptom]:
    for cut in profile.cuts:
        if cut.how == "draw":
            yield Symptom(
                severity="warning",
                where=layer_label(cut.module) if cut.module else "the model",
                message=f"{_describe(cut)}: what is computed from the draw does not teach them",
                action=f"{remedy(cut)}.",
                evidence={},
            )


def _is_left_out(profile: Profile, cut: GraphCut | None, name: str) -> bool:
    """Whether a cut that somebody wrote is before a tensor that no optimizer holds, while others are held.

    The generator in a step of its discriminator is such a thing: neither was meant to learn.
    """
    ledger = profile.ledger
    if ledger is None or cut is None or cut.how not in ("call", "no_grad"):
        return False
    held = [row.name for row in ledger.rows if row.in_optimizer and row.gradient == "finite"]
    return bool(held) and any(row.name == name and row.in_optimizer == 0 for row in ledger.rows)


def _other_rows(profile: Profile, known: Collection[str], cuts: Mapping[str, GraphCut]) -> list[LedgerRow]:
    """Rows of trainable matrices that are no weight layers of the depth axis, which may be unknown."""
    rows = profile.ledger.rows if profile.ledger else ()
    return [
        row
        for row in rows
        if row.trainable
        and row.name not in known
        and row.kind not in ("bias", "norm")
        and (
            (row.gradient == "finite" and row.kind != "scalar")
            or (row.gradient in ("none", "zero") and row.name in cuts)
        )
    ]


def _counts(weight: Weight, cuts: Mapping[str, GraphCut]) -> bool:
    """Whether the loss is computed from the weight, also through numbers that left the graph."""
    return weight.block >= 0 or weight.grad_ms is not None or weight.name in cuts


def _describe(cut: GraphCut | None) -> str:
    if cut is None:
        return "the autograd graph is cut after them"
    inside = f" in {layer_label(cut.module)}" if cut.module else ""
    place = f"{inside} ({cut.place})" if cut.place is not None else inside
    if cut.how == "no_grad":
        return f"{cut.op}{place} runs without autograd, as inside `torch.no_grad()`"
    if cut.how == "draw":
        return f"a random draw{place} has a mean and a deviation that learn, and passes no gradient to them"
    if cut.how == "discrete":
        return f"the result of {cut.op}{place} has no gradient"
    return f"{SPELLINGS.get(cut.op, cut.op)}{place} cuts the autograd graph after them"


def _remedy(cut: GraphCut | None, last: str) -> str:
    if cut is None:
        return f"Remove the `detach()`, `no_grad`, argmax or NumPy conversion after `{last}`"
    return remedy(cut) if cut.place is not None else f"{remedy(cut)} after `{last}`"
