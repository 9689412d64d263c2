"""A process that measures one exhibit after another and is replaced when one of them kills it or takes too long."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection

from benchmarks.zoo.measure import Cell

PROCESSOR_SECONDS = 40  # for one exhibit; small ones take one or two
WALL_SECONDS = 400  # for one that waits instead of working
MEMORY = 6 << 30  # bytes a worker may have: what wants more fails alone instead of taking the machine along
FIRST = "torch/lstm"  # measured before all others: what is imported on first use is not charged to an exhibit
LITTER = (
    40  # exhibits after which a fresh process is taken: what models leave in memory goes with the old one
)


def measured(names: Iterable[str]) -> Iterator[tuple[str, Cell]]:
    """The cells of these exhibits, in order, each as soon as it is there."""
    keeper = Keeper()
    try:
        for name in names:
            yield name, keeper.ask(name)
    finally:
        keeper.dismiss()


class Keeper:
    """One worker process at a time."""

    def __init__(self) -> None:
        self._process: multiprocessing.Process | None = None
        self._asked = 0

    def ask(self, name: str) -> Cell:
        if self._process is None or self._asked >= LITTER:
            self._hire()
        self._asked += 1
        try:
            self._line.send(name)
            if not self._line.poll(WALL_SECONDS):
                return self._lost(f"no answer within {WALL_SECONDS} s")
            return self._line.recv()
        except (EOFError, ConnectionError):
            return self._lost("")

    def dismiss(self) -> None:
        """Close the line, which ends a worker that listens; end one that does not."""
        if self._process is None:
            return
        self._line.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _hire(self) -> None:
        self.dismiss()
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._asked = 0

    def _lost(self, reason: str) -> Cell:
        """The cell of an exhibit that took its process with it."""
        self.dismiss()
        code = self._process.exitcode
        self._process = None
        if reason or code == -signal.SIGPROF:
            limit = f"more than {PROCESSOR_SECONDS} s of processor time"
            return {"status": "too slow", "reason": reason or limit}
        return {"status": "crashed", "reason": f"its process ended with {code}", "where": ""}


def serve(line: Connection) -> None:
    """Measure what is asked for until nobody asks any more. SIGPROF's own action ends a process that is too slow."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical")
    from benchmarks.zoo.collection import exhibit
    from benchmarks.zoo.measure import measure, quiet

    quiet()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    measure(exhibit(FIRST))
    while True:
        try:
            name = line.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)
        cell = measure(exhibit(name))
        signal.setitimer(signal.ITIMER_PROF, 0)
        line.send(cell)
