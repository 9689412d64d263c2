"""One run of a program in a child process: alone, with its losses and its metric, or under Leadline."""

from __future__ import annotations

import json
import re
import runpy
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.agent_policy.policy import in_child
from leadline.cli import main

PROGRAMS = Path(__file__).parent / "programs"
# Derived: long enough to say what is wrong and where, short enough to keep a hundred answers in one file.
MAX_MESSAGE = 300
# Derived: as in the README's naive rule, the loss of step 11 is compared with that of step 1.
NAIVE_STEPS = 11
NUMBER = re.compile(r"^(metric|reported) (\S+)$", re.MULTILINE)
ALARM = re.compile(
    r"^leadline: (error|warning) at step (\d+): ([A-Z]\d+) (\S+) \((.*?)\): (.*)$", re.MULTILINE
)
CAUSE = re.compile(r"^cause: ([A-Z]\d+) (\S+) \((\w+)\)$")
DOUBT = re.compile(r"^doubt: ([A-Z]\d+) (\S+?):? (.*)$")


def _command(program: str, bug: str, seed: int) -> list[str]:
    words = [str(PROGRAMS / f"{program}.py"), "--seed", str(seed)]
    return [*words, "--bug", bug] if bug else words


def train(program: str, bug: str, seed: int) -> dict[str, Any]:
    """Run the program alone: its held-out metric, the metric that it reports, and its first and last losses."""
    losses: list[float] = []

    def work() -> int:
        backward = torch.Tensor.backward

        def recorded(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            losses.append(float(self.detach()))
            backward(self, *args, **kwargs)

        torch.Tensor.backward = recorded  # type: ignore[method-assign,assignment]
        sys.argv = _command(program, bug, seed)
        runpy.run_path(sys.argv[0], run_name="__main__")
        Path("losses.json").write_text(json.dumps(losses))
        return 0

    with TemporaryDirectory() as place:
        folder = Path(place)
        done = in_child(work, folder)
        if done.code != 0:
            return {"error": done.err[-MAX_MESSAGE:]}
        kept = json.loads((folder / "losses.json").read_text())
    numbers = {key: float(value) for key, value in NUMBER.findall(done.out)}
    return {
        **numbers,
        "first_losses": [round(value, 5) for value in kept[: 2 * NAIVE_STEPS]],
        "last_loss": kept[-1],
    }


def ask(program: str, bug: str) -> dict[str, Any]:
    """Run the program to its end under `leadline run`: verdicts, causes and alarms, as a user would see them."""

    def work() -> int:
        sys.argv = ["leadline"]
        options = ["--format", "agent", "--report", "report.json", "--store", "run.leadline"]
        return main(["run", *options, *_command(program, bug, 0)])

    with TemporaryDirectory() as place:
        folder = Path(place)
        start = time.perf_counter()
        done = in_child(work, folder)
        seconds = time.perf_counter() - start
        report = folder / "report.json"
        written = json.loads(report.read_text()) if report.exists() else []
        reports = written if isinstance(written, list) else [written]  # one for each network
    findings = causes_of(done.err) + [
        {
            **{key: each[key] for key in ("code", "name", "where")},
            "severity": "note",
            "message": _cut(each["message"]),
        }
        for report in reports
        for each in report["findings"]
        if each["severity"] == "info"
    ]
    return {
        "verdicts": re.findall(r"^verdict: (.*)$", done.err, re.MULTILINE),
        "findings": findings,
        "alarms": alarms_of(done.err),
        "metric": next((value for key, value in NUMBER.findall(done.out) if key == "metric"), None),
        "code": done.code,
        "said": "" if done.code == 0 else _cut(done.err[-MAX_MESSAGE:]),
        "seconds": round(seconds, 1),
    }


def causes_of(text: str) -> list[dict[str, str]]:
    """The findings of `--format agent`: each cause with its place, its measurement and its change, and the doubts."""
    findings: list[dict[str, str]] = []
    for line in text.splitlines():
        if cause := CAUSE.match(line):
            code, name, severity = cause.groups()
            findings.append({"code": code, "name": name, "severity": severity, "where": "", "message": ""})
        elif doubt := DOUBT.match(line):
            code, name, rest = doubt.groups()
            findings.append(
                {
                    "code": code,
                    "name": name.rstrip(":"),
                    "severity": "doubt",
                    "where": "",
                    "message": _cut(rest),
                }
            )
        elif findings and line.startswith("where: "):
            findings[-1]["where"] = line.removeprefix("where: ")
        elif findings and line.startswith(("measured: ", "change: ")):
            said = line.partition(": ")[2]
            findings[-1]["message"] = _cut(f"{findings[-1]['message']} {said}".strip())
    return findings


def alarms_of(text: str) -> list[dict[str, Any]]:
    """What the watch said while the program ran."""
    return [
        {
            "severity": severity,
            "step": int(step),
            "code": code,
            "name": name,
            "where": where,
            "message": _cut(said),
        }
        for severity, step, code, name, where, said in ALARM.findall(text)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
