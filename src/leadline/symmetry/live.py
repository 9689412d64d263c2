"""`leadline.symmetries`: the free rescalings of a model, and the model at hand to confirm them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from leadline.case import Case, Inputs, Loss, given
from leadline.records import EpsSite, Generator, Symmetry, Trace
from leadline.symmetry.confirm import Verification, verify
from leadline.symmetry.exact import measured, thawed
from leadline.symmetry.reading import read_symmetry
from leadline.tracing import trace

SHOWN = 12  # ours: generators in the printed form


@dataclass(frozen=True, slots=True)
class Symmetries:
    """All free rescalings of a model's parameters. `record` is the part that is data; `verify` asks the model."""

    record: Symmetry
    case: Case

    @property
    def dimension(self) -> int:
        """How many independent free rescalings there are."""
        return self.record.dimension

    @property
    def generators(self) -> tuple[Generator, ...]:
        """A basis of them: exponents by parameter name, and the same in words."""
        return self.record.generators

    @property
    def invariant(self) -> tuple[str, ...]:
        """Parameters whose scale is free alone."""
        return self.record.invariant

    @property
    def inert(self) -> tuple[str, ...]:
        """Parameters that can shrink to nothing while none (that is decayed) grows: decay on them is inert."""
        return self.record.inert

    @property
    def free_share(self) -> float | None:
        """The share of the sum of squares that can be had for free."""
        return self.record.free_share

    @property
    def eps(self) -> tuple[EpsSite, ...]:
        """Norms in front of which the scale is free, as far as their eps allows."""
        return self.record.eps

    def verify(self, *, seed: int = 0, passes: int | None = None) -> Verification:
        """Confirm by numbers, in double precision: move along the group, and ask the gradients for the whole of it.

        The second takes about as many passes as there are parameter tensors; with fewer `passes` completeness is left
        open. The model is left as found.
        """
        return verify(self.record, self.case, seed=seed, passes=passes)

    def __str__(self) -> str:
        share = "" if self.free_share is None else f" ({self.free_share:.0%} of the sum of squares is free)"
        head = f"{self.dimension} free rescalings; {len(self.inert)} of {len(self.record.tensors)} tensors inert{share}"
        shown = [f"  {each.says}" for each in self.generators[:SHOWN]]
        more = [f"  and {self.dimension - SHOWN} more"] if self.dimension > SHOWN else []
        return "\n".join([head, *shown, *more])


def symmetries(
    model: nn.Module | Case,
    inputs: Inputs | None = None,
    targets: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Symmetries:
    """Which parameter tensors can be multiplied by numbers without changing what the model computes.

    Arguments are those of `leadline.Case`, or a Case alone. Without a loss, all that the model returns must stay as it
    is; with one, all that the loss reads. With an optimiser, only what it decays counts as penalty. Frozen parameters
    are constants, unless all are: no gradient is needed here, and the group is that of the same model unfrozen.

    >>> import leadline, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> print(leadline.symmetries(model, torch.randn(3, 4)).generators[0].says)
    0.weight, 0.bias against 2.weight
    """
    case = given(model, inputs, targets, loss, optimizer)
    return Symmetries(find_symmetry(case), case)


def find_symmetry(case: Case, *, in_front_of_norms: bool = True, only_in_training: bool = True) -> Symmetry:
    """The record, as `read_symmetry` says; of a model without parameters, the group that moves nothing."""
    if isinstance(case.model, nn.Module) and not any(True for _ in case.model.parameters()):
        return Symmetry(generators=(), tensors=(), decayed=False, penalty=0.0, least=0.0, eps=(), held=())
    seen = trace_function(case)
    return read_symmetry(seen, in_front_of_norms=in_front_of_norms, only_in_training=only_in_training)


def trace_function(case: Case) -> Trace:
    """The trace of a case; one without a loss is judged by all that it returns, a frozen one as if it were not."""
    if not isinstance(case.model, nn.Module):
        return trace(case.model, case.inputs)  # says what is wrong with it
    lonely = case.loss is None
    with thawed(case.model):
        return trace(
            case.model,
            case.inputs,
            None if lonely else case.targets,
            measured if lonely else case.loss,
            case.optimizer,
        )
