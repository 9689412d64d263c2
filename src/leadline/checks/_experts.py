"""The load of routers in the history of a run: one group of experts per router."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leadline.checks._examples import vector_history
from leadline.checks._history import History, RunLayout

# Heuristic: fewer recordings could all be of batches from one domain.
MIN_LOAD_RECORDINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLoads:
    """The recorded loads of one router, oldest first."""

    weight: str
    steps: list[int]
    loads: list[list[float]]
    """Tokens of each expert."""


def router_loads(history: History) -> Iterator[RouterLoads]:
    """The recordings of each router in which it was measured, where there are at least `MIN_LOAD_RECORDINGS`."""
    recordings = history.spaced("expert_tokens")
    places: dict[str, list[int]] = {}
    for index, label in enumerate(history.layout.experts):
        places.setdefault(label.rpartition(" ")[0], []).append(index)
    for weight, own in places.items():
        rows = [
            (step, [row[index] for index in own])
            for step, row in zip(recordings.steps, recordings.rows, strict=True)
            if all(index < len(row) and row[index] >= 0 for index in own)
        ]
        if len(rows) >= MIN_LOAD_RECORDINGS:
            yield RouterLoads(
                weight=weight, steps=[step for step, _ in rows], loads=[load for _, load in rows]
            )


def load_history(last: list[float]) -> History:
    """400 steps of one router with four experts, whose load goes from 64 tokens each to `last`."""
    layout = RunLayout(experts=tuple(f"layers.0.router.weight {expert}" for expert in range(len(last))))
    rows = {"expert_tokens": lambda step: last if step >= 100 else [64.0] * len(last)}
    return vector_history(400, rows, every=20, layout=layout)
