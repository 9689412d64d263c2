"""D918: the model, or some of its batch norms, is trained in eval mode."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from leadline.checks._check import Symptom, check
from leadline.checks._ranges import first_names
from leadline.checks._wiring_examples import learner, ledger_with
from leadline.records import Profile


def _example(*, training: bool) -> Profile:
    return replace(ledger_with(learner(), mode_dependent=("drop",), optimizers=("AdamW",)), training=training)


@check(
    code="D918",
    name="evaluation-mode",
    since="0.1.0",
    sick=_example(training=False),
    healthy=_example(training=True),
)
def evaluation_mode(profile: Profile) -> Iterator[Symptom]:
    r"""The model is in eval mode although it has layers that train differently.

    ## What it measures
    Whether `model.training` is False while an optimizer is given, and dropout or batch norm ran in eval mode. If the
    model is in training mode, whether batch norms use running statistics that are still those of a new layer.

    ## Why it hurts
    Dropout does not regularize, and batch norm uses running statistics that never change: at the start these are 0 and
    1, so the network trains without normalization.

    ## When it is wrong
    Fine-tuning with frozen batch statistics keeps batch norm in eval mode on purpose; then only those layers are, the
    model itself is in training mode, and the statistics are those of the pretraining. Models loaded with
    `from_pretrained` start in eval mode; trainers switch them.

    ## References
    PyTorch documentation, `torch.nn.Module.train`.
    """
    ledger = profile.ledger
    if ledger is not None and ledger.optimizers and not profile.training and ledger.mode_dependent:
        yield Symptom(
            severity="warning",
            where=ledger.mode_dependent[0],
            message=f"the model is in eval mode, so {len(ledger.mode_dependent)} layers of dropout or batch norm do "
            f"not train: {first_names(ledger.mode_dependent)}",
            action="Call `model.train()` before training (and before the check).",
            evidence={"layers": float(len(ledger.mode_dependent))},
        )
    elif ledger is not None and ledger.optimizers and profile.training and ledger.idle_norms:
        yield Symptom(
            severity="warning",
            where=ledger.idle_norms[0],
            message=f"{len(ledger.idle_norms)} batch norms normalize by a mean of 0 and a variance of 1, because they "
            f"are in eval mode and have seen no batch: {first_names(ledger.idle_norms)}",
            action="Call `train()` on them, or load trained statistics before you freeze them.",
            evidence={"layers": float(len(ledger.idle_norms))},
        )
