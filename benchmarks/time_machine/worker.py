"""Runs inside the environment of one wheel: build the named cases, check them, print one line of JSON for each."""

from __future__ import annotations

import importlib.metadata
import json
import signal
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.time_machine.known import KNOWN
from benchmarks.zoo.measure import error_text, set_up_process
from benchmarks.zoo.vision_ops import declare_vision_ops
from leadline import Case
from leadline.checks._diagnosis import check_case
from leadline.errors import InputError
from leadline.readings.wiring.memory import Rebuild
from leadline.records.report import Report

# Heuristic: seconds of processor time; a tiny model takes a few.
MAX_PROCESSOR_SECONDS = 90
# Heuristic: enough to recognize a message in a table.
MAX_MESSAGE_CHARACTERS = 300

Answer = dict[str, Any]


def check_all(package: str, names: list[str]) -> None:
    """Print one answer per name, which is the key of a known bug."""
    set_up_process()
    declare_vision_ops()
    signal.signal(signal.SIGPROF, _stop)
    version = importlib.metadata.version(package)
    for name in names:
        signal.setitimer(signal.ITIMER_PROF, MAX_PROCESSOR_SECONDS)
        start = time.process_time()
        answer = ask(KNOWN[name].build)
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = round(time.process_time() - start, 1)
        print(json.dumps({"key": name, "version": version, "seconds": seconds, **answer}), flush=True)


def _stop(*_: object) -> None:
    raise TimeoutError(f"more than {MAX_PROCESSOR_SECONDS} s of processor time")


def ask(build: Callable[[], Case]) -> Answer:
    """What the check says about a case, without a rehearsal; an exception is an answer, too."""

    def make() -> Case:
        torch.manual_seed(0)
        case = build()
        case.model.train()
        return case

    try:
        case = make()
    except Exception as error:  # a third-party package may raise anything
        return {"status": "not built", "reason": error_text(error)}
    try:
        report = check_case(case, rehearse=False, rebuild=Rebuild(make=make, seconds=0.0))
    except InputError as error:
        return {"status": "refused", "reason": error_text(error)}
    except Exception as error:  # the model's own error, or one of Leadline
        return {"status": "failed", "reason": error_text(error)}
    return {"status": "checked", **summary(report)}


def summary(report: Report) -> Answer:
    """The findings that are about the question, memory or numbers, and every other error."""
    return {
        "verdict": report.verdict,
        "findings": [
            {
                "name": each.name,
                "severity": each.severity,
                "text": f"{each.where}: {each.message}"[:MAX_MESSAGE_CHARACTERS],
            }
            for each in report.findings
            if each.code.startswith("D") or each.severity != "info"
        ],
        "gaps": [f"{gap.what}: {gap.why}"[:MAX_MESSAGE_CHARACTERS] for gap in report.coverage.gaps],
    }
