"""The first steps of a program as one case: the weights that the first one begins with, and the batches of all.

One batch can be learned by heart, so a verdict needs several. A program hands them over one by one, each at its step.
So the state of the first step is kept, the program trains on, and when enough batches were seen, the kept state is put
in place for the check. The present state is restored afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from leadline.case import Case, split_batch
from leadline.errors import LeadlineError
from leadline.runner.tape_case import TapedStep
from leadline.tracer.inputs import trainable_leaves
from leadline.tracer.names import index_model
from leadline.tracer.restore import preserve_state
from leadline.tracer.sharded import is_shard
from leadline.tracer.shield import atomic_contextmanager
from leadline.tracer.values import tensors_in

# Heuristic: bytes of the kept state, and of the kept batches; a larger network is checked at its first step.
MAX_KEPT_BYTES = 256 * 2**20
# Heuristic: a user waits for the first verdict; with slow steps it comes with fewer batches.
MAX_GATHERING_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """State and options of an optimizer; tensors are copies."""

    state: dict[Tensor, dict[str, Any]]
    options: list[dict[str, Any]]

    @classmethod
    def of(cls, optimizer: Optimizer) -> OptimizerState:
        state = {parameter: _copied(entries) for parameter, entries in optimizer.state.items()}
        options = [
            {name: _copied(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        return cls(state, options)

    def put_into(self, optimizer: Optimizer) -> None:
        optimizer.state.clear()
        optimizer.state.update(_copied(self.state))
        for group, options in zip(optimizer.param_groups, self.options, strict=False):
            group.update(_copied(options))


class GatheredStep:
    """A first step that waits for the batches of later ones."""

    def __init__(
        self, taped: TapedStep, optimizers: Sequence[Optimizer], wanted: int, pass_seconds: float
    ) -> None:
        """`wanted` is the number of batches, that of the first step included."""
        self.taped, self._optimizers = taped, tuple(optimizers)
        self.pass_seconds = pass_seconds
        """Seconds of the fastest pass so far; the first one may have been compiled, another one traced."""
        self._wanted = wanted
        case = taped.case
        self._inputs, self._targets = _copied((case.inputs, case.targets))
        self._batches: list[Any] = []
        self._deadline = time.monotonic() + MAX_GATHERING_SECONDS
        self._tensors = [(each, each.detach().clone()) for each in _tensors_of(case)]
        self._states = [OptimizerState.of(each) for each in self._optimizers]

    @property
    def is_complete(self) -> bool:
        """Whether enough batches were seen, or more would take too long."""
        most = max(MAX_KEPT_BYTES // max(_bytes_of((self._inputs, self._targets)), 1), 1)
        return len(self._batches) + 1 >= min(self._wanted, most) or time.monotonic() > self._deadline

    def add(self, taped: TapedStep, pass_seconds: float) -> bool:
        """Keep the batch of a later step; False if that step does something else. A batch that was seen is left out."""
        self.pass_seconds = min(self.pass_seconds, pass_seconds)
        first, later = self.taped, taped
        if not _are_alike(first, later):
            return False
        item = later.case.inputs if first.case.targets is None else (later.case.inputs, later.case.targets)
        try:
            batch = split_batch(item, first.case)
        except LeadlineError:
            return False
        known = [(self._inputs, self._targets), *(split_batch(each, first.case) for each in self._batches)]
        if not any(_is_same(batch, each) for each in known):
            self._batches.append(_copied(item))
        return True

    @atomic_contextmanager
    def case(self) -> Iterator[Case]:
        """The case of all batches; inside, model and optimizers are in the state in which the first step began."""
        case = replace(self.taped.case, inputs=self._inputs, targets=self._targets)
        if self._batches:
            with suppress(LeadlineError):  # batches of another form than the first
                case = replace(case, batches=list(self._batches))
        with preserve_state(case):
            with torch.no_grad():
                for tensor, before in self._tensors:
                    tensor.copy_(before)
            for optimizer, state in zip(self._optimizers, self._states, strict=True):
                state.put_into(optimizer)
            yield case


def _are_alike(first: TapedStep, later: TapedStep) -> bool:
    """Whether two steps do the same: call the same module, or modules of the same names in the same way."""
    form, other = [(each.calls, each.micro_batches, each.is_replayed) for each in (first, later)]
    return form == other and (first.is_replayed or first.case.model is later.case.model)


def can_gather(taped: TapedStep, optimizers: Sequence[Optimizer]) -> bool:
    """Whether the state of a step can be kept: plain tensors that are not too large, and a batch without a graph."""
    case = taped.case
    if case.batches is not None or trainable_leaves((case.inputs, case.targets)):
        return False
    tensors = _tensors_of(case)
    states = [tensors_in(optimizer.state) for optimizer in optimizers]
    kept = [*tensors, *(each for state in states for each in state)]
    is_plain = all(each.layout is torch.strided and not is_shard(each) for each in kept)
    return is_plain and sum(map(_size, kept)) <= MAX_KEPT_BYTES


def _tensors_of(case: Case) -> list[Tensor]:
    """Parameters and buffers of the model, and of a loss that is a module, each once."""
    indexes = [index_model(each) for each in (case.model, case.loss) if isinstance(each, nn.Module)]
    found: dict[int, Tensor] = {}
    for index in indexes:
        found |= {key: named.item for key, named in index.parameters.items()}
        found |= {key: named.item for key, named in index.buffers.items()}
    return list(found.values())


def _copied(tree: Any) -> Any:
    """A tree of data with copies of its tensors."""
    return tree_map_only(Tensor, lambda each: each.detach().clone(), tree)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two batches hold the same values."""
    pairs = list(zip(tensors_in(one), tensors_in(other), strict=False))
    return bool(pairs) and all(torch.equal(a, b) for a, b in pairs)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _bytes_of(batch: Any) -> int:
    return sum(map(_size, tensors_in(batch)))
