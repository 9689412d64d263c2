"""Ask the wiring checks about every architecture of the zoo: all of them are healthy, so every warning is a mistake.

    python -m benchmarks.wiring.silence              check what has no stored answer; resumable
    python -m benchmarks.wiring.silence --report     the findings at warning or above, and how many were silent

Only the trace and the probes run, because they are all that the wiring checks read: no optimizer, no step. Results:
benchmarks/results/wiring_silence.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import warnings
from typing import Any

import torch

import leadline
from benchmarks.result_files import load, save
from benchmarks.zoo.collection import SOURCES, find_architecture, names

RESULTS = "wiring_silence"
SAVE_INTERVAL = 10
"""Architectures between two writes of the results."""


def ask(name: str) -> tuple[str, dict[str, Any]]:
    """The wiring findings at warning or above, and what was not asked."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        report = leadline.check(find_architecture(name).case())
    except Exception as error:
        return name, {"error": f"{type(error).__name__}: {error}"[:200]}
    found = {
        each.code: f"{each.where}: {each.message}"[:300]
        for each in report.findings
        if each.code.startswith("D") and each.severity != "info"
    }
    return name, {"findings": found, "asked": report.profile.dependence is not None}


def sweep(workers: int) -> None:
    results = load(RESULTS)
    missing = [name for name in names() if name not in results["cases"]]
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=20) as pool:
        for count, (name, answer) in enumerate(pool.imap_unordered(ask, missing), 1):
            results["cases"][name] = answer
            if count % SAVE_INTERVAL == 0 or count == len(missing):
                save(RESULTS, results)
                print(f"{count} of {len(missing)}", flush=True)


def report() -> None:
    cases = load(RESULTS)["cases"]
    for source in SOURCES:
        own = {name: each for name, each in cases.items() if name.startswith(f"{source}/")}
        asked = [each for each in own.values() if "error" not in each]
        silent = sum(not each["findings"] for each in asked)
        print(f"{source}: {silent} of {len(asked)} silent, {len(own) - len(asked)} did not run")
    for name, each in cases.items():
        for code, text in each.get("findings", {}).items():
            print(f"{name}: {code} {text}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wiring.silence")
    parser.add_argument("--report", action="store_true", help="print the stored answers")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args(arguments)
    report() if options.report else sweep(options.workers)


if __name__ == "__main__":
    main(sys.argv[1:])
