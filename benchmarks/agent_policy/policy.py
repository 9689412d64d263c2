"""Commands in child processes that inherit an imported torch, the score of a script, and the policy."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from leadline.cli import main

SCRIPT = "train.py"
# Heuristic: a sixth of the default, because the scripts are small.
FIX_BUDGET = ("--budget", "10s")
# Heuristic: processor time; a hundred times what a script takes. Wall time would depend on what else the machine does.
MAX_PROCESSOR_SECONDS = 900
# Heuristic: a script has one mistake; a second and a third diff answer what is found after the first.
MAX_ROUNDS = 3
SCORE = re.compile(r"^score (\S+)$", re.MULTILINE)
KEY = re.compile(r"^(\w+): (.*)$", re.MULTILINE)


class Done(NamedTuple):
    """What a child process wrote, and how it ended; None: it was stopped after `MAX_PROCESSOR_SECONDS`."""

    out: str
    err: str
    code: int | None


def in_child(work: Callable[[], int], folder: Path) -> Done:
    """Call `work` in a forked process whose working directory is `folder`."""
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.chdir(folder)
            for stream, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            signal.setitimer(signal.ITIMER_PROF, MAX_PROCESSOR_SECONDS)
            sys.argv = [SCRIPT]
            sys.path.insert(0, str(folder))
            code = work()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return Done(out.read_text(), err.read_text(), None if code < 0 else code)


def score_of(folder: Path) -> float | None:
    """The score that the script prints; None if it fails, does not end, or prints NaN."""

    def train() -> int:
        runpy.run_path(SCRIPT, run_name="__main__")
        return 0

    printed = SCORE.search(in_child(train, folder).out)
    value = float(printed[1]) if printed else None
    return value if value is not None and value == value else None


def leadline(words: list[str], folder: Path) -> Done:
    """Run a command of Leadline as a user would."""
    return in_child(lambda: main(words), folder)


def keys_of(text: str) -> dict[str, str]:
    """The keys of `--format agent`; of a key that occurs again, the first."""
    values: dict[str, str] = {}
    for key, value in KEY.findall(text):
        values.setdefault(key, value)
    return values


def follow(source: str) -> dict[str, Any]:
    """Check, fix and check again as Leadline's own lines say, until no diff can be applied, and train."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / SCRIPT).write_text(source, encoding="utf-8")
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        start = time.perf_counter()
        untouched = score_of(folder)
        rounds: list[dict[str, Any]] = []
        words = ["leadline", "check", SCRIPT, "--format", "agent"]
        while len(rounds) < MAX_ROUNDS and (not rounds or rounds[-1]["applied"]):
            rounds.append(_round(words, folder))
            words = shlex.split(rounds[-1].pop("recheck")) or words
        followed = score_of(folder) if rounds[0]["applied"] else untouched
        return {
            "untouched": untouched,
            "followed": followed,
            **{key: rounds[0][key] for key in ("verdict", "cause", "applied")},
            "rounds": rounds,
            "seconds": round(time.perf_counter() - start),
        }


def _round(words: list[str], folder: Path) -> dict[str, Any]:
    """One check, and the diff behind its line `fix`; without one, those of the check behind its line `next`."""
    said = keys_of(leadline(words[1:], folder).out)
    record = _fixed(said, folder)
    if not record["applied"] and "next" in said:
        said = keys_of(leadline(shlex.split(said["next"])[1:], folder).out)
        if "fix" in said:
            record = _fixed(said, folder)
    return record


def _fixed(said: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run the command behind `fix`, and apply the diff that it prints."""
    record = {
        "verdict": said.get("verdict", ""),
        "cause": said.get("cause", said.get("doubt", "").partition(":")[0]),
        "applied": False,
        "diff": "",
        "recheck": said.get("recheck", ""),
    }
    if "fix" not in said:
        return record
    done = leadline([*shlex.split(said["fix"])[1:], *FIX_BUDGET], folder)
    if not done.out.startswith("--- "):
        return record | {"diff": done.out[:2000], "said": done.err[-600:]}
    patch = folder / "fix.diff"
    patch.write_text(done.out)
    applied = subprocess.run(
        ["git", "apply", patch.name], cwd=folder, check=False, capture_output=True, text=True
    )
    return record | {"applied": applied.returncode == 0, "diff": done.out, "said": applied.stderr}
