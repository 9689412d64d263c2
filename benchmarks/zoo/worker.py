"""Measures architectures in a child process, which is replaced when one of them kills it or takes too long."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from queue import Queue

from benchmarks.zoo.architecture import Architecture
from benchmarks.zoo.measure import Cell, measure, set_up_process

Measurement = Callable[[Architecture], Cell]
"""A function of a module, because it is sent to a new process by its name."""

# Heuristic: a typical architecture takes one or two seconds.
MAX_PROCESSOR_SECONDS = 40
# Heuristic: for an architecture that waits instead of computing.
MAX_WALL_SECONDS = 400
# Heuristic: a worker that needs more fails alone and leaves memory for the rest of the machine.
MAX_MEMORY_BYTES = 6 << 30
# Heuristic: a new process frees what the models before it left in memory.
MAX_MEASUREMENTS_PER_PROCESS = 40
# Measured first and discarded, so that imports on first use are not charged to an architecture.
WARM_UP_ARCHITECTURE = "torch/lstm"


def measure_all(
    names: Iterable[str], measurement: Measurement = measure, workers: int = 1
) -> Iterator[tuple[str, Cell]]:
    """Yield the cell of each architecture as soon as it is measured, by so many child processes at a time."""
    idle: Queue[WorkerProcess] = Queue()
    for _ in range(workers):
        idle.put(WorkerProcess(measurement))

    def measure_one(name: str) -> tuple[str, Cell]:
        worker = idle.get()
        try:
            return name, worker.measure(name)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(workers)
    try:
        for each in as_completed([pool.submit(measure_one, name) for name in names]):
            yield each.result()
    finally:
        pool.shutdown(cancel_futures=True)
        while not idle.empty():
            idle.get().stop()


class WorkerProcess:
    """One child process at a time, started when needed."""

    def __init__(self, measurement: Measurement) -> None:
        self._measurement = measurement
        self._process: multiprocessing.Process | None = None
        self._measurements = 0

    def measure(self, name: str) -> Cell:
        if self._process is None or self._measurements >= MAX_MEASUREMENTS_PER_PROCESS:
            self._start()
        self._measurements += 1
        try:
            self._connection.send(name)
            if not self._connection.poll(MAX_WALL_SECONDS):
                return self._lost_cell(f"no answer within {MAX_WALL_SECONDS} s")
            return self._connection.recv()
        except (EOFError, ConnectionError):
            return self._lost_cell("")

    def stop(self) -> None:
        """Close the connection, which ends an idle child; kill a child that does not end."""
        if self._process is None:
            return
        self._connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _start(self) -> None:
        self.stop()
        context = multiprocessing.get_context("spawn")
        self._connection, child_connection = context.Pipe()
        self._process = context.Process(target=serve, args=(child_connection, self._measurement), daemon=True)
        self._process.start()
        child_connection.close()
        self._measurements = 0

    def _lost_cell(self, reason: str) -> Cell:
        """Return the cell of an architecture whose process was killed."""
        self.stop()
        code = self._process.exitcode
        self._process = None
        if reason or code == -signal.SIGPROF:
            limit = f"more than {MAX_PROCESSOR_SECONDS} s of processor time"
            return {"status": "too slow", "reason": reason or limit}
        return {"status": "crashed", "reason": f"its process ended with {code}", "where": ""}


def serve(connection: Connection, measurement: Measurement) -> None:
    """Measure each name that arrives until the connection closes. SIGPROF ends a process that is too slow."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical")
    from benchmarks.zoo.collection import find_architecture

    set_up_process()
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    measurement(find_architecture(WARM_UP_ARCHITECTURE))
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, MAX_PROCESSOR_SECONDS)
        cell = measurement(find_architecture(name))
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(cell)
