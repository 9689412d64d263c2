"""What storing a step costs, next to the same numbers as lines of JSON and as one row a number, and what a kill takes.

    python -m benchmarks.run_file_cost            measure what has no result yet, fill docs/reference/runs.md
    python -m benchmarks.run_file_cost --quick    few rounds; prints, stores nothing

A step is 12 metrics of 1000 layers and 10 numbers of the whole model. All ways store the same step and make it visible
to readers at once (a transaction, or a flush); they alternate in one process, and the clock is processor time.
Killed: a process that stores such steps is ended by SIGKILL at random moments; lost is the last step that it had handed
over, minus the last one in the file.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import watch_sigkill
from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import Spread, alternate, ratio, rounded, significant, spread
from leadline.monitor.runfile import Run, Writer
from leadline.monitor.runfile.access import open_store
from leadline.monitor.runfile.owner import current_owner
from leadline.monitor.runfile.queue import Batch, StepNumbers
from leadline.records.run import RunInfo

METRICS, LAYERS, SCALARS = 12, 1000, 10
ROUNDS = 60
KILLS = 25
PAUSES = (0.005, 0.02, 0.1, 0.5)  # seconds per step in the process that is killed
WATCHED_PAUSES = (0.001, 0.005, 0.02, 0.1, 0.3)  # seconds between the steps of a watched loop
# Cited: the project's requirements, for one step in the writer's thread.
MAX_STEP_MS = 1.2
INFO = RunInfo(model="benchmark")

Save = Callable[[int], None]
Way = tuple[Save, Callable[[], None]]
"""Store a step; and, when all is stored, close the file."""


def step_scalars() -> dict[str, float]:
    rng = random.Random(0)
    return {f"scalar {index}": rng.gauss(0, 1) for index in range(SCALARS)}


def step_vectors() -> dict[str, tuple[str, array[float]]]:
    rng = random.Random(1)
    return {
        f"metric {index}": ("layers", array("f", (rng.gauss(0, 1) for _ in range(LAYERS))))
        for index in range(METRICS)
    }


def to_run_file(folder: Path) -> Way:
    """Store each step as the writer's thread does."""
    store = open_store(folder / "run.leadline", INFO, current_owner(), resume=True)
    scalars = step_scalars()
    packed = {name: (axis, values.tobytes()) for name, (axis, values) in step_vectors().items()}

    def save(step: int) -> None:
        store.save(Batch((StepNumbers(step, time.time(), scalars, packed),)), {})

    def close() -> None:
        store.release()
        store.close()

    return save, close


def to_json_lines(folder: Path) -> Way:
    file = (folder / "run.jsonl").open("w")
    scalars, vectors = step_scalars(), {name: list(values) for name, (_, values) in step_vectors().items()}

    def save(step: int) -> None:
        file.write(json.dumps({"step": step, **scalars, **vectors}) + "\n")
        file.flush()

    return save, file.close


def to_rows(folder: Path) -> Way:
    """Store one row per number, in SQLite with the same settings."""
    connection = sqlite3.connect(folder / "rows.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE number (metric, step, layer, value, PRIMARY KEY (metric, step, layer))")
    numbers = [*((name, -1, value) for name, value in step_scalars().items())]
    numbers += [(name, layer, v) for name, (_, vs) in step_vectors().items() for layer, v in enumerate(vs)]

    def save(step: int) -> None:
        connection.execute("BEGIN")
        rows = ((name, step, layer, value) for name, layer, value in numbers)
        connection.executemany("INSERT INTO number VALUES (?, ?, ?, ?)", rows)
        connection.execute("COMMIT")

    return save, connection.close


WAYS = {"run file": to_run_file, "lines of JSON": to_json_lines, "one row per number": to_rows}
FILES = {"run file": "run.leadline", "lines of JSON": "run.jsonl", "one row per number": "rows.db"}


def measure_ways(rounds: int = ROUNDS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        ways = {name: make(Path(folder)) for name, make in WAYS.items()}
        saves = {name: counted(save) for name, (save, _) in ways.items()}
        seconds = alternate(saves, rounds=rounds, warmups=5, clock=time.process_time)
        for _, close in ways.values():
            close()
        stored = {name: Path(folder, FILES[name]).stat().st_size for name in WAYS}
    return {
        name: {
            "ms": rounded(spread([1e3 * each for each in seconds[name]])),
            "over_run_file": significant(ratio(seconds[name], seconds["run file"]).median, 3),
            "kilobytes": significant(stored[name] / (rounds + 5) / 1e3, 3),
        }
        for name in WAYS
    }


def counted(save: Save) -> Callable[[], None]:
    steps = iter(range(sys.maxsize))
    return lambda: save(next(steps))


def measure_put(rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the cost in the training thread while the writer's thread is working."""
    scalars, vectors = step_scalars(), step_vectors()
    samples = []
    with tempfile.TemporaryDirectory() as folder, Writer(Path(folder, "run.leadline"), INFO) as writer:
        for step in range(rounds):
            start = time.thread_time()
            writer.put(step, scalars, vectors)
            samples.append(1e6 * (time.thread_time() - start))
            time.sleep(0.01)
    return {"us": rounded(spread(samples), 3), "sqlite": sqlite3.sqlite_version}


CHILD = f"""
import sys, time
from array import array
from leadline.records.run import RunInfo
from leadline.monitor.runfile import Writer
writer = Writer(sys.argv[1], RunInfo(model="benchmark"))
scalars = {{f"scalar {{index}}": 0.5 for index in range({SCALARS})}}
vectors = {{f"metric {{index}}": ("layers", array("f", [0.5] * {LAYERS})) for index in range({METRICS})}}
step = writer.last_step or 0
while True:
    step += 1
    writer.put(step, scalars, vectors)
    sys.stdout.write(f"{{step}}\\n")
    sys.stdout.flush()
    time.sleep(float(sys.argv[2]))
"""


def measure_kills(pause: float, kills: int = KILLS) -> dict[str, Any]:
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        lost = [steps_lost(Path(folder, "run.leadline"), pause, rng.uniform(0.2, 0.8)) for _ in range(kills)]
    return {"kills": kills, "median": statistics.median(lost), "most": max(lost)}


def steps_lost(path: Path, pause: float, after: float) -> int:
    command = [sys.executable, "-c", CHILD, str(path), str(pause)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(after)
        child.send_signal(signal.SIGKILL)
        handed_over = int((first + child.stdout.read()).split("\n")[-2])
    with Run(path) as run:
        return max(0, handed_over - max(run.steps, default=0))


def all_cases() -> dict[str, Callable[[], Any]]:
    kills = {f"killed | {pause}": partial(measure_kills, pause) for pause in PAUSES}
    watched = {
        f"killed watch | {pause}": partial(watch_sigkill.measure, pause, KILLS) for pause in WATCHED_PAUSES
    }
    return {"ways": measure_ways, "put": measure_put, **kills, **watched}


def render(results: Results) -> str:
    machine = results["machine"]
    cases = results["cases"]
    return "\n\n".join(
        [
            f"Measured on {machine['cpu']}; Python {machine['python']}, SQLite {cases['put']['sqlite']}.",
            render_ways(cases),
            f"Time that `put` takes in the training loop, per step: **{cases['put']['us']['median']:.0f} µs**"
            f" (middle half {middle(cases['put']['us'], 0)}).",
            "A process that stores such steps:",
            render_kills(cases, "killed", PAUSES),
            "A small network that trains under `leadline.watch`:",
            render_kills(cases, "killed watch", WATCHED_PAUSES),
        ]
    )


def render_ways(cases: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"**{found['ms']['median']:.2f} ms**",
            middle(found["ms"], 2),
            f"{found['over_run_file']:.3g}",
            f"{found['kilobytes']:.0f} kB",
            f"≤ {MAX_STEP_MS} ms" if name == "run file" else "",
        ]
        for name, found in cases["ways"].items()
    ]
    return table(["format", "processor time", "middle half", "ratio", "on disk", "goal"], rows)


def render_kills(cases: dict[str, Any], what: str, pauses: Sequence[float]) -> str:
    rows = [
        [f"{1e3 * pause:.0f} ms", str(found["kills"]), f"{found['median']:.0f}", str(found["most"])]
        for pause in pauses
        if (found := cases.get(f"{what} | {pause}"))
    ]
    return table(["step time", "kills", "steps lost, median", "most"], rows)


def middle(found: dict[str, float], digits: int) -> str:
    each = Spread(**found)
    return f"{each.low:.{digits}f} to {each.high:.{digits}f}"


def quick() -> None:
    for name, found in measure_ways(rounds=5).items():
        print(f"{name:16} {found['ms']['median']:.2f} ms, ratio {found['over_run_file']:.1f}")
    print(f"put: {measure_put(rounds=5)['us']['median']:.0f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rounds; stores nothing")
    if parser.parse_args().quick:
        quick()
        return
    results = run_missing("store_cost", all_cases(), partial(print, flush=True))
    fill_file(ROOT / "docs" / "reference" / "runs.md", "store_cost", render(results))


if __name__ == "__main__":
    main()
