"""U526: Muon holds tensors that are no hidden matrices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import learner, ledger_of_optimizer
from leadline.ops.optimizers import group_rule
from leadline.records import Profile

# Singular and plural, by the kind of the tensor.
KINDS = {
    "embedding": ("embedding", "embeddings"),
    "head": ("output matrix", "output matrices"),
    "norm": ("norm parameter", "norm parameters"),
    "bias": ("bias", "biases"),
    "scalar": ("scalar", "scalars"),
}


@check(
    code="U526",
    name="muon-misplaced",
    since="0.1.0",
    sick=ledger_of_optimizer("Muon", learner(0, kind="embedding"), learner(1)),
    healthy=ledger_of_optimizer("Muon", learner(0), learner(1)),
)
def muon_misplaced(profile: Profile) -> Iterator[Symptom]:
    r"""Muon steps an embedding, the output matrix, norms or biases.

    ## What it measures
    Which of the tensors of an optimizer that orthogonalizes its steps (Muon, Dion and similar ones) the pass uses as an
    embedding, as the matrix that makes the outputs, as gain or shift of a norm, as a bias or as a single number. It is
    always a note.

    ## Why it hurts
    Muon gives all singular values of a step the same size. That suits a matrix between two hidden layers, whose input
    and output are vectors that one spectral norm measures. The input of an embedding is one token: its rows are
    independent of each other and should be stepped by their own gradients, and so should the rows of the output matrix.
    A vector has one singular value, so that its step is the gradient over its norm, and the entries are not rescaled at
    all. The author's recipe gives all these tensors to AdamW.

    ## When it is wrong
    Small models train either way, and some recipes give the output matrix to Muon on purpose.

    ## References
    Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, and its code's notes on which
    parameters belong to Muon.
    """
    optimizer, ledger = profile.optimizer, profile.ledger
    if optimizer is None or ledger is None:
        return
    rules = [(group_rule(optimizer, group), group.parameters) for group in optimizer.groups]
    rule_of = {name: rule for rule, names in rules for name in names}
    spectral = {name for name, rule in rule_of.items() if rule is not None and rule.step == "spectral"}
    heads = _output_matrices(profile)
    kinds = {
        row.name: "head" if row.name in heads else row.kind
        for row in ledger.rows
        if row.name in spectral and (row.name in heads or row.kind in KINDS)
    }
    if not kinds:
        return
    counts = Counter(kinds.values())
    listed = " and ".join(f"{number} {KINDS[kind][number > 1]}" for kind, number in counts.items())
    yield Symptom(
        severity="info",
        where=first_names(list(kinds)),
        message=f"the steps of {listed} are orthogonalized by {optimizer.name}, which is made for hidden matrices",
        action="Give Muon the hidden matrices only and the rest to `torch.optim.AdamW`: "
        '`leadline.nn.param_groups(model, None, "muon", lr=...)` makes both lists for models of `leadline.nn`.',
        evidence={kind: float(number) for kind, number in counts.items()},
    )


def _output_matrices(profile: Profile) -> set[str]:
    """Names of the matrices of the last block, if it lies after residual blocks: the network's output layer."""
    weights = profile.facts.weights if profile.facts else ()
    if not any(each.residual for each in weights):
        return set()
    last = max(each.block for each in weights)
    return {each.name for each in weights if each.block == last and not each.residual}
