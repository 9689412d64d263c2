"""The batches of a training loop: whether they repeat, how their labels are ordered, and which samples were seen.

A batch is known by a few of its elements, read from processor memory; batches on another device are not read. After
the first `DENSE_STEPS` steps only `BURST` of every `BURST_SPACING` steps are looked at, unless something is found.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from leadline.checks._loop import STEP_WINDOW
from leadline.monitor.loop_gradients import Tally

# Heuristic: steps that are all looked at; mistakes in a loop are there from its beginning.
DENSE_STEPS = 128
# Heuristic: later, of so many steps ...
BURST_SPACING = 16
# Heuristic: ... this many in a row are looked at; the second shows whether a batch repeats the first.
BURST = 2
# Heuristic: elements that identify a tensor.
HASHED_ELEMENTS = 32
# Heuristic: tensors that identify a batch; the rest are masks and positions.
MAX_TENSORS = 3
# Heuristic: samples of a batch that are remembered.
MAX_ROWS = 16
# Heuristic: elements that identify a sample.
ROW_ELEMENTS = 8
# Heuristic: samples that are remembered in all; 1 MB.
MAX_STORED_ROWS = 16_384
# Heuristic: share of equal samples within a batch above which samples do not identify themselves.
MAX_EQUAL_ROWS = 0.02
# Derived: fewer labels than this are equal too often by chance.
MIN_LABELS = 8
# Heuristic: nodes of the graph between a loss and its targets.
MAX_LOSS_NODES = 24
# Heuristic: share of neighboring labels that are equal in sorted data ...
MIN_EQUAL_NEIGHBORS = 0.9
# Heuristic: ... while labels of all these batches are equal less often than this.
MAX_EQUAL_LABELS = 0.7
# Heuristic: share of batches whose most frequent class is another than that of the batch before; alternating batches
# of real and made samples change it each time.
MAX_CLASS_CHANGES = 0.25
# Heuristic: batches whose labels are compared.
LABEL_WINDOW = 24
# Derived: half of the window, so that a change of class in its middle is seen.
MIN_LABEL_BATCHES = 12


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments, two levels deep."""
    groups = values.values() if isinstance(values, Mapping) else values
    for each in groups:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, Mapping | list | tuple):
            inner = each.values() if isinstance(each, Mapping) else each
            yield from (item for item in inner if isinstance(item, Tensor))


def batch_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that identify a batch, if they are in processor memory."""
    found = [each for each in (*tensors_in(args), *tensors_in(kwargs)) if each.numel() > 1]
    return [each for each in found[:MAX_TENSORS] if type(each) is Tensor and each.device.type == "cpu"]


def batch_hash(tensors: list[Tensor]) -> int | None:
    """Return a number that is the same for the same batch; None if there is nothing to read."""
    if not tensors:
        return None
    parts = []
    with torch.no_grad():
        for each in tensors:
            if each.layout is not torch.strided:
                return None
            flat = each.detach().reshape(-1)
            parts.append((tuple(each.shape), tuple(flat[_positions(flat.numel(), HASHED_ELEMENTS)].tolist())))
    return hash(tuple(parts))


def row_hashes(tensor: Tensor) -> list[int]:
    """Return a number for each of the first samples of a batch."""
    if tensor.dim() < 2 or tensor.shape[0] < 2 or tensor.layout is not torch.strided:
        return []
    with torch.no_grad():
        rows = tensor.detach()[:MAX_ROWS].reshape(min(MAX_ROWS, tensor.shape[0]), -1)
        picked = rows[:, _positions(rows.shape[1], ROW_ELEMENTS)].tolist()
    return [hash(tuple(each)) for each in picked]


@lru_cache(maxsize=64)
def _positions(size: int, count: int) -> Tensor:
    """Return positions spread over a tensor, not in step with its rows."""
    golden = 0.6180339887498949
    return torch.tensor(sorted({int(size * ((index + 0.5) * golden % 1.0)) for index in range(count)}))


class BatchLedger:
    """Follows the batches that are trained on and those that are evaluated."""

    def __init__(self) -> None:
        self.step = 0
        self.same = 0
        """Steps in a row with the same inputs."""
        self.copies = Tally()
        self.last_hash: int | None = None
        """The batch of the last training pass that was looked at."""
        self.size = 0
        """Samples of the last batch that was read; 0 if it was not."""
        self.labels = Labels()
        self.evaluated_rows = self.trained_rows = 0
        self._rows: set[int] = set()
        self._equal_rows = 0
        self._all_rows = 0
        self._hashes: dict[int, int | None] = {}

    @property
    def is_dense(self) -> bool:
        """True if the batch of this step is looked at."""
        return self.step < DENSE_STEPS or 0 < self.same < DENSE_STEPS or self.step % BURST_SPACING < BURST

    def train(self, turn: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, look: bool) -> None:
        """Look at the inputs of the first training pass of a turn; passes of the same turn are compared.

        The two sides of a game take turns, each with its own kind of batch.
        """
        self.size, self.last_hash = 0, None
        if not self.is_dense and not look:
            self._hashes.clear()
            return
        tensors = batch_tensors(args, kwargs)
        if not tensors:
            return
        self.size = tensors[0].shape[0] if tensors[0].dim() else 0
        now, before = batch_hash(tensors), self._hashes.get(turn)
        self.last_hash = self._hashes[turn] = now
        if now is not None and before is not None:
            self.same = self.same + 1 if now == before else 0
            self.copies.add(now == before)
        if len(self._rows) < MAX_STORED_ROWS:
            self._remember(row_hashes(tensors[0]))

    def resume(self) -> None:
        """Follow again after a rest: the next batch is not compared with the last one that was seen."""
        self._hashes.clear()

    def evaluate(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, identify: bool) -> int | None:
        """Look at the inputs of a pass without gradients; return what identifies the batch, if that is wanted."""
        is_compared = self.evaluated_rows < MAX_STORED_ROWS
        if not is_compared and not identify:
            return None
        tensors = batch_tensors(args, kwargs)
        if not tensors:
            return None
        if is_compared and self._all_rows and self._equal_rows <= MAX_EQUAL_ROWS * self._all_rows:
            rows = row_hashes(tensors[0])
            self.evaluated_rows += len(rows)
            self.trained_rows += sum(each in self._rows for each in rows)
        return batch_hash(tensors) if identify else None

    def numbers(self) -> dict[str, float]:
        if not self._hashes:
            return {}
        return {
            "same_batch": self.same,
            "worker_copies": self.copies.count if self.same < STEP_WINDOW else 0,
            "sorted_labels": self.labels.sorted_batches,
            "one_class": self.labels.one_class_batches,
            "evaluated_rows": self.evaluated_rows,
            "trained_rows": self.trained_rows,
        }

    def _remember(self, rows: list[int]) -> None:
        self._all_rows += len(rows)
        self._equal_rows += len(rows) - len(set(rows))
        self._rows.update(rows)


class Labels:
    """How the labels of recent batches are ordered."""

    def __init__(self) -> None:
        self.sorted_batches = 0
        self.one_class_batches = 0
        self._batches: deque[list[int]] = deque(maxlen=LABEL_WINDOW)

    def add(self, labels: list[int]) -> None:
        self._batches.append(labels)
        is_pure = len(set(labels)) == 1
        self.one_class_batches = self.one_class_batches + 1 if is_pure else 0
        self.sorted_batches = self.sorted_batches + 1 if self._are_sorted() else 0

    def _are_sorted(self) -> bool:
        if len(self._batches) < MIN_LABEL_BATCHES:
            return False
        pairs = sum(len(each) - 1 for each in self._batches)
        equal = sum(a == b for each in self._batches for a, b in pairwise(each))
        if equal < MIN_EQUAL_NEIGHBORS * pairs:
            return False
        counts = Counter(label for each in self._batches for label in each)
        total = counts.total()
        by_chance = sum((count / total) ** 2 for count in counts.values())
        classes = [Counter(each).most_common(1)[0][0] for each in self._batches]
        changes = sum(a != b for a, b in pairwise(classes))
        return by_chance <= MAX_EQUAL_LABELS and changes <= MAX_CLASS_CHANGES * len(classes)


def class_labels(node: Any, size: int) -> list[int] | None:
    """Return the class of each sample, read from the graph of a loss; None if it has none, or not one per sample.

    `node` is the node that produced the loss.
    """
    if size < MIN_LABELS:
        return None
    waiting, visited = deque([node]), 0
    while waiting and visited < MAX_LOSS_NODES:
        node = waiting.popleft()
        visited += 1
        if node is None:
            continue
        if type(node).__name__ == "NllLossBackward0":
            target = node._saved_target
            is_label = target.dim() == 1 and target.numel() == size and target.device.type == "cpu"
            return target[: 2 * STEP_WINDOW].tolist() if is_label else None
        waiting.extend(next_node for next_node, _ in node.next_functions)
    return None
