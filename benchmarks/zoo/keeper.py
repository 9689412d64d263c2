"""A process that measures one exhibit after another and is replaced when one of them kills it or takes too long."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection

from benchmarks.zoo.measure import Cell

PROCESSOR_SECONDS = 40  # for one exhibit; small ones take a few
WALL_SECONDS = 600  # for one that waits instead of working
FIRST = "torch/lstm"
LITTER = (
    40  # exhibits after which a fresh process is taken: what models leave in memory goes with the old one
)


def measured(names: Iterable[str]) -> Iterator[tuple[str, Cell]]:
    """The cells of these exhibits, in order, each as soon as it is there."""
    keeper = _Keeper()
    try:
        for name in names:
            yield name, keeper.ask(name)
    finally:
        keeper.dismiss()


class _Keeper:
    """One worker process at a time."""

    def __init__(self) -> None:
        self._process: multiprocessing.Process | None = None
        self._asked = 0

    def ask(self, name: str) -> Cell:
        if self._process is None or self._asked >= LITTER:
            self._hire()
        self._asked += 1
        self._line.send(name)
        if not self._line.poll(WALL_SECONDS):
            return self._lost(f"no answer within {WALL_SECONDS} s")
        try:
            return self._line.recv()
        except EOFError:
            return self._lost(None)

    def _hire(self) -> None:
        self.dismiss()
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._asked = 0

    def _lost(self, reason: str | None) -> Cell:
        """The cell of an exhibit that took its process with it."""
        process = self._process
        self.dismiss()
        late = reason or (
            f"more than {PROCESSOR_SECONDS} s of processor time"
            if process.exitcode == -signal.SIGPROF
            else None
        )
        if late:
            return {"status": "too slow", "reason": late}
        return {"status": "crashed", "reason": f"the process ended with {process.exitcode}", "where": ""}

    def dismiss(self) -> None:
        if self._process is not None:
            self._line.close()
            self._process.join(timeout=5)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process = None


def serve(line: Connection) -> None:
    """Measure what is asked for until nobody asks any more. SIGPROF's own action ends a process that is too slow."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical")
    from benchmarks.zoo.collection import collection
    from benchmarks.zoo.measure import measure, quiet

    quiet()
    exhibits = collection()
    measure(exhibits[FIRST])  # what is imported on first use is not charged to the first exhibit
    while True:
        try:
            name = line.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        cell = measure(exhibits[name])
        signal.setitimer(signal.ITIMER_PROF, 0)
        line.send(cell)
