"""Run a program in a process of its own, as it is and under `leadline run`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

PROGRAMS = ROOT / "tests" / "support" / "programs"
# Seconds for one program on a busy machine; torch alone takes several to import.
MAX_SECONDS = 300


@dataclass(frozen=True)
class ProgramResult:
    """How a process ended and what it printed."""

    code: int
    out: str
    err: str


def process_environment(**changes: str) -> dict[str, str]:
    """The environment of a process that uses this source tree."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    return {**os.environ, **own, **changes}


def allow_interrupts() -> None:
    """For a new process: a shell starts its background jobs with Ctrl-C ignored, and Python keeps it so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_python(arguments: list[str], folder: Path, **environment: str) -> ProgramResult:
    """Run Python with these arguments in a folder."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=process_environment(**environment),
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
        check=False,
    )
    return ProgramResult(done.returncode, done.stdout, done.stderr)


def run_plain(program: str, folder: Path, *arguments: str) -> ProgramResult:
    """Run one of the programs without Leadline."""
    return run_python([str(PROGRAMS / f"{program}.py"), *arguments], folder)


def run_attached(program: str, folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> ProgramResult:
    """Run one of the programs under `leadline run`."""
    command = ["-m", "leadline", "run", *options, str(PROGRAMS / f"{program}.py"), *arguments]
    return run_python(command, folder)


def own_lines(error: str) -> list[str]:
    """What Leadline said, without the report."""
    return [line.removeprefix("leadline: ") for line in error.splitlines() if line.startswith("leadline: ")]
