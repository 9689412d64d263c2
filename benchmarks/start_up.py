"""How long Leadline takes to start: `leadline --help`, and `import leadline` beyond torch.

    python -m benchmarks.start_up

Each is measured in new processes, which take turns. Processor time counts, because it does not depend on what else the
machine does. The table of docs/lab-notes/performance.md is filled from benchmarks/results/start_up.json.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from benchmarks.result_files import ROOT, Results, fill_file, run_missing, table
from benchmarks.timing import rounded, spread

# Heuristic: enough for a median that one slow process does not move.
ROUNDS = 5
GOALS = {"`leadline --help`": 0.25, "`import leadline`, beyond torch": 0.1}
"""Seconds of processor time."""
# Prints the processor time of three imports after each other, each beyond those before it.
IMPORTS = """
import json, time
marks = [time.process_time()]
import torch; marks.append(time.process_time())
import leadline; marks.append(time.process_time())
leadline.check; marks.append(time.process_time())
print(json.dumps([after - before for before, after in zip(marks, marks[1:])]))
"""


def main() -> None:
    results = run_missing("start_up", {"one thread": measure}, print)
    fill_file(ROOT / "docs" / "lab-notes" / "performance.md", "start_up", render(results))


def measure() -> dict[str, dict[str, float]]:
    """Seconds of processor time: median and quartiles."""
    seconds: dict[str, list[float]] = {name: [] for name in ("python", "help", "torch", "leadline", "check")}
    for _ in range(ROUNDS):
        seconds["python"].append(_process_seconds(["-c", "pass"]))
        seconds["help"].append(_process_seconds(["-m", "leadline", "--help"]))
        for name, value in zip(
            ("torch", "leadline", "check"), json.loads(_start(["-c", IMPORTS])), strict=True
        ):
            seconds[name].append(value)
    return {name: rounded(spread(times), 3) for name, times in seconds.items()}


def _process_seconds(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _start(words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _start(words: list[str]) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout


def render(results: Results) -> str:
    """Return the table of docs/lab-notes/performance.md."""
    median = {name: each["median"] for name, each in results["cases"]["one thread"].items()}
    seconds = {
        "`leadline --help`": median["help"],
        "`import leadline`, beyond torch": median["leadline"],
        "first use of `leadline.check`, beyond both": median["check"],
        "for comparison: `import torch`": median["torch"],
        "for comparison: Python itself": median["python"],
    }
    rows = [
        [name, f"{value:.3f} s", f"< {GOALS[name]:g} s" if name in GOALS else ""]
        for name, value in seconds.items()
    ]
    where = f"{results['machine']['cpu']}; torch {results['machine']['torch']}; processor time, one thread."
    return table(["what starts", "median", "goal"], rows) + f"\n\n{where}"


if __name__ == "__main__":
    main()
