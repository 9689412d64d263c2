"""Train the programs, ask Leadline about them, and fill the page."""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import sklearn.datasets
import sklearn.linear_model  # noqa: F401  (loaded before the forks, so that no program pays for it)
import torch

from benchmarks.field.bugs import BUGS, GUESSES, is_held_out
from benchmarks.field.page import render
from benchmarks.field.runs import ask, train
from benchmarks.result_files import ROOT, fill_file, load, save

NAME = "field"
HEALTHY = "healthy"
PARTS = {"seen": False, "held-out": True}


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.field")
    parser.add_argument("what", choices=["truth", "check", "keep-first", "render"])
    parser.add_argument("--part", choices=list(PARTS))
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of the keys PROGRAM/BUG")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--later", action="store_true", help="answers after Leadline was changed, kept apart")
    parser.add_argument("--share", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.what == "keep-first":
        keep_first()
    elif options.what == "render":
        fill_file(ROOT / "docs" / "lab-notes" / "field.md", NAME, render(load(NAME)))
    elif options.workers > 1 and not options.share:
        commands = [
            [sys.executable, "-m", "benchmarks.field", *words, "--share", str(n + 1)]
            for n in range(options.workers)
        ]
        for process in [subprocess.Popen(command) for command in commands]:
            process.wait()
    else:
        keys = chosen(options.part, options.only)
        if options.share:
            keys = keys[options.share - 1 :: options.workers]
        answers = "later" if options.later else "cases"
        table, measure = ("truth", _train) if options.what == "truth" else (answers, _ask)
        run(table, keys, measure)


def all_keys() -> list[str]:
    """Healthy programs first, then the first bug of each program, the second, and so on."""
    by_program = {name: [bug.key for bug in BUGS if bug.program == name] for name in GUESSES}
    longest = max(len(keys) for keys in by_program.values())
    rounds = [keys[n] for n in range(longest) for keys in by_program.values() if n < len(keys)]
    return [f"{name}/{HEALTHY}" for name in GUESSES] + rounds


def chosen(part: str | None, only: list[str]) -> list[str]:
    keys = [key for key in all_keys() if part is None or is_held_out(key.partition("/")[0]) == PARTS[part]]
    return [key for key in keys if not only or key.startswith(tuple(only))]


def run(table: str, keys: list[str], measure: Callable[[str, str], Any]) -> None:
    """Measure what has no result yet; other processes may do the same with other keys."""
    for key in keys:
        if key in load(NAME).get(table, {}):
            continue
        program, _, bug = key.partition("/")
        print(table, key, flush=True)
        value = measure(program, "" if bug == HEALTHY else bug)
        with (Path(gettempdir()) / f"leadline-{NAME}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            results = load(NAME)
            results.setdefault(table, {})[key] = value
            save(NAME, results)


def _train(program: str, bug: str) -> dict[str, Any]:
    return train(program, bug, 0)


def _ask(program: str, bug: str) -> dict[str, Any]:
    return ask(program, bug)


def keep_first() -> None:
    """Keep the answers as the first ones; the rules may be changed only after this."""
    results = load(NAME)
    if "first" in results:
        raise SystemExit("the first answers are kept already")
    missing = [key for key in all_keys() if key not in results["cases"]]
    if missing:
        raise SystemExit(f"{len(missing)} cases have no answer yet: run check first")
    save(NAME, {**results, "first": results["cases"]})


if __name__ == "__main__":
    main(sys.argv[1:])
