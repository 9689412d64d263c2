"""Calls of Leadline on random models that fail at random events, and a check that nothing changed."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import leadline
from benchmarks.footprint import differences, footprint
from leadline import Case
from leadline.api import check as diagnose
from leadline.readings.update.reading import read_update
from leadline.tracer.trace import trace_case
from tests.support.faults.graphs import Fuse, Plan, build

Ask = Callable[[Case], object]


def fix(case: Case) -> object:
    return leadline.fix(case.model, case.inputs, case.targets, case.loss, case.optimizer, budget=0.5)


ASKS: dict[str, Ask] = {
    "trace": trace_case,
    "update": lambda case: read_update(case, None),
    "check": diagnose,
    "fix": fix,
}


def events_of(plan: Plan, ask: Ask) -> int:
    """How many events a pass without accident has."""
    fuse = Fuse()
    ask(build(plan, fuse))
    return fuse.events


@contextmanager
def nothing_left(case: Case) -> Iterator[None]:
    """Check that model, optimizer, process, threads and temporary files are as before, also after an error."""
    before, process = footprint(case), _process()
    yield
    left = [name for name in differences(before, footprint(case)) if name != "model.fuse: value"]
    assert left == [], left
    assert _process() == process, (process, _process())


def _process() -> tuple[int, list[str]]:
    return threading.active_count(), sorted(map(str, Path(tempfile.gettempdir()).glob("leadline*")))


def outcome(ask: Ask, case: Case) -> BaseException | None:
    """What comes out of it: None, or what was raised."""
    try:
        ask(case)
    except BaseException as error:
        return error
    return None


def warm_up() -> None:
    """Libraries that are loaded late draw random numbers and start threads when they are."""
    import torch._dynamo

    torch.nn.functional.cross_entropy(torch.zeros(1, 2, requires_grad=True), torch.tensor([0])).backward()
